"""How likely a model finds translations that are given to it: forced decoding, without a search."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tfm.data.corpus import Pair
from tfm.data.errors import CheckpointError
from tfm.data.tokenizer import EOS
from tfm.model.search.beam import force_score
from tfm.model.search.ensemble import log_of_mean
from tfm.model.search.scorer import NO_NUMBERS
from tfm.model.translator import Translator


@dataclass(frozen=True)
class PairScore:
    """What a model makes of one pair.

    Attributes:
        source, target: the texts.
        log_probability: log P(target, end of sentence | source), natural logarithm.
        score: `log_probability` / n ** length_penalty for n pieces, end of sentence included.
        perplexity: exp(-`log_probability` / n).
        tokens: the n target pieces, the last of them `</s>`.
        token_log_probabilities: of each piece, given the source and the pieces before it.
    """

    source: str
    target: str
    log_probability: float
    score: float
    perplexity: float
    tokens: list[str]
    token_log_probabilities: list[float]


class Totals(NamedTuple):
    """The sums over many pairs; perplexity is per piece, ends of sentences included."""

    pairs: int = 0
    tokens: int = 0
    log_probability: float = 0.0

    def add(self, scores: Iterable[PairScore]) -> "Totals":
        """Return the sums with those of `scores`."""
        scores = list(scores)
        return Totals(
            self.pairs + len(scores),
            self.tokens + sum(len(each.tokens) for each in scores),
            self.log_probability + sum(each.log_probability for each in scores),
        )

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log probability of a piece; 1 where there is none."""
        return perplexity(self.log_probability, self.tokens)


def score_pairs(
    translator: Translator, batches: Iterable[Sequence[Pair]]
) -> Iterator[list[PairScore]]:
    """Yield the scores of each batch of pairs, in order, before the next one is asked for.

    A target is cut into pieces as in training. Its probability is that of these pieces alone: the
    same text in other pieces has one of its own, mostly far smaller.

    Texts longer than `data.max_length` pieces are scored whole, and `translator.warn` says so once.

    Raises:
        CheckpointError: if the model computes something that is not a number.
    """
    limit, warned = translator.limit, False
    for batch in batches:
        sources = translator.tokenizer.encode_source_batch([pair.source for pair in batch])
        targets = translator.tokenizer.encode_target_batch([pair.target for pair in batch])
        longest = max((len(ids) for ids in [*sources, *targets]), default=0)
        if longest > limit and not warned:
            warned = True
            translator.warn(
                f"a text of {longest:,} pieces is longer than the model was trained on ({limit}, "
                "data.max_length); the scores of such pairs mean little"
            )
        ends = [[*ids, EOS] for ids in targets]
        forced = _force_score(translator, [[*ids, EOS] for ids in sources], ends)
        yield [
            _pair_score(translator, pair, ids, each)
            for pair, ids, each in zip(batch, ends, forced, strict=True)
        ]


def perplexity(log_probability: float, tokens: int) -> float:
    """Return exp(-`log_probability` / `tokens`); infinite where that is no number of fp64."""
    try:
        return math.exp(-log_probability / max(tokens, 1))
    except OverflowError:
        return math.inf


def _force_score(
    translator: Translator, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Return log P of each id of each target: of an ensemble, of the mean of its probabilities."""
    each = [
        force_score(model, sources, targets, batch_tokens=translator.decoding.batch_tokens)
        for model in translator.models
    ]
    rows = zip(*each, strict=True)  # for each pair, a list from each network
    return [
        log_of_mean([torch.tensor(row, dtype=torch.float64) for row in pair]).tolist()
        for pair in rows
    ]


def _pair_score(
    translator: Translator, pair: Pair, ids: Sequence[int], each: list[float]
) -> PairScore:
    total = math.fsum(each)
    if math.isnan(total):
        raise CheckpointError(NO_NUMBERS)
    return PairScore(
        source=pair.source,
        target=pair.target,
        log_probability=total,
        score=total / len(each) ** translator.decoding.length_penalty,
        perplexity=perplexity(total, len(each)),
        tokens=translator.tokenizer.target_pieces(ids),
        token_log_probabilities=each,
    )
