"""The recipe: from what the user asks for to a `Run` that is ready to train or to go on.

Everything that can fail cheaply does so before the first file is written.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tfm.data.lines import atomic_writer
from tfm.model.attention.choice import AttentionPlan, resolve
from tfm.model.checkpoint import build_model
from tfm.model.device import PRECISIONS, resolve_device, resolve_precision
from tfm.model.settings import Settings
from tfm.model.tensor_file import Stored, read_tensors
from tfm.model.training.directory import RunDirectory, holds_run
from tfm.model.training.identity import changes, require_same_run, write_provenance
from tfm.model.training.material import Material, Order, describe_material, gather
from tfm.model.training.metrics import Metrics
from tfm.model.training.reporting import Reporter
from tfm.model.training.run import Run
from tfm.model.training.state import Progress
from tfm.model.training.step import Learner


@dataclass(frozen=True)
class Machine:
    """Where, how precisely and with which attention the network computes."""

    device: torch.device
    dtype: torch.dtype
    plan: AttentionPlan

    @classmethod
    def choose(cls, order: Order) -> "Machine":
        """Resolve the names of `order`.

        Raises:
            BackendError: if one asked for by name cannot run here.
        """
        device = resolve_device(order.device)
        dtype = resolve_precision(order.precision, device, training=True)
        dropout = order.settings.model.attention_dropout
        plan = resolve(order.attention, device=device, dtype=dtype, dropout=dropout, training=True)
        return cls(device, dtype, plan)

    def describe(self) -> dict[str, Any]:
        """Return the choices for provenance.json; a GPU by its model."""
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else self.device.type
        precision = next(key for key, dtype in PRECISIONS.items() if dtype == self.dtype)
        attention = self.plan.describe()
        return {"device": name, "precision": precision, "attention": attention}


def prepare(order: Order, reporter: Reporter) -> Run:
    """Read the data and build the network; go on with the run in the directory if there is one.

    Raises:
        UserError: one line that says what is wrong with settings, corpora, machine or directory.
    """
    machine = Machine.choose(order)
    directory = RunDirectory(order.directory)
    resuming = holds_run(directory)
    of_run = directory.tokenizer if resuming and order.tokenizer is None else order.tokenizer
    material = gather(order, tokenizer=of_run, reporter=reporter)
    identity = material.identify(order.settings)
    stored = read_tensors(directory.last) if resuming else None
    if stored is not None:
        require_same_run(stored.header.get("identity", {}), identity, directory=directory.path)
    run = Run(
        directory=directory,
        settings=order.settings,
        learner=build_learner(order.settings, material, machine),
        tokenizer=material.tokenizer,
        corpus=material.corpus,
        valid=material.valid,
        identity=identity,
        progress=Progress(),
        metrics=Metrics(directory.metrics),
    )
    describe(run, material, machine, reporter)
    if stored is None:
        begin(run, material, machine)
    else:
        go_on(run, stored, material, machine, reporter)
    return run


def build_learner(settings: Settings, material: Material, machine: Machine) -> Learner:
    """Build a network, whose first weights follow from the seed, with its optimizer."""
    torch.manual_seed(settings.training.seed)
    model = build_model(settings, material.tokenizer).to(machine.device)
    model.use_attention(machine.plan)
    return Learner.create(model, settings.training, device=machine.device, dtype=machine.dtype)


def begin(run: Run, material: Material, machine: Machine) -> None:
    """Make the directory. Provenance comes first: it marks the directory as a run's."""
    run.directory.create()
    record(run, material, machine)
    run.tokenizer.save(run.directory.tokenizer)
    run.start()


def go_on(
    run: Run, stored: Stored, material: Material, machine: Machine, reporter: Reporter
) -> None:
    """Restore the state, and say what differs from before."""
    before = Settings.read(run.directory.config)
    run.resume(stored)
    if run.complete:
        return
    differences = changes(before, run.settings)
    if differences:
        reporter.on_note(f"changed from here on: {', '.join(differences)}")
    run.directory.create()
    record(run, material, machine)
    reporter.on_note(f"continuing after step {run.progress.step:,}")


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


def describe(run: Run, material: Material, machine: Machine, reporter: Reporter) -> None:
    """Say what is trained on what, and how."""
    for line in describe_material(material, run.settings):
        reporter.on_note(line)
    parameters = sum(p.numel() for p in run.learner.model.parameters())
    chosen = machine.describe()
    reporter.on_note(
        f"model: {parameters:,} parameters, on {chosen['device']} in {chosen['precision']}"
    )
    for line in chosen["attention"]:
        reporter.on_note(line)
    if run.valid is None:
        reporter.on_note(
            "no --valid corpus: no BLEU and no patience; the model is the mean of the last "
            "checkpoints"
        )
