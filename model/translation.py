"""A translation as text, with what the model made of it, and how it is put together from parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from tfm.data.tokenizer import Tokenizer
from tfm.model.search.mbr import Choice
from tfm.model.settings import DecodingSettings
from tfm.model.units import Unit, join_units


class Part(NamedTuple):
    """What was translated at a time: a text, or a part of a long one."""

    text: str
    source: list[int]  # its ids, without EOS
    target: list[int]  # those of its translation, without EOS


@dataclass(frozen=True)
class Candidate:
    """One translation of a text.

    Attributes:
        text: without LF and CR.
        log_probability: log P(text | source), natural logarithm.
        score: `log_probability` / n ** length_penalty for n pieces, end of sentence included.
        tokens: the pieces as the model chose them; U+2581 stands for a space.
        ids: of the same pieces in the target vocabulary.
        truncated: it was cut at the maximum length.
        parts: one, more where the text was too long for the model, none where it was blank.
        utility: its expected chrF where `decoding.mbr` asks for that (of a text in parts, their
            mean); else None.
    """

    text: str
    log_probability: float
    score: float
    tokens: list[str]
    ids: list[int]
    truncated: bool
    parts: list[Part]
    utility: float | None = None


@dataclass(frozen=True, kw_only=True)
class Translation(Candidate):
    """The best translation of `source`, and the `n_best` best, itself being the first of them."""

    source: str
    n_best: list[Candidate]


def assemble(
    source: str,
    units: Sequence[Unit],
    found: Sequence[Sequence[Choice]],
    decoding: DecodingSettings,
    tokenizer: Tokenizer,
) -> Translation:
    """Return the translation of a text from the hypotheses of its units."""
    count = max((len(choices) for choices in found), default=1)
    n_best = [
        # The k-th best of a line in parts is made of the k-th best of each.
        _candidate(units, [each[min(k, len(each) - 1)] for each in found], decoding, tokenizer)
        for k in range(count)
    ]
    return Translation(**vars(n_best[0]), source=source, n_best=n_best)


def _candidate(
    units: Sequence[Unit],
    choices: Sequence[Choice],
    decoding: DecodingSettings,
    tokenizer: Tokenizer,
) -> Candidate:
    hypotheses = [choice.hypothesis for choice in choices]
    utilities = [choice.utility for choice in choices if choice.utility is not None]
    texts = [tokenizer.decode_target(h.tokens) for h in hypotheses]
    text = join_units(units, texts)
    assert "\n" not in text and "\r" not in text, "search let a line break through"
    log_probability = sum((h.log_probability for h in hypotheses), 0.0)
    ids = [id_ for h in hypotheses for id_ in h.tokens]
    length = sum(len(h.token_log_probabilities) for h in hypotheses)
    return Candidate(
        text,
        log_probability,
        score=hypotheses[0].score  # which processors may have made another than log P's
        if len(hypotheses) == 1
        else log_probability / max(length, 1) ** decoding.length_penalty,
        tokens=tokenizer.target_pieces(ids),
        ids=ids,
        truncated=any(h.truncated for h in hypotheses),
        parts=[
            Part(unit.request.text, unit.ids, hypothesis.tokens)
            for unit, hypothesis in zip(units, hypotheses, strict=True)
        ],
        utility=fmean(utilities) if utilities else None,
    )
