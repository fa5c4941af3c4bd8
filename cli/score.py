"""`tfm score`: how likely a model finds translations that are given to it."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.config import load_settings, load_translator, model_config
from tfm.cli.options import (
    Attention,
    Debug,
    Device,
    Ensemble,
    Json,
    LengthPenalty,
    Model,
    Output,
    Precision,
    Set,
)
from tfm.data.corpus import Pair, files_of, read_pairs
from tfm.data.counts import counted
from tfm.data.errors import DataError
from tfm.data.lines import text_output
from tfm.data.places import require_writable

if TYPE_CHECKING:
    from tfm.model.forced import PairScore, Totals

WINDOW = 512  # pairs that are sorted by length together

Test = Annotated[str, typer.Option("--test", metavar="CORPUS", help="The pairs to score.")]
Tokens = Annotated[
    bool, typer.Option("--tokens", help="Write piece:log P of each target piece after a tab.")
]
Summary = Annotated[
    bool, typer.Option("--summary", help="Write the sums over all pairs and nothing else.")
]


def score(
    model: Model,
    *,
    test: Test,
    output: Output = None,
    tokens: Tokens = False,
    summary: Summary = False,
    as_json: Json = False,
    length_penalty: LengthPenalty = None,
    set_: Set = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    debug: Debug = False,
) -> None:
    """Score given translations: what the model makes of each pair, without a search.

    A line for each pair: score, log P(target | source) and perplexity, with tabs between. The score
    is that of `tfm translate`; perplexity is exp(-log P / n) for n pieces, end of sentence
    included. --json writes an object instead: source, target, log_probability, score, perplexity,
    tokens, token_log_probabilities.

    A CORPUS is PREFIX (two files, PREFIX.en and PREFIX.de), a .tsv, .csv, .jsonl or .parquet file,
    hf:NAME or builtin[:N].
    """
    from tfm.model.forced import Totals, score_pairs

    if tokens and (as_json or summary):
        raise typer.BadParameter("--tokens is for lines of text; --json has the pieces anyway")
    settings = load_settings(model_config(model), set_, length_penalty=length_penalty)
    languages = {"source": settings.data.source, "target": settings.data.target}
    require_writable(output, inputs=files_of(test, **languages))
    pairs = read_pairs(test, **languages, split="test")
    first = list(islice(pairs, 1))
    if not first:
        raise DataError(f"{test}: has no pairs to score")
    machine = {"device": device, "precision": precision, "attention": attention}
    translator = load_translator(model, settings, ensemble=ensemble, searches=False, **machine)
    totals = Totals()
    with text_output(output) as file:
        for scores in score_pairs(translator, _windows(chain(first, pairs))):
            totals = totals.add(scores)
            if not summary:
                file.writelines(_layout(each, tokens, as_json) for each in scores)
                file.flush()
        if summary:
            file.write(_summary(totals, as_json))
    if as_json or not summary:  # else the file has the same words
        console.note(_in_words(totals))


def _windows(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    pairs = iter(pairs)
    while window := list(islice(pairs, WINDOW)):
        yield window


def _layout(each: "PairScore", tokens: bool, as_json: bool) -> str:
    if as_json:
        return _json(asdict(each))
    cells = [f"{each.score:.4f}", f"{each.log_probability:.4f}", f"{each.perplexity:.4f}"]
    if tokens:
        rows = zip(each.tokens, each.token_log_probabilities, strict=True)
        cells.append(" ".join(f"{piece}:{log_p:.4f}" for piece, log_p in rows))
    return "\t".join(cells) + "\n"


def _summary(totals: "Totals", as_json: bool) -> str:
    if as_json:
        return _json(totals._asdict() | {"perplexity": totals.perplexity})
    return _in_words(totals) + "\n"


def _json(fields: dict[str, Any]) -> str:
    """Return an object; a perplexity beyond all numbers is null, for JSON has no word for it."""
    if math.isinf(fields["perplexity"]):
        fields = fields | {"perplexity": None}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _in_words(totals: "Totals") -> str:
    return (
        f"{counted(totals.pairs, 'pair')}, {counted(totals.tokens, 'piece')}, "
        f"log P = {totals.log_probability:.2f}, perplexity = {totals.perplexity:.3f}"
    )
