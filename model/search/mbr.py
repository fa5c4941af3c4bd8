"""Minimum Bayes risk: of the translations found, the one that agrees best with the others.

The most probable translation may be an odd one. What a translation y is worth is the utility that
it is to be expected to have, if the reference is a translation that the model gives:

    U(y) = sum_r P(r) u(y, r) / sum_r P(r)

with the candidates themselves as references (Eikema and Aziz 2020; Freitag et al. 2022). u is
sacrebleu's chrF of y against r, exactly. P(r) is a weight: each one of samples that were drawn from
the model has 1, since the probable ones are drawn more often; those of a beam have their
probability, as in Kumar and Byrne 2004. (To let all of a beam count alike raises chrF a little more
and costs BLEU and TER dearly: an improbable hypothesis is no likely reference.)

The same text counts once as a candidate, with the weight of all its occurrences.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfm.model.search.beams import Hypothesis

ORDER, BETA = 6, 2  # of chrF as sacrebleu has it

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Choice(NamedTuple):
    """A hypothesis, and U(y) of its text where it was chosen by that."""

    hypothesis: Hypothesis
    utility: float | None = None


def rerank(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], *, sampled: bool = False
) -> list[Choice]:
    """Return those of distinct text among the hypotheses of a beam, or samples, by expected chrF.

    Cut ones are left out if others are finished: without an end they have no probability.

    Args:
        texts: of the hypotheses, which are one or more.
    """
    pairs = list(zip(hypotheses, texts, strict=True))
    finished = [pair for pair in pairs if not pair[0].truncated] or pairs
    likeliest = max(hypothesis.log_probability for hypothesis, _ in finished)
    weights = [
        1.0 if sampled else math.exp(hypothesis.log_probability - likeliest)
        for hypothesis, _ in finished
    ]
    ranked = rank([text for _, text in finished], weights)
    return [Choice(finished[place][0], utility) for place, utility in ranked]


class Ranked(NamedTuple):
    """A candidate's place among those given, the first of its equals, and its U(y)."""

    place: int
    utility: float


def rank(candidates: Sequence[str], weights: Sequence[float]) -> list[Ranked]:
    """Return the distinct candidates by expected chrF, the best first; of equals, the earlier one.

    Args:
        candidates: texts.
        weights: of each of them as a reference, not all 0. Only their ratios count.
    """
    places: dict[str, int] = {}
    totals: dict[str, float] = {}
    for place, (text, weight) in enumerate(zip(candidates, weights, strict=True)):
        places.setdefault(text, place)
        totals[text] = totals.get(text, 0.0) + weight
    gains = chrf_table(list(totals)) * list(totals.values())
    whole = math.fsum(totals.values())
    # `fsum` rounds once, so that no order of the candidates favours one of two equal sums.
    utilities = [math.fsum(row) / whole for row in gains.tolist()]
    ranked = [Ranked(places[text], u) for text, u in zip(totals, utilities, strict=True)]
    return sorted(ranked, key=lambda each: -each.utility)


def chrf_table(texts: Sequence[str]) -> Floats:
    """Return u(y, r) for each text y (rows) against each text r (columns), 0 to 100.

    Each is what sacrebleu's `sentence_chrf(y, [r])` returns, to the last bit.
    """
    characters = ["".join(text.split()) for text in texts]
    precision, recall = np.zeros((2, len(texts), len(texts)))
    effective = np.zeros_like(precision)
    for matches in _matches(characters):
        lengths = matches.diagonal()
        both = (lengths[:, None] > 0) & (lengths > 0)
        precision += matches / np.maximum(lengths, 1)[:, None]
        recall += matches / np.maximum(lengths, 1)
        effective += both
    precision /= np.maximum(effective, 1)
    recall /= np.maximum(effective, 1)
    above = (1 + BETA**2) * precision * recall
    below = BETA**2 * precision + recall
    scores: Floats = 100 * np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return scores


def _matches(texts: Sequence[str]) -> Iterator[Floats]:
    """Yield, for n from 1 to ORDER, how many n-grams of characters any two texts share.

    On the diagonal stands how many there are.
    """
    codes = np.concatenate([_code_points(text) for text in texts])
    owner = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    _, letters = np.unique(codes, return_inverse=True)
    alphabet = int(letters.max(initial=0)) + 1
    places, grams = np.arange(len(codes)), letters  # where n-grams begin, and their numbers
    yield _shared(grams, owner, len(texts))
    for n in range(1, ORDER):  # an n-gram and the letter after it, where that is of the same text
        inside = places < len(codes) - n
        inside[inside] = owner[places[inside]] == owner[places[inside] + n]
        places = places[inside]
        longer = grams[inside] * alphabet + letters[places + n]
        _, grams = np.unique(longer, return_inverse=True)
        yield _shared(grams, owner[places], len(texts))


def _shared(grams: Integers, owner: Integers, texts: int) -> Floats:
    """Return sum_g min(count of g in one text, count of g in the other), for any two texts.

    The minimum of two counts is the number of k >= 1 that neither is below: a product for each k.
    """
    kinds = int(grams.max(initial=0)) + 1
    counts = np.bincount(owner * kinds + grams, minlength=texts * kinds).reshape(texts, kinds)
    total = np.zeros((texts, texts))
    for k in range(1, int(counts.max()) + 1):
        has = (counts >= k).astype(np.float32)
        total += has @ has.T
    return total


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
