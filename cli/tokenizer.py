"""`tfm tokenizer`: train a tokenizer, and two filters that show what it makes of text."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tfm.cli import console
from tfm.cli.config import load_settings
from tfm.cli.options import Config, Debug, Json, Set, Source, Target
from tfm.data.errors import DataError
from tfm.data.lines import arriving_lines

if TYPE_CHECKING:
    from tfm.data.pieces import PieceModel
    from tfm.data.tokenizer import TokenizerReport

MEASURED = 10_000  # pairs at the start of the corpus that the figures printed are taken from

tokenizer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Corpus = Annotated[str, typer.Option("--train", metavar="CORPUS", help="Pairs to train on.")]
ModelFile = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Model to write, as in m30k.model.")
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Tokenizer file, or a model directory.")
]
Side = Annotated[
    Literal["source", "target"],
    typer.Option("--side", help="Which of two separate vocabularies; a joint one has no sides."),
]
Ids = Annotated[bool, typer.Option("--ids", help="Numbers instead of pieces.")]


@tokenizer.command(
    "train",
    short_help="Train a tokenizer on a corpus.",
    epilog="Example: tfm tokenizer train --train data/train -o mine.model",
)
def train(
    train: Corpus,
    output: ModelFile,
    config: Config = None,
    set_: Set = None,
    source: Source = None,
    target: Target = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a SentencePiece tokenizer on the text of a corpus, and say how well it fits.

    A CORPUS is PREFIX (two files, PREFIX.en and PREFIX.de), a .tsv, .csv, .jsonl or .parquet file,
    hf:NAME or builtin[:N]; `tfm train --help` says more.
    """
    from tfm.data.corpus import read_pairs
    from tfm.data.tokenizer import train_tokenizer

    settings = load_settings(config, set_, source=source, target=target)
    data = settings.data
    pairs = read_pairs(train, source=data.source, target=data.target, split="train")
    trained = train_tokenizer(pairs, settings.tokenizer)
    trained.save(output)
    if trained.note:
        console.note(trained.note)
    pairs = read_pairs(train, source=data.source, target=data.target, split="train")
    report = trained.measure(list(islice(pairs, MEASURED)))
    if as_json:
        print(_as_json(report, trained.note))
    else:
        print(_as_text(report, (data.source, data.target)))


@tokenizer.command(
    "encode",
    short_help="Text to pieces, line by line.",
    epilog="Example: tfm tokenizer encode mine.model < in.en",
)
def encode(model: Model, side: Side = "source", ids: Ids = False, debug: Debug = False) -> None:
    """Read text on stdin and write the pieces of each line, a space between them.

    A piece shows a space as U+2581 and a byte as <0xE2>.
    """
    pieces = _load(model, side)
    for lines in _stdin_lines():
        encoded = pieces.encode_batch(lines)
        _write(" ".join(map(str, line) if ids else pieces.pieces(line)) for line in encoded)


@tokenizer.command(
    "decode",
    short_help="Pieces to text, line by line.",
    epilog="Example: tfm tokenizer decode mine.model < in.pieces",
)
def decode(model: Model, side: Side = "source", ids: Ids = False, debug: Debug = False) -> None:
    """Read pieces (or ids) on stdin and write the text of each line: the inverse of encode."""
    pieces = _load(model, side)
    number = 0
    for lines in _stdin_lines():
        numbered = enumerate(lines, number + 1)
        _write(_to_text(pieces, line, ids=ids, where=f"stdin, line {n}") for n, line in numbered)
        number += len(lines)


def _load(path: Path, side: Literal["source", "target"]) -> "PieceModel":
    from tfm.data.tokenizer import Tokenizer

    loaded = Tokenizer.load(path / "tokenizer.model" if path.is_dir() else path)
    return loaded.source if side == "source" else loaded.target


def _stdin_lines() -> Iterator[list[str]]:
    return arriving_lines(sys.stdin.buffer, where="stdin")


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()  # whoever reads the pipe gets what is done


def _to_text(pieces: "PieceModel", line: str, *, ids: bool, where: str) -> str:
    to_id = _parse_id if ids else _parse_piece
    text = pieces.decode([to_id(pieces, name, where) for name in line.split(" ") if name])
    if "\n" in text:
        raise DataError(f"{where}: decodes to more than one line")
    return text


def _parse_id(pieces: "PieceModel", name: str, where: str) -> int:
    # No id is so long, and Python refuses to convert thousands of digits.
    number = name.isascii() and name.isdigit() and len(name) < 20
    if not (number and int(name) < len(pieces)):
        largest = len(pieces) - 1
        raise DataError(f"{where}: {name!r:.40} is not an id; ids go from 0 to {largest}")
    return int(name)


def _parse_piece(pieces: "PieceModel", name: str, where: str) -> int:
    if (i := pieces.id_of(name)) is None:
        raise DataError(f"{where}: {name!r:.40} is not a piece of this vocabulary (ids: --ids)")
    return i


def _as_json(report: "TokenizerReport", note: str | None) -> str:
    sides = {"source": report.source._asdict(), "target": report.target._asdict()}
    return json.dumps({"joint": report.joint, "note": note, "pairs": report.pairs} | sides)


def _as_text(report: "TokenizerReport", languages: tuple[str, str]) -> str:
    sides = (report.source, report.target)
    kind = "joint" if report.joint else "separate"
    rows = [
        ("", *languages),
        (f"vocabulary ({kind})", *(str(side.size) for side in sides)),
        ("pieces per word", *(f"{side.pieces_per_word:.2f}" for side in sides)),
        ("unknown pieces", *(f"{side.unknown_rate:.2%}" for side in sides)),
        ("byte pieces", *(f"{side.byte_rate:.2%}" for side in sides)),
        ("round trip", *(f"{side.round_trip_rate:.2%}" for side in sides)),
    ]
    lines = [f"{name:20}{source:>10}{target:>10}" for name, source, target in rows]
    read = "the only pair" if report.pairs == 1 else f"the first {report.pairs} pairs"
    return "\n".join([*lines, f"measured on {read}"])
