"""The best hypotheses of each source so far, and when a search for better ones is over."""

import math
from bisect import insort
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tfm.data.tokenizer import EOS
from tfm.model.search.beams import Beams, Extensions, Hypothesis, best_extensions, ending, extend


class Shortlist:
    """The `n_best` best hypotheses of each source so far: the only bookkeeping on the host.

    Args:
        sources: how many sources there are.
        beam, length_penalty: of the search; a beam of 1 ends at its first EOS.
        n_best: how many hypotheses to keep for each.
        allocate: what chooses otherwise: it is given the best extensions of a step, the live
            hypotheses, and what each next id counts.
    """

    def __init__(
        self,
        sources: int,
        *,
        beam: int,
        length_penalty: float,
        n_best: int,
        device: torch.device,
        allocate: Callable[[Extensions, Beams, Tensor], Extensions] | None = None,
    ) -> None:
        self.beam, self.length_penalty, self.n_best = beam, length_penalty, n_best
        self.allocate = allocate
        self.kept: list[list[Hypothesis]] = [[] for _ in range(sources)]
        self.needed = torch.full((sources,), -torch.inf, device=device)  # scores to exceed

    def advance(self, beams: Beams, counting: Tensor, next_ids: Tensor) -> Beams:
        """Take one step: keep what is finished, and return what lives on.

        Args:
            counting: what each next id counts, B N V.
            next_ids: log P of each of them, B N V: the same tensor, where that is what counts.
        """
        # Greedy search ends with its first EOS, so that nothing else need be ready to go on.
        count = 1 if self.beam == 1 and self.allocate is None else 2 * self.beam
        best = best_extensions(beams.total, counting, count)
        if self.allocate is not None:
            best = self.allocate(best, beams, counting)
        if counting is not next_ids:
            best = best.with_probabilities(next_ids)
        self.add_finished(beams, best)
        return extend(beams, best, self.beam)

    def add_finished(self, beams: Beams, best: Extensions) -> None:
        """Keep the extensions that end and are good enough; of equals, the earlier ones.

        Dead ones never are: their score of -inf exceeds nothing.
        """
        if not (best.token == EOS).any():
            return
        score = best.total / (beams.length + 1) ** self.length_penalty
        good = ending(best, self.beam) & (score > self.needed[beams.sentences][:, None])
        b, c = good.nonzero(as_tuple=True)
        if not len(b):
            return
        at = b, best.beam[b, c]
        past = beams.token_log_probabilities[at]
        found = read_out(
            beams.tokens[at],
            torch.cat([past, best.token_log_probability[b, c][:, None]], dim=1),
            score[b, c],
            truncated=False,
        )
        for source, hypothesis in zip(beams.sentences[b].tolist(), found, strict=True):
            insort(self.kept[source], hypothesis, key=_descending)
            del self.kept[source][self.n_best :]
        self.needed = torch.tensor([self._needed(kept) for kept in self.kept]).to(self.needed)

    def add_truncated(self, beams: Beams) -> None:
        """Fill up with live hypotheses that may grow no longer: they rank after all finished."""
        score = beams.total / max(beams.length, 1) ** self.length_penalty
        short = torch.tensor([len(kept) < self.n_best for kept in self.kept])
        alive = beams.total > -torch.inf
        b, n = (alive & short.to(alive.device)[beams.sentences][:, None]).nonzero(as_tuple=True)
        parts = beams.tokens, beams.token_log_probabilities, score
        found = read_out(*(part[b, n] for part in parts), truncated=True)
        for source, hypothesis in zip(beams.sentences[b].tolist(), found, strict=True):
            if len(self.kept[source]) < self.n_best:
                self.kept[source].append(hypothesis)

    def add_stuck(self, beams: Beams, leaving: Tensor) -> None:
        """Keep hypotheses that nothing may follow, where a sentence leaves with nothing else."""
        places = leaving.nonzero().squeeze(1)
        empty = [not self.kept[source] for source in beams.sentences[places].tolist()]
        if any(empty):
            self.add_truncated(beams.select(places[torch.tensor(empty).to(places.device)]))

    def settled(self, beams: Beams) -> Tensor:
        """Return for which sentences, B, no live hypothesis can still enter the list.

        A total never grows, so a hypothesis that lives now scores at most
        total / longest ** length_penalty in the end.
        """
        bound = beams.total.amax(1) / beams.longest.float() ** self.length_penalty
        return bound <= self.needed[beams.sentences]

    def _needed(self, kept: Sequence[Hypothesis]) -> float:
        if len(kept) < self.n_best:
            return -torch.inf
        return torch.inf if self.beam == 1 else kept[-1].score


def _descending(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


def read_out(
    tokens: Tensor,
    token_log_probabilities: Tensor,
    score: Tensor,
    *,
    truncated: bool,
) -> list[Hypothesis]:
    """Bring hypotheses, one a row (tokens with BOS, without EOS), to the host."""
    rows = zip(
        tokens[:, 1:].tolist(), score.tolist(), token_log_probabilities.tolist(), strict=True
    )
    return [Hypothesis(ids, math.fsum(each), s, truncated, each) for ids, s, each in rows]
