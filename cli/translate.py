"""`tfm translate`: a filter of lines."""

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli.config import load_settings, load_translator, model_config
from tfm.cli.decoding import require_effect, with_decoding_flags
from tfm.cli.interactive import converse
from tfm.cli.layouts import formats_of, layout_of
from tfm.cli.options import (
    Attention,
    Beam,
    Debug,
    Device,
    Ensemble,
    Json,
    LengthPenalty,
    MaxLength,
    Mbr,
    Model,
    NBest,
    Output,
    Precision,
    Quantize,
    Set,
)
from tfm.cli.records import Parse, Record, json_record, text_record
from tfm.cli.shared_job import Shared, has_company, require_files, translate_together
from tfm.cli.translation_job import Job, Tally, windows
from tfm.data.lines import arriving_parsed, read_lines, read_parsed, text_output
from tfm.data.places import require_readable, require_writable

if TYPE_CHECKING:
    from tfm.model.translator import Translator

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
Text = Annotated[
    bool, typer.Option("--text", help="Write lines of text, though JSON objects are read.")
]
Alignment = Annotated[
    bool,
    typer.Option(
        "--alignment",
        help="Add which source words each word was read from, in JSON; takes one more pass.",
    ),
]
PrefixFile = Annotated[
    Path | None,
    typer.Option(
        "--prefix-file",
        metavar="FILE",
        help="How the translation of each line of text begins, a line each; blank: as it likes.",
    ),
]
Interactive = Annotated[
    bool,
    typer.Option("--interactive", help="Read a line, show its translation while it grows."),
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
    alignment: Alignment = False,
    interactive: Interactive = False,
    prefix_file: PrefixFile = None,
    length_penalty: LengthPenalty = None,
    mbr: Mbr = None,
    max_length: MaxLength = None,
    set_: Set = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = "auto",
    quantize: Quantize = "none",
    attention: Attention = "auto",
    debug: Debug = False,
    **decoding: Any,
) -> None:
    """Translate each line of stdin (or --input) to a line of stdout (or --output).

    --n-best N writes N lines for each line read: its place counted from 0, translation and score,
    as in `0 ||| Ein Hund. ||| -0.2316`. --json (or -o FILE.jsonl) writes one object for each line
    read: source, translation, log_probability, score, tokens, truncated, n_best; with --mbr chrf
    utility too, the expected chrF by which they come. With --jsonl each record read gives one
    record, or with --text a line; a bad one gets a field `error`, or a blank line, and the exit
    code is 1. Its fields `prefix` (a string), `required` and `forbidden` (lists of strings) say how
    the translation begins, and which words it has and has not.
    """
    others = {"--input": input_, "--output": output, "--jsonl": jsonl, "--json": as_json}
    others |= {"--text": text, "--strict": strict, "--scores": scores, "--n-best": n_best > 1}
    _check_interactive(interactive, others, alignment=alignment, prefixes=prefix_file)
    jsonl, as_json = formats_of(input_, output, jsonl=jsonl, as_json=as_json, text=text)
    layout = layout_of(as_json=as_json, n_best=n_best, scores=scores, alignment=alignment)
    _check_reading(jsonl=jsonl, strict=strict, prefixes=prefix_file)
    decoding |= {"beam": beam, "length_penalty": length_penalty, "max_length": max_length}
    how: dict[str, Any] = {"device": device, "precision": precision, "attention": attention}

    def load() -> Job:
        _require_places(output, inputs=[input_, prefix_file])
        settings = load_settings(model_config(model), set_, mbr=mbr, **decoding)
        require_effect(settings.decoding, beam=beam, n_best=n_best)
        translator = load_translator(model, settings, ensemble=ensemble, quantize=quantize, **how)
        parse = _parser(translator, input_, jsonl=jsonl, prefixes=prefix_file)
        return Job(translator, parse, layout, n_best, alignment, strict)

    if has_company():
        options = [jsonl, as_json, scores, quantize, _fingerprint(prefix_file)]
        models = [model, *(ensemble or [])]
        shared = Shared(*require_files(input_, output), models, options, device)
        tally = translate_together(load, shared)
    else:
        tally = _translate(load(), input_, output, interactive=interactive)
    tally.require_good(blank=not as_json)


def _require_places(output: Path | None, *, inputs: Sequence[Path | None]) -> None:
    for path in inputs:
        require_readable(path)
    require_writable(output, inputs=inputs)


def _check_reading(*, jsonl: bool, strict: bool, prefixes: Path | None) -> None:
    if strict and not jsonl:
        raise typer.BadParameter("--strict is for --jsonl; a line of text is never bad")
    if prefixes and jsonl:
        raise typer.BadParameter("--prefix-file is for lines of text; a record has `prefix`")


def _check_interactive(
    interactive: bool, others: Mapping[str, object], *, alignment: bool, prefixes: Path | None
) -> None:
    """Refuse what does not go with --interactive; `others` are values of options by name."""
    given = {**others, "--alignment": alignment, "--prefix-file": prefixes}
    for name, value in given.items():
        if interactive and value:
            raise typer.BadParameter(
                f"--interactive and {name} do not go together: it shows one translation of each "
                "line of stdin"
            )


def _translate(job: Job, input_: Path | None, output: Path | None, *, interactive: bool) -> Tally:
    prompt = f"{job.translator.settings.data.source}> "
    if interactive:
        converse(job.translator, job.parse, prompt=prompt)
        return Tally()
    started = time.perf_counter()
    with text_output(output) as file:
        tally = _run(job, _batches(input_, job.parse, prompt=prompt), file)
    tally.tell(time.perf_counter() - started)
    return tally


def _run(job: Job, batches: Iterable[list[Record]], file: IO[str]) -> Tally:
    """Translate and write batch by batch; whoever reads the pipe gets what is done."""
    tally = Tally()
    for records in batches:
        job.write(records, file, tally)
        file.flush()
    return tally


def _parser(
    translator: "Translator", path: Path | None, *, jsonl: bool, prefixes: Path | None
) -> Parse:
    if jsonl:
        language = translator.settings.data.source
        possible = translator.require_possible
        return partial(json_record, language=language, require_possible=possible)
    where = "stdin" if _is_stdin(path) else str(path)
    lines = None if prefixes is None else list(read_lines(prefixes))
    return partial(text_record, where=where, prefixes=lines)


def _fingerprint(prefixes: Path | None) -> str | None:
    if prefixes is None:
        return None
    return hashlib.sha256("\n".join(read_lines(prefixes)).encode()).hexdigest()


def _is_stdin(path: Path | None) -> bool:
    return path is None or str(path) == "-"


def _batches(path: Path | None, parse: Parse, *, prompt: str) -> Iterator[list[Record]]:
    if path is not None and not _is_stdin(path):
        return windows(read_parsed(path, parse))
    arriving = arriving_parsed(sys.stdin.buffer, parse)
    return _prompted(arriving, prompt) if sys.stdin.isatty() else arriving


def _prompted(batches: Iterator[list[Record]], prompt: str) -> Iterator[list[Record]]:
    """Ask for each batch on the terminal, so that it does not seem to hang."""
    while True:
        print(prompt, end="", file=sys.stderr, flush=True)
        batch = next(batches, None)
        if batch is None:
            print(file=sys.stderr)
            return
        yield batch
