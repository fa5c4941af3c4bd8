"""Diverse beam search (Vijayakumar et al. 2016, algorithm 1): groups that avoid each other's ids.

The beam is cut into G groups. At each step the first group searches as ever; to each next one an id
counts less by `strength` for every hypothesis of the groups before it that has just gone on with
this id (their Hamming diversity). That decides what is chosen and nothing else: hypotheses keep the
score that the model gives them, and so does the first group, which is a plain search with its
width.

The result is made of what all groups have found, the best first; what two of them found counts
once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfm.model.search.beams import Beams, Hypothesis, best_extensions, extend
from tfm.model.search.shortlist import Shortlist


class DiverseShortlist:
    """The best hypotheses of each group and source so far; it stands in for a `Shortlist`.

    Args:
        sources: how many sources there are.
        groups: G, which divides `beam`.
        strength: what an id counts less for each earlier group's hypothesis that has it.
        beam, length_penalty: of the search.
        n_best: how many hypotheses to keep for each source.
    """

    def __init__(
        self,
        sources: int,
        *,
        groups: int,
        strength: float,
        beam: int,
        length_penalty: float,
        n_best: int,
        device: torch.device,
    ) -> None:
        self.width, self.strength, self.n_best = beam // groups, strength, n_best
        self.groups = [
            Shortlist(
                sources,
                beam=self.width,
                length_penalty=length_penalty,
                n_best=self.width,
                device=device,
            )
            for _ in range(groups)
        ]

    @property
    def kept(self) -> list[list[Hypothesis]]:
        """What all groups have found for each source, the best first."""
        each = zip(*(group.kept for group in self.groups), strict=True)
        return [self._merge(lists) for lists in each]

    def advance(self, beams: Beams, counting: Tensor, next_ids: Tensor) -> Beams:
        """Do what `Shortlist.advance` does, group by group."""
        chosen = counting.new_zeros(counting.shape[0], counting.shape[2])  # B V
        parts = []
        for place, group in enumerate(self.groups):
            own = self._slice(beams, place)
            less = counting[:, own] - self.strength * chosen[:, None]
            best = best_extensions(beams.total[:, own], less, 2 * self.width)
            best = best._replace(beam=best.beam + own.start)
            best = best.with_probabilities(counting)
            best = best._replace(
                total=beams.total.gather(1, best.beam) + best.token_log_probability
            )
            best = best.with_probabilities(next_ids)
            group.add_finished(beams, best)
            part = extend(beams, best, self.width)
            alive = (part.total > -torch.inf).to(chosen.dtype)
            chosen.scatter_add_(1, part.tokens[:, :, -1], alive)
            parts.append(part)
        return parts[0].beside(parts[1:])

    def add_truncated(self, beams: Beams) -> None:
        """Fill up each group with its live hypotheses that may grow no longer."""
        for place, group in enumerate(self.groups):
            group.add_truncated(beams.group(self._slice(beams, place)))

    def add_stuck(self, beams: Beams, leaving: Tensor) -> None:
        """Keep hypotheses that nothing may follow, where a sentence leaves with nothing else."""
        kept = self.kept
        places = leaving.nonzero().squeeze(1)
        empty = [not kept[source] for source in beams.sentences[places].tolist()]
        if any(empty):
            self.add_truncated(beams.select(places[torch.tensor(empty).to(places.device)]))

    def settled(self, beams: Beams) -> Tensor:
        """Return for which sentences, B, no live hypothesis can still enter its group's list."""
        each = [
            group.settled(beams.group(self._slice(beams, place)))
            for place, group in enumerate(self.groups)
        ]
        return torch.stack(each).all(0)

    def _slice(self, beams: Beams, place: int) -> slice:
        """Return which hypotheses are a group's: before the first step all have the same one."""
        if beams.total.shape[1] == 1:
            return slice(0, 1)
        return slice(place * self.width, (place + 1) * self.width)

    def _merge(self, lists: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
        found = sorted((h for each in lists for h in each), key=lambda h: (h.truncated, -h.score))
        distinct = {(tuple(h.tokens), h.truncated): h for h in reversed(found)}
        return list(reversed(distinct.values()))[: self.n_best]
