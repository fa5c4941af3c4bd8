"""`tfm translate`: a filter of lines."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.config import load_settings, load_translator, model_config
from tfm.cli.decoding import with_decoding_flags
from tfm.cli.layouts import Layout, layout_of
from tfm.cli.options import (
    Attention,
    Beam,
    Debug,
    Device,
    Ensemble,
    Json,
    LengthPenalty,
    Mbr,
    Model,
    NBest,
    Output,
    Precision,
    Set,
)
from tfm.cli.records import Record, json_record, text_record
from tfm.data.errors import DataError
from tfm.data.lines import arriving_parsed, read_parsed, text_output

if TYPE_CHECKING:
    from tfm.model.translator import Translator

# Lines that are sorted by length together: few at first, so that whoever waits sees the first ones
# soon, and twice as many each time, which is quicker.
FIRST_WINDOW, WINDOW = 64, 4096

Input = Annotated[
    Path | None,
    typer.Option("--input", "-i", metavar="FILE", help="Read there (.gz .xz .zst), not on stdin."),
]
Scores = Annotated[bool, typer.Option("--scores", help="Write the score and a tab before each.")]
Jsonl = Annotated[
    bool,
    typer.Option(
        "--jsonl",
        help="Read a JSON object a line, as from --input FILE.jsonl: its `source` is translated, "
        "the other fields are carried through; writes as --json does.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first record that is bad.")]
MaxLength = Annotated[
    int | None,
    typer.Option("--max-length", metavar="N", help="Most pieces to write (decoding.max_length)."),
]
Text = Annotated[
    bool, typer.Option("--text", help="Write lines of text, though JSON objects are read.")
]


@with_decoding_flags
def translate(
    model: Model,
    input_: Input = None,
    output: Output = None,
    beam: Beam = None,
    n_best: NBest = 1,
    scores: Scores = False,
    as_json: Json = False,
    jsonl: Jsonl = False,
    text: Text = False,
    strict: Strict = False,
    length_penalty: LengthPenalty = None,
    mbr: Mbr = None,
    max_length: MaxLength = None,
    set_: Set = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    debug: Debug = False,
    **decoding: Any,
) -> None:
    """Translate each line of stdin (or --input) to a line of stdout (or --output).

    --n-best N writes N lines for each line read: its place counted from 0, translation and score,
    as in `0 ||| Ein Hund. ||| -0.2316`. --json (or -o FILE.jsonl) writes one object for each line
    read: source, translation, log_probability, score, tokens, truncated, n_best. With --jsonl each
    record read gives one record, or with --text a line; a bad one gets a field `error`, or a blank
    line, and the exit code is 1. A hypothesis of n pieces, end of sentence included, scores
    log P(translation | source) / n^length_penalty.

    With --mbr chrf the translations come by expected chrF, not by score; in JSON it is `utility`.
    """
    jsonl = jsonl or _is_jsonl(input_)
    _check_usage(jsonl=jsonl, as_json=as_json, text=text, strict=strict)
    as_json = as_json or _is_jsonl(output) or (jsonl and not text)
    if as_json and scores:
        raise typer.BadParameter("--scores is for lines of text; JSON has the scores anyway")
    flags = {"beam": beam, "length_penalty": length_penalty, "max_length": max_length, "mbr": mbr}
    settings = load_settings(model_config(model), set_, **flags, **decoding)
    machine = {"device": device, "precision": precision, "attention": attention}
    translator = load_translator(model, settings, ensemble=ensemble, **machine)
    language = translator.settings.data.source
    layout = layout_of(as_json=as_json, n_best=n_best, scores=scores)
    parse = _parser(input_, jsonl=jsonl, language=language)
    started = time.perf_counter()
    with text_output(output) as file:
        batches = _batches(input_, parse, prompt=f"{language}> ")
        tally = _run(translator, batches, file, layout, n_best=n_best, strict=strict)
    tally.tell(time.perf_counter() - started)
    if tally.bad:
        remedy = "a blank line stands for each" if text else "each has a field `error`"
        raise DataError(f"records that could not be translated: {tally.bad:,}; {remedy}")


def _check_usage(*, jsonl: bool, as_json: bool, text: bool, strict: bool) -> None:
    if strict and not jsonl:
        raise typer.BadParameter("--strict is for --jsonl; a line of text is never bad")
    if text and not jsonl:
        raise typer.BadParameter("--text is for --jsonl; lines of text give text anyway")
    if text and as_json:
        raise typer.BadParameter("--text and --json ask for different things")


@dataclass
class Tally:
    """What has been written so far."""

    records: int = 0
    truncated: int = 0
    bad: int = 0

    def tell(self, seconds: float) -> None:
        """Say how many and how fast, and how many were cut."""
        noun = "line" if self.records == 1 else "lines"
        speed = self.records / seconds
        console.note(f"{self.records:,} {noun} in {seconds:.1f} s, {speed:.1f} lines/s")
        if self.truncated:
            console.warn(
                f"translations cut at the maximum length: {self.truncated:,} (see "
                "decoding.max_length and decoding.max_length_ratio)"
            )


def _run(
    translator: "Translator",
    batches: Iterable[list[Record]],
    file: IO[str],
    layout: Layout,
    *,
    n_best: int,
    strict: bool,
) -> Tally:
    """Translate and write batch by batch; whoever reads the pipe gets what is done."""
    tally = Tally()
    for records in batches:
        translations = translator.translate_all([r.request for r in records], n_best=n_best)
        for record, translation in zip(records, translations, strict=True):
            if record.error is not None and strict:
                raise DataError(record.error)
            file.write(layout(tally.records, record, translation))
            tally.records += 1
            tally.truncated += translation.truncated
            tally.bad += record.error is not None
        file.flush()
    return tally


def _is_jsonl(path: Path | None) -> bool:
    return path is not None and ".jsonl" in path.suffixes[-2:]


def _parser(path: Path | None, *, jsonl: bool, language: str) -> Callable[[bytes, int], Record]:
    if jsonl:
        return partial(json_record, language=language)
    return partial(text_record, where="stdin" if _is_stdin(path) else str(path))


def _is_stdin(path: Path | None) -> bool:
    return path is None or str(path) == "-"


def _batches(
    path: Path | None, parse: Callable[[bytes, int], Record], *, prompt: str
) -> Iterator[list[Record]]:
    if path is not None and not _is_stdin(path):
        return _windows(read_parsed(path, parse))
    arriving = arriving_parsed(sys.stdin.buffer, parse)
    return _prompted(arriving, prompt) if sys.stdin.isatty() else arriving


def _windows(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yield lists of FIRST_WINDOW records, then of up to WINDOW; those before bad UTF-8 too."""
    window: list[Record] = []
    size = FIRST_WINDOW
    try:
        for record in records:
            window.append(record)
            if len(window) == size:
                yield window
                window, size = [], min(2 * size, WINDOW)
    except DataError:
        if window:
            yield window
        raise
    if window:
        yield window


def _prompted(batches: Iterator[list[Record]], prompt: str) -> Iterator[list[Record]]:
    """Ask for each batch on the terminal, so that it does not seem to hang."""
    while True:
        print(prompt, end="", file=sys.stderr, flush=True)
        batch = next(batches, None)
        if batch is None:
            print(file=sys.stderr)
            return
        yield batch
