"""What training would do and cost, for `tfm train --dry-run`: all but the first file is made."""

from collections.abc import Iterator
from datetime import timedelta

from tfm.data.batching import epoch_batches
from tfm.data.counts import counted
from tfm.model.ranks import Place
from tfm.model.training.budget import begin, decide, describe
from tfm.model.training.directory import RunDirectory, holds_run
from tfm.model.training.material import Material, Order, gather
from tfm.model.training.pace import validations_due
from tfm.model.training.recipe import Machine, assemble, find_run
from tfm.model.training.rehearsal import STEPS, Memory, Rehearsal, rehearse
from tfm.model.training.reporting import Reporter
from tfm.model.training.run import Run
from tfm.model.training.schedule import MADE_AFTER, phases, translations_due
from tfm.model.training.state import Progress
from tfm.model.transformer import Transformer


def plan(order: Order, reporter: Reporter) -> Run:
    """Tell `reporter`, line by line, what training as `order` asks would do. Writes nothing.

    Where the directory holds a run it is the plan of what is left of it.

    Returns:
        The run, of which nothing is on disk and whose learner is worn out.

    Raises:
        UserError: what the training itself would be refused with.
    """
    machine = Machine.choose(order)
    directory = RunDirectory(order.directory)
    before = Progress()
    if holds_run(directory):
        found = find_run(order, directory)
        order, material = found.order, found.gather(directory, reporter)
        before = Progress.from_json(found.stored.header["progress"])
    else:
        material = gather(order, tokenizer=order.tokenizer, reporter=reporter)
    run = assemble(order, directory, material, machine, reporter)
    run.progress.step, done = before.step, before.step
    run.take_time_of(before)
    reporter.on_note(describe_parts(run.learner.model))
    training = run.settings.training
    if not training.time:
        reporter.on_note(describe_steps(run, material, training.steps, done=done))
    rehearsal = rehearse(run)
    reporter.on_note(describe_memory(rehearsal.memory))
    if not training.time:
        reporter.on_note(describe_time(run, rehearsal, done=done))
        return run
    run.pace = pace = rehearsal.pace
    run.clock.before -= rehearsal.trial  # training has no trial before the steps that fit
    timetable = decide(run, run.timetable or begin(run, pace.validation, pace.translation))
    reporter.on_note(describe_steps(run, material, timetable.last, done=done))
    length = timedelta(seconds=round(training.time))
    reporter.on_note(f"time: {length}, as asked; {describe(timetable, training)}")
    return run


def describe_parts(model: Transformer) -> str:
    """Return how many parameters are in which part; the numbers add up to all."""
    parts = ", ".join(f"{count:,} {name}" for name, count in parameters_by_part(model))
    return f"parameters: {parts}"


def parameters_by_part(model: Transformer) -> Iterator[tuple[str, int]]:
    """Yield the parts of the network with their numbers of parameters, shared ones once."""

    def count(*prefixes: str) -> int:
        weights = model.named_parameters()
        return sum(weight.numel() for name, weight in weights if name.startswith(prefixes))

    if model.joint:
        yield "embeddings and output", count("target_embedding", "source_embedding")
    else:
        yield "source embedding", count("source_embedding")
        yield "target embedding and output", count("target_embedding")
    yield "encoder", count("encoder")
    yield "decoder", count("decoder")


def describe_steps(run: Run, material: Material, last: int, *, done: int) -> str:
    """Return how many steps there are up to the `last`, and how often they see each pair."""
    training = run.settings.training
    processes = Place.here().size
    each = training.accumulate * processes
    corpus, tokens = material.corpus, training.batch_tokens
    cut = epoch_batches(corpus, batch_tokens=tokens, seed=training.seed, epoch=0)
    epochs, made = 0.0, 0
    for name, steps in phases(training):
        times = 2 if name == "both directions" else 1 + made  # pairs made are as long, about
        epochs += steps * last / training.steps * each / (times * len(cut))
        made += name in MADE_AFTER
    number = "one batch" if each == 1 else f"{each} batches"
    before = f", {min(done, last):,} of them done" if done else ""
    about = "about " if training.time else ""
    return f"steps: {about}{last:,} of {number} each{before}: {epochs:.1f} epochs"


def describe_memory(memory: Memory) -> str:
    """Return what is held at once, and for what."""
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "moving average": memory.average,
        "saved for the backward pass over the largest batch": memory.saved,
    }
    listed = ", ".join(f"{size(count)} {name}" for name, count in parts.items() if count)
    return f"memory: about {size(memory.total)}: {listed}; intermediate results come on top"


def size(count: int) -> str:
    """Return a number of bytes for reading."""
    mebibytes = count / 2**20
    return f"{mebibytes / 1024:,.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:,.1f} MiB"


def describe_time(run: Run, rehearsal: Rehearsal, *, done: int) -> str:
    """Return how long the rest takes by the pace of the trial steps."""
    training, pace = run.settings.training, rehearsal.pace
    steps = max(training.steps - done, 0)
    length = timedelta(seconds=round(pace.seconds_left(done, training)))
    parts = f"{counted(steps, 'step')} of {1000 * pace.step:,.0f} ms"
    if run.valid is not None:
        validations = counted(validations_due(done, training), "validation")
        parts += f", {validations} of about {pace.validation:,.1f} s and one at the end"
    if due := translations_due(done, training):
        times = f"{counted(due, 'translation')} of the training corpus"
        parts += f", {times} of about {pace.translation:,.0f} s"
    return (
        f"time: about {length}: {parts}; {rehearsal.tokens_per_s:,.0f} tokens/s "
        f"in {STEPS} trial steps"
    )
