"""To see a translation grow: networks that show, at each step of search, the hypotheses so far."""

from collections.abc import Callable, Sequence

from torch import Tensor

from tfm.model.search.beams import Beams
from tfm.model.search.ensemble import Ensemble
from tfm.model.search.scorer import Scorer


class Watched(Ensemble):
    """Networks that tell `watch` of the live hypotheses about which they are asked."""

    def __init__(self, ensemble: Ensemble, watch: Callable[[Beams], None]) -> None:
        super().__init__(ensemble.members)
        self.watch = watch

    def start(self, sources: Sequence[Sequence[int]]) -> Scorer:
        """Return the state of a batch of sources, ids with EOS, before its first step."""
        return WatchedScorer(super().start(sources), self.watch)


class WatchedScorer:
    """A scorer that tells of each step before it is taken."""

    def __init__(self, scorer: Scorer, watch: Callable[[Beams], None]) -> None:
        self.scorer = scorer
        self.watch = watch
        self.device = scorer.device

    def log_probabilities(self, beams: Beams) -> Tensor:
        """Tell of the live hypotheses, and answer as the scorer does."""
        self.watch(beams)
        return self.scorer.log_probabilities(beams)

    def keep(self, sentences: Tensor) -> None:
        """Drop the source of all other sentences."""
        self.scorer.keep(sentences)

    def reorder(self, rows: Tensor) -> None:
        """Let each row continue the past of another."""
        self.scorer.reorder(rows)
