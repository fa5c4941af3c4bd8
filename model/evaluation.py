"""Scores of translations against references: sacrebleu's figures, each with its signature.

A score without its conditions cannot be compared with anything, so the two never part. Text goes in
as people read it, never tokenised: sacrebleu tokenises by itself, the same way for everyone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tfm.data.counts import counted
from tfm.data.errors import DataError

METRICS: dict[str, Metric] = {
    "bleu": BLEU(force=True),  # its warning about tokenised text is ours: see `looks_tokenized`
    "bleu_lowercase": BLEU(lowercase=True, force=True),
    "chrf": CHRF(),
    "ter": TER(),
}


@dataclass(frozen=True)
class Score:
    """One figure and the conditions it holds under, in sacrebleu's notation."""

    value: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """Corpus scores in percent, to four decimals; of `ter`, the edit rate, less is better.

    `bleu_lowercase` compares with literature that lower-cases both sides (`sacrebleu -lc`).
    """

    segments: int
    bleu: Score
    bleu_lowercase: Score
    chrf: Score
    ter: Score

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain data: a `value` and a `signature` under each name."""
        return asdict(self)

    def table(self) -> str:
        """Return the signatures and then a line per score, the last of them `BLEU = 93.1`."""
        named = {
            "chrF": self.chrf,
            "TER": self.ter,
            "BLEU lower-cased": self.bleu_lowercase,
            "BLEU": self.bleu,
        }
        signatures = [f"{name:<16}  {each.signature}" for name, each in named.items()]
        figures = [f"{name} = {each.value:.1f}" for name, each in named.items()]
        return "\n".join([counted(self.segments, "pair"), *signatures, *figures])


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Score raw, detokenised hypotheses against one raw reference each.

    A blank line counts as an empty segment, as in sacrebleu.

    Raises:
        DataError: if the counts differ, or there is nothing to compare with.
    """
    require_equal_counts(len(hypotheses), len(references))
    if not any(reference.strip() for reference in references):
        raise DataError(
            "no reference to score against: the test set has no text on its target side"
        )
    figures = {}
    for name, metric in METRICS.items():
        value = metric.corpus_score(hypotheses, [references]).score
        figures[name] = Score(round(value, 4), str(metric.get_signature()))
    return Scores(segments=len(references), **figures)


def require_equal_counts(hypotheses: int, references: int, *, where: str = "hypotheses") -> None:
    """Raise `DataError` unless there is one hypothesis per reference; `where` is their place."""
    if hypotheses != references:
        raise DataError(
            f"{where}: {counted(hypotheses, 'line')}, but the test set has "
            f"{counted(references, 'pair')}; "
            "each pair needs exactly one line, in the same order"
        )


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Tell whether most sentences end in a full stop set apart, as tokenised text does."""
    stops = [line for line in lines if line.rstrip().endswith(".")]
    return bool(stops) and sum(line.rstrip().endswith(" .") for line in stops) * 2 > len(stops)
