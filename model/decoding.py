"""`[decoding]`: how translations are searched for. This file imports no torch."""

from dataclasses import dataclass
from typing import Literal

from tfm.data.settings import require


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingSettings:
    """`[decoding]`: search. A hypothesis of n pieces (end of sentence included) scores

    log P(target | source) / n ** length_penalty.

    `repetition_penalty` changes this P; `tfm.model.search.processors` has the formula.
    """

    beam: int = 5  # 1 is greedy
    length_penalty: float = 1.0
    max_length: int = 256  # pieces, and at most max_length_ratio times the source's plus 10
    max_length_ratio: float = 2.0
    min_length: int = 0  # pieces, end of sentence included; whatever max_length_ratio says
    batch_tokens: int = 8192  # source pieces times beam per batch, padding included
    no_repeat_ngram: int = 0  # no n pieces in a row occur twice in a translation; 0: they may
    # Above 1, pieces that the translation already has are less probable (Keskar et al. 2019, CTRL,
    # section 4.1, who take 1.2).
    repetition_penalty: float = 1.0
    # Above 0, source pieces that a translation hardly attends to cost score (Wu et al. 2016,
    # equation 14): `tfm.model.search.coverage` has the formula. They take 0.2 beside a length
    # penalty of 0.2; beside one of 1 scores are ten times smaller, and 0.02 weighs as much.
    coverage_penalty: float = 0.0
    # Diverse beam search (Vijayakumar et al. 2016): so many groups share the beam, and an id counts
    # less by `diversity` for each hypothesis of an earlier group that takes it at the same step.
    beam_groups: int = 1
    diversity: float = 0.5
    # Draw translations from the model instead of searching for the best; the formulas stand in
    # `tfm.model.search.sampling`. The cuts are off at 0, 1 and 0.
    sampling: bool = False
    temperature: float = 1.0  # above 1 evens the probabilities out, below 1 sharpens them
    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0  # Hewitt et al. 2022 take 0.0003 to 0.0009
    sampling_seed: int = 1
    # Of all hypotheses of the beam, or of so many samples, take the one with the highest expected
    # chrF: `tfm.model.search.mbr`.
    mbr: Literal["none", "chrf"] = "none"

    def __post_init__(self) -> None:
        for key in ("beam", "max_length", "batch_tokens", "beam_groups"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "must be at least 1")
        for key in ("min_length", "no_repeat_ngram", "top_k", "sampling_seed"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "must be at least 0")
        require(self.beam <= 10_000, "beam", self.beam, "must be at most 10000")
        require(
            self.min_length <= self.max_length,
            "min_length",
            self.min_length,
            f"must be at most `max_length` ({self.max_length})",
        )
        require(self.mbr in ("none", "chrf"), "mbr", self.mbr, 'must be "none" or "chrf"')
        _require_between(self, "length_penalty", 0, 10)
        _require_between(self, "repetition_penalty", 1, 100)
        _require_between(self, "coverage_penalty", 0, 100)
        _require_between(self, "diversity", 0, 1000)
        rule = f"must divide `beam` ({self.beam})"
        require(self.beam % self.beam_groups == 0, "beam_groups", self.beam_groups, rule)
        for key, off in {"coverage_penalty": 0.0, "beam_groups": 1}.items():
            value = getattr(self, key)
            require(not self.sampling or value == off, key, value, f"must be {off:g} with sampling")
        _require_between(self, "temperature", 0.01, 100)
        require(0 < self.top_p <= 1, "top_p", self.top_p, "must be above 0 and at most 1")
        require(0 <= self.epsilon < 1, "epsilon", self.epsilon, "must be at least 0 and below 1")
        off_without = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "epsilon": 0.0}
        for key, off in (off_without | {"sampling_seed": 1}).items():
            value = getattr(self, key)
            require(self.sampling or value == off, key, value, f"must be {off:g} without sampling")
        grouped = self.beam_groups > 1 or self.diversity == 0.5
        rule = "must be 0.5 without groups (beam_groups above 1)"
        require(grouped, "diversity", self.diversity, rule)
        require(
            self.max_length_ratio > 0, "max_length_ratio", self.max_length_ratio, "must be above 0"
        )

    def longest(self, source_length: int) -> int:
        """Return the largest number of target pieces for a source of `source_length` pieces."""
        longest = min(self.max_length, int(self.max_length_ratio * source_length) + 10)
        return max(longest, self.min_length)


def _require_between(settings: DecodingSettings, key: str, least: float, most: float) -> None:
    value = getattr(settings, key)
    rule = f"must be at least {least} and at most {most}"
    require(least <= value <= most, key, value, rule)
