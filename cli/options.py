"""The options that verbs share, so that a name means the same everywhere.

A verb writes `beam: Beam = None`: None means not given, and the settings file decides.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from tfm.model.settings import presets


def _remember_debug(context: typer.Context, debug: bool) -> bool:
    """Tell the error boundary in `tfm.cli.main` to show tracebacks, wherever the flag stood."""
    run = context.find_root().obj
    if debug and run is not None:
        run.debug = True
    return debug


class More(int):
    """`--steps +N`: N steps more than are done."""


def _parse_steps(text: str) -> int:
    try:
        number = int(text)
    except ValueError:  # which Typer turns into wrong usage
        raise ValueError("must be a whole number, or +N for N more") from None
    return More(number) if text.startswith("+") else number


def _parse_time(text: str) -> float:
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    parts = [int(part or 0) for part in found.groups()] if found else [0]
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if not seconds:
        raise ValueError("must look like 90s, 30m or 1h30m, and be at least 1s")
    return float(seconds)


def _parse_device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,9})?", text):
        raise ValueError("must be auto, cpu, cuda or cuda:N")
    return text


# Settings
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE|PRESET",
        help=f"Settings: a TOML file or a preset ({', '.join(presets())}).",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable."),
]
DumpConfig = Annotated[
    bool, typer.Option("--dump-config", help="Print the resolved settings as TOML and stop.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what training would do and cost, after ten trial steps; write nothing.",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="N|+N",
        parser=_parse_steps,
        help="Steps to train for (training.steps); +N: so many more than the run has done.",
    ),
]
Time = Annotated[
    float | None,
    typer.Option(
        "--time",
        metavar="1h30m",
        parser=_parse_time,
        help="Train for so long in all, and end on time (training.time): 90s, 30m, 2h, 1h30m.",
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Seed of the run (training.seed).")
]
Beam = Annotated[
    int | None,
    typer.Option(
        "--beam", metavar="N", help="Width of the beam; 1 is greedy (decoding.beam; 5 if not set)."
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="A",
        help="A hypothesis of n pieces, end included, scores log P / n^A "
        "(decoding.length_penalty; 1 if not set).",
    ),
]
Mbr = Annotated[
    Literal["none", "chrf"] | None,
    typer.Option(
        "--mbr",
        help="Of all hypotheses of the beam, or as many samples, take the one with the highest "
        "expected chrF against the others: minimum Bayes risk (decoding.mbr; none if not set).",
    ),
]

MaxLength = Annotated[
    int | None,
    typer.Option("--max-length", metavar="N", help="Most pieces to write (decoding.max_length)."),
]

# Text
Train = Annotated[str | None, typer.Option("--train", metavar="CORPUS", help="Pairs to train on.")]
Valid = Annotated[
    str | None, typer.Option("--valid", metavar="CORPUS", help="Pairs that choose the best model.")
]
Source = Annotated[
    str | None, typer.Option("--source", metavar="LANG", help="Source language (data.source).")
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="LANG", help="Target language (data.target).")
]
NBest = Annotated[
    int, typer.Option("--n-best", min=1, metavar="N", help="Translations to give per line.")
]

# Places
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model directory, as `tfm train` leaves it.")
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="MODEL",
        help="Average the probabilities of each next piece with those of this model, which has the "
        "same tokenizer; repeatable.",
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there, not to stdout.")
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="Tokenizer to use; else one is trained."),
]
OutputDirectory = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Directory to write to.")
]

# The machine
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME", parser=_parse_device, help="auto, cpu, cuda or cuda:N."
    ),
]
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    typer.Option("--precision", help="Number format of the arithmetic."),
]
Quantize = Annotated[
    Literal["none", "int8"],
    typer.Option(
        "--quantize",
        help="int8: products in 8 bits, on a CPU; the rest stays in the --precision.",
    ),
]
Attention = Annotated[
    Literal["auto", "math", "sdpa", "flash"],
    typer.Option("--attention", help="Implementation of attention; auto says which it took."),
]

# The report
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the traceback of an error.",
        callback=_remember_debug,
        is_eager=True,
    ),
]
