"""`tfm train`: sentence pairs in, a model directory out; the same command again goes on."""

import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from tfm.cli import console
from tfm.cli.config import dump_config, load_settings, overrides_of
from tfm.cli.options import (
    Attention,
    Config,
    Debug,
    Device,
    DryRun,
    DumpConfig,
    More,
    OutputDirectory,
    Precision,
    Seed,
    Set,
    Source,
    Steps,
    Target,
    Time,
    TokenizerFile,
    Train,
    Valid,
)
from tfm.cli.progress import TrainingProgress, describe_scores
from tfm.data.counts import counted

if TYPE_CHECKING:
    from tfm.model.training.material import Order
    from tfm.model.training.run import Run
    from tfm.model.training.selection import Outcome


def train(
    config: Config = None,
    set_: Set = None,
    train: Train = None,
    valid: Valid = None,
    tokenizer: TokenizerFile = None,
    output: OutputDirectory = None,
    source: Source = None,
    target: Target = None,
    steps: Steps = None,
    time: Time = None,
    seed: Seed = None,
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    dry_run: DryRun = False,
    dump: DumpConfig = False,
    debug: Debug = False,
) -> None:
    """Train a translation model on sentence pairs.

    A CORPUS is PREFIX for two files, PREFIX.en and PREFIX.de (also .gz, .xz, .zst); or a file
    .tsv, .csv, .jsonl or .parquet with columns en and de; or hf:NAME[:CONFIG[:SPLIT]]; or
    builtin[:N]. en and de are --source and --target.

    With --set training.tensorboard=true, TensorBoard shows the run: tensorboard --logdir DIR.
    training.compile=true compiles the layers, training.gradient_checkpointing=true saves memory.

    Repeat the command to continue a run that was stopped; Ctrl-C finishes the step and saves.
    --steps +N takes N steps more than the run in DIR has done; repeated after a stop, it goes on to
    the same end.

    --time 30m ends after half an hour, reading, validations and the choice of the final weights
    included: the schedule is bent to the steps that fit. The time of earlier sittings counts. Three
    steps, a validation and the saving are always done; where the time is too short, it says so.

    Without --config the settings are chosen by the number of pairs and the machine, but for what
    --set and other options say; it is said which, and why. A run that is continued has its own.

    --dry-run added to any such command prints to stdout what it would do: pairs that are left out
    and why, batches, padding, parameters, memory, attention kernels, and how long it would take.
    """
    started = monotonic()
    if steps is not None and time is not None:
        raise typer.BadParameter("takes --steps or --time, not both")
    seconds = 0.0 if steps is not None else time
    more = steps if isinstance(steps, More) else None
    if more and output is not None and not dump and begun(output):
        steps = None  # how many are done, to which they are added, the run knows
    flags = {"source": source, "target": target, "steps": steps, "time": seconds, "seed": seed}
    settings = load_settings(config, set_, **flags)
    automatic = config is None and train is not None
    if dump and not automatic:
        dump_config(settings)
        return
    lacks_place = output is None and not dump
    if train is None or lacks_place:
        missing = {"--train CORPUS": train is None, "-o DIR": lacks_place}
        raise typer.BadParameter(f"needs {' and '.join(name for name in missing if missing[name])}")
    from tfm.model.training.automatic import with_settings
    from tfm.model.training.material import Order

    order = Order(
        settings=settings,
        overrides=overrides_of(set_, **flags) if automatic else None,
        started=started,
        more_steps=more,
        train=train,
        valid=valid,
        directory=output or Path(),
        tokenizer=tokenizer,
        device=device,
        precision=precision,
        attention=attention,
    )
    if dump:
        dump_config(with_settings(order, console.note, anew=output is None).settings)
        return
    (show_plan if dry_run else carry_out)(order)


def show_plan(order: "Order") -> None:
    """Print what training would do, and do nothing of it; of several processes, the first does."""
    from tfm.model.memory import keep_memory_for_training
    from tfm.model.ranks import Place
    from tfm.model.training.automatic import with_settings
    from tfm.model.training.plan import plan

    place = Place.here()
    if place.rank == 0:
        keep_memory_for_training()
        printer = PlanPrinter()
        plan(with_settings(order, printer.on_note, processes=place.size), printer)


class PlanPrinter(TrainingProgress):
    """Prints the lines of a plan, which are the result, to stdout."""

    def on_note(self, text: str) -> None:
        """Print a line."""
        print(console.one_line(text))


def carry_out(order: "Order") -> None:
    """Prepare a run, train, and say what came of it; leave as the signal wants that stops it."""
    from tfm.model.memory import keep_memory_for_training
    from tfm.model.training.automatic import choose_together
    from tfm.model.training.budget import describe_lateness
    from tfm.model.training.distributed import joined
    from tfm.model.training.loop import train
    from tfm.model.training.recipe import prepare
    from tfm.model.training.signals import Interrupted

    keep_memory_for_training()
    with joined(order.device) as ranks:
        if not ranks.first:
            console.log.quiet = True  # the first one speaks for all
        order = choose_together(order, console.note, ranks)
        with watch(order) as progress, prepare(order, progress, ranks) as run:
            if run.complete:
                console.note(describe_end(run))
                return
            try:
                outcome = train(run, progress)
            except Interrupted as stop:
                if stop.number not in (signal.SIGINT, signal.SIGTERM):
                    progress.hang_up()
                console.note(
                    f"{stop} after step {run.progress.step}; the state is saved: repeat the "
                    f"command to go on"
                )
                if stop.number == signal.SIGINT:
                    raise KeyboardInterrupt from None
                raise SystemExit(128 + stop.number) from None
    for line in describe_outcome(run, outcome):
        console.note(line)
    if lateness := describe_lateness(run):
        console.warn(lateness)


def watch(order: "Order") -> TrainingProgress:
    """Return what shows the training that `order` asks for."""
    data = order.settings.data
    return TrainingProgress(f"{data.source} to {data.target}", str(order.directory))


def begun(output: Path) -> bool:
    """Return whether there is a run to go on with."""
    from tfm.model.training.directory import RunDirectory, holds_run

    return holds_run(RunDirectory(output))


def describe_end(run: "Run") -> str:
    """Say why there is nothing left to do, and how to go on all the same."""
    step = run.progress.step
    if run.out_of_patience and step < run.last_step:
        validations = counted(run.settings.training.patience, "validation")
        return (
            f"{run.directory.path}: finished at step {step:,}, after {validations} "
            f"without a new best; --set training.patience=0 goes on"
        )
    finished = f"{run.directory.path}: finished, {counted(step, 'step')}"
    if run.timetable is None:
        return f"{finished}; --steps +N goes on"
    if run.settings.training.phased:
        return f"{finished}; its phases have had their shares of the time, and it cannot go on"
    return f"{finished}; --steps +N or a longer --time goes on"


def describe_outcome(run: "Run", outcome: "Outcome") -> Iterator[str]:
    """Yield lines that say what the model directory holds now, and why."""
    averaged = "averaged " if run.learner.average else ""
    names = {
        "best": f"the {averaged}weights of step {outcome.best_step or 0:,}",
        "average": f"the mean of the last {outcome.averaged} checkpoints",
        "moving average": "the moving average of the weights",
        "last": "the last weights",
    }
    for name, scores in outcome.scores.items():
        yield f"{names[name]}: {describe_scores(scores)}"
    step, patience = run.progress.step, run.settings.training.patience
    why = f" ({counted(patience, 'validation')} without a new best)" if run.out_of_patience else ""
    yield f"finished at step {step:,}{why}: {run.directory.path} holds {names[outcome.chosen]}"
