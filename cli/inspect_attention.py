"""`tfm inspect-attention`: what each translated word looks at, on the terminal and in files."""

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tfm.cli import console
from tfm.cli.config import load_settings, load_translator, model_config
from tfm.cli.options import (
    Attention,
    Beam,
    Debug,
    Device,
    Json,
    Model,
    OutputDirectory,
    Precision,
    Set,
)
from tfm.data.errors import BackendError
from tfm.data.places import require_directory

if TYPE_CHECKING:
    from tfm.model.inspection.export import Format
    from tfm.model.inspection.report import AttentionReport

Text = Annotated[str, typer.Argument(metavar="TEXT", help="A sentence in the source language.")]
TargetText = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="TEXT", help="Look at this translation instead of the model's own."
    ),
]
Layer = Annotated[
    int | None,
    typer.Option(
        "--layer", metavar="N", help="Decoder layer to show: 1, 2...; else the one that aligns."
    ),
]
Head = Annotated[
    int | None, typer.Option("--head", metavar="N", help="Head to show: 1, 2...; else their mean.")
]
Formats = Annotated[
    str,
    typer.Option("--format", metavar="LIST", help="Files to write with -o: npz,json,svg,png."),
]
DEFAULT_FORMATS = "npz,json,svg"


def inspect_attention(
    model: Model,
    text: Text,
    *,
    target: TargetText = None,
    output: OutputDirectory = None,
    layer: Layer = None,
    head: Head = None,
    format_: Formats = DEFAULT_FORMATS,
    beam: Beam = None,
    set_: Set = None,
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Translate TEXT and show which source words each target word attends to.

    The weights are computed once more in fp32 and checked against the attention that translated.
    -o DIR writes all layers and heads of encoder, decoder and cross-attention: numbers (npz, json)
    and pictures (svg, png).
    """
    from tfm.model.inspection.export import dump_json, to_json, write_report
    from tfm.model.inspection.report import Origin
    from tfm.model.inspection.report import inspect_attention as inspect

    formats = _parse_formats(format_)
    require_directory(output)
    settings = load_settings(model_config(model), set_, beam=beam)
    translator = load_translator(
        model, settings, device=device, precision=precision, attention=attention
    )
    report = inspect(translator, text, target, layer=layer, head=head)
    _require_verified(report)
    report = replace(report, origin=Origin.of(model))
    files = [] if output is None else write_report(report, output, formats=formats)
    if as_json:
        print(dump_json(to_json(report, maps=None)), end="")
    else:
        print(_as_text(report))
    if output is not None:
        console.note(f"wrote to {output}: {', '.join(path.name for path in files)}")


def _as_text(report: "AttentionReport") -> str:
    from tfm.model.inspection import terminal

    return "\n\n".join(
        [
            report.target.text,
            terminal.attention_map(report, width=shutil.get_terminal_size().columns),
            f"alignment (source-target): {terminal.alignment_text(report)}",
            terminal.verification_text(report),
        ]
    )


def _parse_formats(text: str) -> "list[Format]":
    from tfm.model.inspection.export import FORMATS

    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is none of {', '.join(FORMATS)}", param_hint="--format"
        )
    return [format_ for format_ in FORMATS if format_ in names]


def _require_verified(report: "AttentionReport") -> None:
    check = report.capture.verification
    if not check.passed:
        raise BackendError(
            f"attention by {report.backend} differs from its formula by "
            f"{check.relative:.1e} of the largest value (rounding explains {check.tolerance:.0e}): "
            "no map is shown; try --attention math and report this"
        )
