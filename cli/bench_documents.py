"""`tfm bench documents`: what full, local and linear encoders make of long documents."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.bench_attention import names, numbers, write
from tfm.cli.config import load_settings
from tfm.cli.options import Config, Debug, Device, Json, Precision, Seed, Set
from tfm.cli.train import carry_out
from tfm.data.errors import OptionError
from tfm.data.places import require_directory

if TYPE_CHECKING:
    from tfm.model.attention.forms import AttentionForm
    from tfm.model.benchmarks.documents import Experiment
    from tfm.model.training.material import Order

Kinds = Annotated[
    str, typer.Option("--encoders", metavar="LIST", help="Which of full, local and linear.")
]
Lengths = Annotated[
    str,
    typer.Option("--lengths", metavar="LIST", help="Numbers of sentences to measure at."),
]
Longest = Annotated[
    int,
    typer.Option(
        "--longest",
        min=3,
        metavar="S",
        help="Sentences of the longest documents to train on; up to these, quality is measured.",
    ),
]
Documents = Annotated[
    int, typer.Option("--documents", min=1, metavar="N", help="Documents to train on.")
]
Tested = Annotated[
    int, typer.Option("--tested", min=1, metavar="N", help="Documents to translate at each length.")
]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, metavar="N", help="Steps to train each form for.")
]
Directory = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Where models and report are put.")
]


def bench_documents(
    config: Config = "documents",
    set_: Set = None,
    encoders: Kinds = "full,local,linear",
    lengths: Lengths = "4,8,32,128,512",
    longest: Longest = 8,
    documents: Documents = 10_000,
    tested: Tested = 200,
    steps: Steps = None,
    seed: Seed = None,
    output: Directory = Path("runs/documents"),
    device: Device = "auto",
    precision: Precision = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train each form of encoder attention on built-in documents, and compare them.

    A document opens with a thing and closes with two sentences that call it "it": ihn, sie or es in
    German, by the gender of the noun far above. Quality is BLEU of greedy translations, and how
    many of these pronouns are right. Time and peak memory are those of one document, forward and
    backward: of the encoder, where the forms differ, and of the whole network, whose decoder always
    has full attention. The window of local attention is model.window; with model.full_every every
    so many layers are full.

    DIR gets a model directory for each form, documents.json and documents.svg. Repeated, the
    command goes on where it stopped.
    """
    from tfm.model.benchmarks.documents import KINDS, Experiment, measure_kind
    from tfm.model.benchmarks.documents_report import Report, chart, table

    require_directory(output)
    experiment = Experiment(
        settings=load_settings(config, set_, steps=steps, seed=seed),
        documents=documents,
        longest=longest,
        lengths=sorted(numbers(lengths, "--lengths")),
        tested=tested,
    )
    require_sizes(experiment)
    asked = names(encoders, KINDS, "--encoders")
    kinds = [kind for kind in KINDS if kind in asked]
    orders = {
        kind: order_of(kind, experiment, output, kinds[0], device=device, precision=precision)
        for kind in kinds
    }
    rows = []
    for kind, order in orders.items():
        carry_out(order)
        for row in measure_kind(kind, experiment, order):
            console.note(f"{kind}: documents of {row.sentences:,} sentences are measured")
            rows.append(row)
    report = Report(rows, conditions(experiment, next(iter(orders.values()))))
    found = json.dumps(report.to_json())
    write(output, {"documents.json": found, "documents.svg": chart(report)})
    print(found if as_json else table(report), end="\n" if as_json else "")


def require_sizes(experiment: "Experiment") -> None:
    """Refuse more than there is, before a model is trained that could not be measured.

    Raises:
        OptionError: names the option, the value and what it must be.
    """
    from tfm.data.builtin.documents import FRAME, MOST_DOCUMENTS, MOST_SENTENCES

    lengths = experiment.lengths
    for option, number, least, most in (
        ("--lengths", min(lengths), FRAME, MOST_SENTENCES),
        ("--lengths", max(lengths), FRAME, MOST_SENTENCES),
        ("--longest", experiment.longest, FRAME, MOST_SENTENCES),
        ("--documents", experiment.documents, 1, MOST_DOCUMENTS),
        ("--tested", experiment.tested, 1, MOST_DOCUMENTS),
    ):
        if not least <= number <= most:
            raise OptionError(f"{option} {number}: must be from {least} to {most:,}")


def order_of(
    kind: "AttentionForm",
    experiment: "Experiment",
    output: Path,
    first: str,
    *,
    device: str,
    precision: str,
) -> "Order":
    """Return what trains one kind; the tokenizer is that of the first kind, once there is one."""
    from tfm.model.training.directory import RunDirectory
    from tfm.model.training.material import Order

    return Order(
        settings=experiment.settings_of(kind),
        train=experiment.corpus,
        valid=None,
        directory=output / kind,
        tokenizer=None if kind == first else RunDirectory(output / first).tokenizer,
        device=device,
        precision=precision,
    )


def conditions(experiment: "Experiment", order: "Order") -> dict[str, Any]:
    """Describe the run: what its figures depend on besides the rows."""
    import torch

    from tfm.model.training.recipe import Machine

    machine = Machine.choose(order).describe()
    settings = order.settings
    return {
        **{name: machine[name] for name in ("device", "precision", "threads")},
        "torch": torch.__version__,
        "train": experiment.corpus,
        "tested": experiment.tested,
        "search": "greedy",
        "steps": settings.training.steps,
        "batch_tokens": settings.training.batch_tokens,
        "seed": settings.training.seed,
        "window": settings.model.window,
        "full_every": settings.model.full_every,
        "model": asdict(replace(settings.model, encoder_attention="full")),
    }
