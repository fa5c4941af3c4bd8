"""`tfm eval`: translate a test set and score it, or score a file of translations."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tfm.cli import console
from tfm.cli.config import load_settings, load_translator, model_config
from tfm.cli.console import log
from tfm.cli.decoding import require_effect, with_decoding_flags
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
    Output,
    Precision,
    Quantize,
    Set,
    Source,
    Target,
)
from tfm.data.errors import DataError
from tfm.data.lines import read_lines, text_output
from tfm.data.places import require_writable

if TYPE_CHECKING:
    from tfm.data.corpus import Pair
    from tfm.data.settings import DataSettings
    from tfm.model.evaluation import Scores
    from tfm.model.translator import Translator

Model = Annotated[
    Path | None,
    typer.Argument(metavar="MODEL", help="Model directory; not needed with --hypotheses."),
]
Test = Annotated[str, typer.Option("--test", metavar="CORPUS", help="Test set: pairs to score on.")]
Hypotheses = Annotated[
    str | None,
    typer.Option(
        "--hypotheses", metavar="FILE", help="Score this file, a line per pair; - is stdin."
    ),
]
PART = 512  # sentences translated between two steps of the progress bar


@with_decoding_flags
def evaluate(
    model: Model = None,
    *,
    test: Test,
    hypotheses: Hypotheses = None,
    output: Output = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    mbr: Mbr = None,
    max_length: MaxLength = None,
    source: Source = None,
    target: Target = None,
    set_: Set = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = "auto",
    quantize: Quantize = "none",
    attention: Attention = "auto",
    as_json: Json = False,
    debug: Debug = False,
    **decoding: Any,
) -> None:
    """Translate a test set and score it with sacrebleu: BLEU, chrF and TER, with signatures.

    Scores are of raw, detokenised text, cased if not said otherwise. -o writes the translations, a
    line per pair; -o - writes them to stdout, before the scores. With --quantize the test set is
    translated without it too, and what the 8 bits cost is said.

    A CORPUS is PREFIX (two files, PREFIX.en and PREFIX.de), a .tsv, .csv, .jsonl or .parquet file,
    hf:NAME or builtin[:N]; `tfm train --help` says more.
    """
    from tfm.data.corpus import files_of
    from tfm.model.evaluation import looks_tokenized, score

    decoding |= {"beam": beam, "length_penalty": length_penalty, "max_length": max_length}
    decoding |= {"mbr": mbr}
    _check_usage(model, hypotheses, {"output": output, "ensemble": ensemble, **decoding}, quantize)
    config = None if model is None else model_config(model)
    settings = load_settings(config, set_, source=source, target=target, **decoding)
    if model is not None:
        require_effect(settings.decoding, beam=beam)
    languages = {"source": settings.data.source, "target": settings.data.target}
    require_writable(output, inputs=files_of(test, **languages))
    pairs = _read_test(test, settings.data)  # whatever is wrong with it shows before decoding
    if hypotheses is not None:
        lines, conditions = _given(hypotheses, pairs)
    elif model is not None:
        machine: dict[str, Any] = {"device": device, "precision": precision, "attention": attention}
        load = partial(load_translator, model, settings, ensemble=ensemble, **machine)
        lines, conditions = _made(load, pairs, output, quantize)
        members = {"ensemble": [str(other) for other in ensemble]} if ensemble else {}
        conditions = {"model": str(model)} | members | conditions
    if looks_tokenized(lines):
        console.warn("the translations look tokenised (` .`), but scores are of raw text only")
    scores = score(lines, [pair.target for pair in pairs])
    _report(scores, {"test": test} | conditions, as_json=as_json)


def _report(scores: "Scores", conditions: Mapping[str, Any], *, as_json: bool) -> None:
    if "quantize" in conditions:
        difference = scores.bleu.value - conditions["bleu_without_quantize"]
        name = conditions["quantize"]
        console.note(f"difference in BLEU by --quantize {name}: {difference:+.2f}")
    if as_json:
        print(json.dumps({**conditions, **scores.to_json()}, ensure_ascii=False))
    else:
        print(scores.table())


def _check_usage(
    model: Path | None, hypotheses: str | None, flags: Mapping[str, object], quantize: str
) -> None:
    if model is None and hypotheses is None:
        raise typer.BadParameter("give a MODEL to translate with, or --hypotheses FILE to score")
    given = [name for name, value in flags.items() if value is not None and value != []]
    if quantize != "none":
        given.append("quantize")
    if hypotheses is not None and given:
        name = given[0].replace("_", "-")
        raise typer.BadParameter(f"--{name} is for translating, but --hypotheses translates none")


class Lines(NamedTuple):
    """Translations of a test set, and what is to be said of where they come from."""

    lines: list[str]
    conditions: dict[str, Any]


def _given(hypotheses: str, pairs: "Sequence[Pair]") -> Lines:
    from tfm.model.evaluation import require_equal_counts

    lines = list(read_lines(hypotheses))
    require_equal_counts(len(lines), len(pairs), where=hypotheses)
    return Lines(lines, {"hypotheses": hypotheses})


def _made(
    load: Callable[..., "Translator"],
    pairs: "Sequence[Pair]",
    output: Path | None,
    quantize: str,
) -> Lines:
    """Translate the sources; in 8 bits, once more without them, for the difference."""
    from tfm.model.evaluation import score

    translator = load(quantize=quantize)
    sources = [pair.source for pair in pairs]
    lines = _translate(translator, sources, output)
    conditions: dict[str, Any] = {"run": translator.describe()}
    conditions["decoding"] = asdict(translator.decoding)
    if quantize != "none":
        references = [pair.target for pair in pairs]
        exact = score(_translate(load(), sources, None), references).bleu.value
        conditions |= {"quantize": quantize, "bleu_without_quantize": exact}
    return Lines(lines, conditions)


def _read_test(corpus: str, data: "DataSettings") -> "list[Pair]":
    from tfm.data.corpus import read_pairs

    pairs = list(read_pairs(corpus, source=data.source, target=data.target, split="test"))
    if not pairs:
        raise DataError(f"{corpus}: has no pairs to score")
    for number, pair in enumerate(pairs, start=1):
        if pair.source.strip() and not pair.target.strip():
            raise DataError(
                f"{corpus}, pair {number}: the reference is blank, so nothing can match it; "
                "remove the pair or add its translation"
            )
    return pairs


def _translate(translator: "Translator", sources: Sequence[str], output: Path | None) -> list[str]:
    """Translate `sources`, which `output` gets as a whole; progress shows on a terminal."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    parts = [sources[start : start + PART] for start in range(0, len(sources), PART)]
    lines: list[str] = []
    truncated = 0
    with (
        nullcontext() if output is None else text_output(output) as file,
        Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as progress,
    ):
        task = progress.add_task("translating", total=len(sources))
        for translations in translator.stream(parts):
            lines += [translation.text for translation in translations]
            truncated += sum(translation.truncated for translation in translations)
            progress.update(task, completed=len(lines))
        if file is not None:
            file.writelines(f"{line}\n" for line in lines)
    if truncated:
        console.warn(f"translations cut at the maximum length: {truncated} (decoding.max_length)")
    return lines
