"""`tfm translate`: a filter of lines."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.config import load_settings, load_translator, model_config
from tfm.cli.options import (
    Attention,
    Beam,
    Debug,
    Device,
    Ensemble,
    Json,
    LengthPenalty,
    Model,
    NBest,
    Output,
    Precision,
    Set,
)
from tfm.cli.records import dump_record, read_record
from tfm.data.errors import DataError
from tfm.data.lines import arriving_lines, read_lines, text_output

if TYPE_CHECKING:
    from tfm.model.translator import Translation, Translator

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
Layout = Callable[[int, "Translation"], str]  # the place of a line, and its translation


def translate(
    model: Model,
    input_: Input = None,
    output: Output = None,
    beam: Beam = None,
    n_best: NBest = 1,
    scores: Scores = False,
    as_json: Json = False,
    jsonl: Jsonl = False,
    strict: Strict = False,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    set_: Set = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    debug: Debug = False,
) -> None:
    """Translate each line of stdin (or --input) to a line of stdout (or --output).

    --n-best N writes N lines for each line read: its place counted from 0, translation and score,
    as in `0 ||| Ein Hund. ||| -0.2316`. --json writes one object for each line read: source,
    translation, log_probability, score, tokens, truncated, n_best. With --jsonl each record read
    gives one record; a bad one gets a field `error`, and the exit code is 1. A hypothesis of n
    pieces, end of sentence included, scores log P(translation | source) / n^length_penalty.
    """
    jsonl = jsonl or _is_jsonl(input_)
    if jsonl and scores:
        raise typer.BadParameter("--scores is for lines of text; JSON has the scores anyway")
    if strict and not jsonl:
        raise typer.BadParameter("--strict is for --jsonl; a line of text is never bad")
    flags = {"beam": beam, "length_penalty": length_penalty, "max_length": max_length}
    settings = load_settings(model_config(model), set_, **flags)
    machine = {"device": device, "precision": precision, "attention": attention}
    translator = load_translator(model, settings, ensemble=ensemble, **machine)
    with text_output(output) as file:
        batches = _batches(input_, prompt=f"{settings.data.source}> ")
        if jsonl:
            bad = _run_records(translator, batches, file, n_best, strict)
        else:
            bad = 0
            _run(translator, batches, file, _layout(n_best, scores, as_json), n_best)
    if bad:
        raise DataError(f"records that could not be translated: {bad:,}; each has a field `error`")


def _run(
    translator: "Translator",
    batches: Iterable[list[str]],
    file: IO[str],
    layout: Layout,
    n_best: int,
) -> None:
    """Translate and write batch by batch; whoever reads the pipe gets what is done."""
    started = time.perf_counter()
    lines = truncated = 0
    for translations in translator.stream(batches, n_best=n_best):
        file.writelines(layout(lines + i, each) for i, each in enumerate(translations))
        file.flush()
        lines += len(translations)
        truncated += sum(each.truncated for each in translations)
    _tell(lines, truncated, time.perf_counter() - started)


def _tell(lines: int, truncated: int, seconds: float) -> None:
    noun = "line" if lines == 1 else "lines"
    console.note(f"{lines:,} {noun} in {seconds:.1f} s, {lines / seconds:.1f} lines/s")
    if truncated:
        console.warn(
            f"translations cut at the maximum length: {truncated:,} (see decoding.max_length and "
            "decoding.max_length_ratio)"
        )


def _is_jsonl(path: Path | None) -> bool:
    return path is not None and ".jsonl" in path.suffixes[-2:]


def _run_records(
    translator: "Translator",
    batches: Iterable[list[str]],
    file: IO[str],
    n_best: int,
    strict: bool,
) -> int:
    """Translate and write records batch by batch; return how many were bad."""
    language = translator.settings.data.source
    started = time.perf_counter()
    number = bad = truncated = 0
    for lines in batches:
        records = [
            read_record(line, place=f"record {number + i}", language=language)
            for i, line in enumerate(lines, start=1)
        ]
        number += len(records)
        translations = translator.translate_all([r.source for r in records], n_best=n_best)
        for record, translation in zip(records, translations, strict=True):
            if record.error is not None and strict:
                raise DataError(record.error)
            added = _fields(translation) if record.error is None else {"error": record.error}
            bad += record.error is not None
            truncated += translation.truncated
            file.write(dump_record(record.fields | added))
        file.flush()
    _tell(number, truncated, time.perf_counter() - started)
    return bad


def _batches(path: Path | None, *, prompt: str) -> Iterator[list[str]]:
    if path is not None and str(path) != "-":
        return _windows(read_lines(path))
    arriving = arriving_lines(sys.stdin.buffer, where="stdin")
    return _prompted(arriving, prompt) if sys.stdin.isatty() else arriving


def _windows(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yield lists of FIRST_WINDOW lines, then of up to WINDOW; good lines before a bad one too."""
    window: list[str] = []
    size = FIRST_WINDOW
    try:
        for line in lines:
            window.append(line)
            if len(window) == size:
                yield window
                window, size = [], min(2 * size, WINDOW)
    except DataError:
        if window:
            yield window
        raise
    if window:
        yield window


def _prompted(batches: Iterator[list[str]], prompt: str) -> Iterator[list[str]]:
    """Ask for each batch on the terminal, so that it does not seem to hang."""
    while True:
        print(prompt, end="", file=sys.stderr, flush=True)
        batch = next(batches, None)
        if batch is None:
            print(file=sys.stderr)
            return
        yield batch


def _layout(n_best: int, scores: bool, as_json: bool) -> Layout:
    if as_json:
        return _as_json
    if n_best > 1:
        return _as_list
    return _with_score if scores else _as_text


def _as_text(place: int, translation: "Translation") -> str:
    return f"{translation.text}\n"


def _with_score(place: int, translation: "Translation") -> str:
    return f"{translation.score:.4f}\t{translation.text}\n"


def _as_list(place: int, translation: "Translation") -> str:
    rows = [f"{place} ||| {each.text} ||| {each.score:.4f}\n" for each in translation.n_best]
    return "".join(rows)


def _as_json(place: int, translation: "Translation") -> str:
    return dump_record({"source": translation.source} | _fields(translation))


def _fields(translation: "Translation") -> dict[str, Any]:
    """Return what a record says about its translation."""
    best, *_ = rows = [
        {"translation": each.text}
        | {k: v for k, v in asdict(each).items() if k not in ("text", "ids")}
        for each in translation.n_best
    ]
    return best | {"n_best": rows}
