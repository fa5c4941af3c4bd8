"""The recipe: from what the user asks for to a `Run` that is ready to train or to go on.

Everything that can fail cheaply does so before the first file is written.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tfm.data.counts import counted
from tfm.data.errors import CheckpointError, SettingsError
from tfm.data.lines import atomic_writer
from tfm.model.attention.choice import AttentionPlan, resolve
from tfm.model.checkpoint import build_model
from tfm.model.device import PRECISIONS, resolve_device, resolve_precision
from tfm.model.layer_calls import require_compiler
from tfm.model.settings import Settings
from tfm.model.tensor_file import Stored
from tfm.model.training.board import Board, require_tensorboard
from tfm.model.training.directory import RunDirectory, holds_run
from tfm.model.training.distributed import ALONE, Ranks
from tfm.model.training.identity import (
    changes,
    earlier_sittings,
    identify_settings,
    require_same_run,
    write_provenance,
)
from tfm.model.training.material import Material, Order, describe_material, gather
from tfm.model.training.metrics import Metrics
from tfm.model.training.reporting import Reporter
from tfm.model.training.run import Run
from tfm.model.training.schedule import phases
from tfm.model.training.state import Progress, read_state, stored_settings
from tfm.model.training.step import Learner
from tfm.model.training.timetable import Clock


@dataclass(frozen=True)
class Machine:
    """Where, how precisely and with which attention the network computes."""

    device: torch.device
    dtype: torch.dtype
    plan: AttentionPlan
    ranks: Ranks = ALONE

    @classmethod
    def choose(cls, order: Order, ranks: Ranks = ALONE) -> "Machine":
        """Resolve the names of `order`.

        Raises:
            BackendError: if one asked for by name cannot run here.
        """
        device = resolve_device(order.device)
        if order.settings.training.compile:
            require_compiler(device)
        dtype = resolve_precision(order.precision, device, training=True)
        model = order.settings.model
        plan = resolve(
            order.attention,
            device=device,
            dtype=dtype,
            dropout=model.attention_dropout,
            training=True,
            head_width=model.d_model // model.heads,
            encoder_forms=model.encoder_forms,
            window=model.window,
        )
        return cls(device, dtype, plan, ranks)

    def describe(self) -> dict[str, Any]:
        """Return the choices for provenance.json; a GPU by its model."""
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else self.device.type
        precision = next(key for key, dtype in PRECISIONS.items() if dtype == self.dtype)
        return {
            "device": name,
            "precision": precision,
            "processes": self.ranks.size,
            "threads": torch.get_num_threads(),  # sums are rounded otherwise with another number
            "attention": self.plan.describe(),
        }


@contextmanager
def prepare(order: Order, reporter: Reporter, ranks: Ranks = ALONE) -> Iterator[Run]:
    """Read the data and build the network; go on with the run in the directory if there is one.

    Until the context ends no other command can train there. Of several ranks the first one does
    this, and the others read what it has written.

    Raises:
        UserError: one line that says what is wrong with settings, corpora, machine or directory.
    """
    if order.settings.training.tensorboard:
        require_tensorboard()
    machine = Machine.choose(order, ranks)
    directory = RunDirectory(order.directory)
    with (
        prepare_first(order, directory, machine, reporter) if ranks.first else nullcontext() as run
    ):
        ranks.wait()  # now the others find the run in the directory
        run = run or go_on(order, directory, machine, reporter)
        ranks.wait()  # and have read it before it changes
        with closing(run.metrics):
            yield run


@contextmanager
def prepare_first(
    order: Order, directory: RunDirectory, machine: Machine, reporter: Reporter
) -> Iterator[Run]:
    """Do what `prepare` says, in a directory that this process alone writes to."""
    if holds_run(directory):
        with directory.locked():
            yield go_on(order, directory, machine, reporter)
        return
    material = gather(order, tokenizer=order.tokenizer, reporter=reporter)
    run = assemble(order, directory, material, machine, reporter)
    with directory.locked():
        if holds_run(directory):
            raise CheckpointError(
                f"{directory.path}: meanwhile another `tfm train` has begun a run there; "
                f"choose another -o"
            )
        begin(run, material, machine)
        yield run


def go_on(order: Order, directory: RunDirectory, machine: Machine, reporter: Reporter) -> Run:
    """Restore the run in the directory, and say what differs from before."""
    found = find_run(order, directory)
    order, material = found.order, found.gather(directory, reporter)
    run = assemble(order, directory, material, machine, reporter)
    run.resume(found.stored)
    run.progress.more_steps = order.more_steps
    if found.more_steps:
        run.progress.validations_without_best = 0  # or patience would forbid what is asked for
    if run.complete:
        return run
    for difference in changes(found.before, run.settings):
        reporter.on_note(f"changed from here on: {difference}")
    if moved := changed_machine(directory, machine):
        reporter.on_note(f"computed otherwise from here on: {', '.join(moved)}")
    if run.writes:
        record(run, material, machine)
    return run


@dataclass(frozen=True)
class FoundRun:
    """A run that is there to be continued.

    Args:
        stored: its checkpoints/last.safetensors.
        before: the settings that it had.
        order: what is asked for now, with the number of steps that is meant.
        more_steps: how many of them are added to those done.
    """

    stored: Stored
    before: Settings
    order: Order
    more_steps: int

    def gather(self, directory: RunDirectory, reporter: Reporter) -> Material:
        """Read the corpora that the run learns from, with its tokenizer. Writes nothing.

        What is wrong with the settings is found before any corpus is read.

        Raises:
            CheckpointError: if the order is one for another run.
        """
        order, path = self.order, directory.path
        identity = self.stored.header.get("identity", {})
        require = partial(require_same_run, identity, directory=path, tell=reporter.on_note)
        require(identify_settings(order.settings))
        tokenizer = order.tokenizer or directory.tokenizer
        material = gather(order, tokenizer=tokenizer, reporter=reporter)
        require(material.identify(order.settings))
        return material


def find_run(order: Order, directory: RunDirectory) -> FoundRun:
    """Read the state of the run in the directory. Writes nothing.

    Raises:
        CheckpointError: if it is damaged.
        SettingsError: if the order's `more_steps` are too few.
    """
    stored = read_state(directory.last)
    before = stored_settings(stored, directory.last) or order.settings
    more = adds_steps(order, stored)
    if more:
        order = order.up_to(enough_steps(order, stored.header["progress"]["step"], more))
    elif order.more_steps:
        order = order.up_to(before.training.steps)
    return FoundRun(stored, before, order, more)


def enough_steps(order: Order, done: int, more: int) -> int:
    """Return the last step of a run that has done so many and is to do so many more.

    Raises:
        SettingsError: if the last of its phases would have none.
    """
    *before_last, _ = phases(order.settings.training)
    before = sum(steps for _, steps in before_last)
    if done + more <= before:
        raise SettingsError(
            f"--steps +{more}: the phases of this run before its last one take "
            f"{counted(before, 'step')}, of which {done:,} are done; give at least "
            f"--steps +{before + 1 - done}"
        )
    return done + more


def adds_steps(order: Order, stored: Stored) -> int:
    """Return how many steps `order` adds to those done; 0 if none, or if it did so before.

    The same command, repeated after a stop, goes on to the end that it meant at first.
    """
    progress = stored.header["progress"]
    on_the_way = progress.get("more_steps") == order.more_steps and not progress["finished"]
    return 0 if on_the_way else order.more_steps or 0


def changed_machine(directory: RunDirectory, machine: Machine) -> list[str]:
    """Return one phrase for each choice of `machine` that the last sitting had not.

    The lines on attention are long, and the present ones have just been said.
    """
    sittings = earlier_sittings(directory.provenance)
    if not sittings:
        return []
    now, before = machine.describe(), sittings[-1]
    differs = [key for key in now if before.get(key, now[key]) != now[key]]
    return [
        "other attention kernels"
        if key == "attention"
        else f"{key} {before.get(key)} -> {now[key]}"
        for key in differs
    ]


def assemble(
    order: Order,
    directory: RunDirectory,
    material: Material,
    machine: Machine,
    reporter: Reporter,
) -> Run:
    """Build the run, and say what is trained on what, and how. Writes nothing."""
    run = Run(
        directory=directory,
        settings=order.settings,
        learner=build_learner(order.settings, material, machine),
        tokenizer=material.tokenizer,
        corpus=material.corpus,
        valid=material.valid,
        identity=material.identify(order.settings),
        progress=Progress(more_steps=order.more_steps),
        clock=Clock(order.started),
        metrics=metrics_of(order.settings, directory, machine.ranks),
    )
    for line in describe_material(material, order):
        reporter.on_note(line)
    for line in describe_learner(run, machine):
        reporter.on_note(line)
    return run


def metrics_of(settings: Settings, directory: RunDirectory, ranks: Ranks) -> Metrics:
    """Return the records of a run; the first rank alone writes them, and shows them if asked to."""
    if not ranks.first:
        return Metrics(None)
    board = Board(directory.board) if settings.training.tensorboard else None
    return Metrics(directory.metrics, board)


def build_learner(settings: Settings, material: Material, machine: Machine) -> Learner:
    """Build a network, whose first weights follow from the seed, with its optimizer."""
    torch.manual_seed(settings.training.seed)
    model = build_model(settings, material.tokenizer).to(machine.device)
    model.use_attention(machine.plan)
    return Learner.create(
        model,
        settings.training,
        device=machine.device,
        dtype=machine.dtype,
        ranks=machine.ranks,
    )


def begin(run: Run, material: Material, machine: Machine) -> None:
    """Write the first files. Provenance comes first: it marks the directory as a run's."""
    record(run, material, machine)
    run.tokenizer.save(run.directory.tokenizer)
    run.start()


def record(run: Run, material: Material, machine: Machine) -> None:
    """Write provenance and settings."""
    write_provenance(
        run.directory.provenance,
        run.settings,
        tokenizer=run.tokenizer.fingerprint,
        train=material.train_record,
        valid=material.valid_record,
        sitting={"from_step": run.progress.step, **machine.describe()},
    )
    with atomic_writer(run.directory.config) as file:
        file.write(run.settings.to_toml())


def describe_learner(run: Run, machine: Machine) -> Iterator[str]:
    """Yield lines that tell how large the network is and how it computes."""
    chosen = machine.describe()
    parameters = run.learner.model.num_parameters
    yield f"model: {parameters:,} parameters, on {chosen['device']} in {chosen['precision']}"
    if machine.ranks.size > 1:
        yield f"{machine.ranks.size} processes: a step takes so many batches, one of each"
    yield from chosen["attention"]
    if run.settings.training.compile:
        yield "layers: compiled; the first steps may take a minute for that"
    if run.valid is None:
        mean = "moving average" if run.learner.average else "mean of the last checkpoints"
        yield f"no --valid corpus: no BLEU while it trains, no patience; the model is the {mean}"
