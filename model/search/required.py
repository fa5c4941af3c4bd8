"""Required words: search that keeps a place for hypotheses with more of them.

Post and Vilar 2018 (dynamic beam allocation): hypotheses that have the same number of required ids
form a bank, and each bank has its share of the beam, at each step anew. So one that begins a
required word does not have to be as probable as those that put it off. Beside the most probable
extensions, those by the next id of each required word that is not there yet compete, and the best
extension of each hypothesis. Places that a bank cannot fill go to the others.

A hypothesis with a required word missing does not end. This runs on the host, for those sentences
alone that require something.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tfm.data.tokenizer import EOS
from tfm.model.search.beams import Beams, Extensions

Phrases = Sequence[tuple[int, ...]]


class Choice(NamedTuple):
    """An extension of a hypothesis, in the order in which they are preferred."""

    minus_total: float
    beam: int
    token: int


def begun(ids: Sequence[int], phrase: Sequence[int]) -> int:
    """Return how many ids of the phrase are there: all of them, or those that `ids` ends in."""
    n = len(phrase)
    if any(tuple(ids[i : i + n]) == tuple(phrase) for i in range(len(ids) - n + 1)):
        return n
    ends = range(min(n - 1, len(ids)), 0, -1)
    return next((k for k in ends if tuple(ids[-k:]) == tuple(phrase[:k])), 0)


def bank(ids: Sequence[int], phrases: Phrases) -> int:
    """Return the number of required ids that a hypothesis has; of those begun, the longest counts.

    Hypotheses of one bank compete.
    """
    counts = [begun(ids, phrase) for phrase in phrases]
    done = sum(n for n, phrase in zip(counts, phrases, strict=True) if n == len(phrase))
    open_ = [n for n, phrase in zip(counts, phrases, strict=True) if n < len(phrase)]
    return done + max(open_, default=0)


def missing(ids: Sequence[int], phrases: Phrases) -> list[int]:
    """Return the ids that begin a required phrase that is not there, or carry it on."""
    following = set()
    for phrase in phrases:
        n = begun(ids, phrase)
        if n < len(phrase):
            following |= {phrase[0], phrase[n]}
    return sorted(following)


class Required:
    """What each source of a batch requires.

    Args:
        phrases: of each source, sequences of ids; none where it requires nothing.
        beam: of the search.
    """

    def __init__(self, phrases: Sequence[Phrases], beam: int) -> None:
        self.phrases, self.beam = phrases, beam

    def no_early_end(self, next_ids: Tensor, beams: Beams) -> Tensor:
        """Rule out EOS where a required word is missing."""
        places = [
            (b, n)
            for b, phrases, hypotheses in self._sentences(beams)
            for n, ids in enumerate(hypotheses)
            if missing(ids, phrases)
        ]
        if places:
            b, n = torch.tensor(places, device=next_ids.device).T
            next_ids[b, n, EOS] = -torch.inf
        return next_ids

    def allocate(self, best: Extensions, beams: Beams, counting: Tensor) -> Extensions:
        """Choose anew for sentences that require something.

        Args:
            best: twice the beam for each sentence, or all that there are.
            counting: what each next id counts, B N V.
        """
        sentences = self._sentences(beams)
        if not sentences:
            return best
        best = _widened(best, 2 * self.beam)
        for b, phrases, hypotheses in sentences:
            choices = self._candidates(b, best, beams, counting, phrases, hypotheses)
            _write(best, b, self._shares(choices, phrases, hypotheses), counting)
        return best

    def _sentences(self, beams: Beams) -> list[tuple[int, Phrases, list[list[int]]]]:
        """Return place, phrases and live hypotheses of each sentence that requires something."""
        return [
            (b, self.phrases[source], beams.tokens[b, :, 1:].tolist())
            for b, source in enumerate(beams.sentences.tolist())
            if self.phrases[source]
        ]

    def _candidates(
        self,
        b: int,
        best: Extensions,
        beams: Beams,
        counting: Tensor,
        phrases: Phrases,
        hypotheses: list[list[int]],
    ) -> list[Choice]:
        """Return what competes for the beam of one sentence, the most probable first."""
        real = best.total[b] > -torch.inf
        pairs = set(zip(best.beam[b, real].tolist(), best.token[b, real].tolist(), strict=True))
        pairs |= set(enumerate(counting[b].argmax(1).tolist()))
        pairs |= {(n, i) for n, ids in enumerate(hypotheses) for i in missing(ids, phrases)}
        n, token = torch.tensor(sorted(pairs), device=counting.device).T
        totals = (beams.total[b, n] + counting[b, n, token]).tolist()
        choices = zip(totals, n.tolist(), token.tolist(), strict=True)
        return sorted(Choice(-total, *rest) for total, *rest in choices if total > -torch.inf)

    def _shares(
        self, choices: list[Choice], phrases: Phrases, hypotheses: list[list[int]]
    ) -> list[Choice]:
        """Return those that end within the beam, and then a beam of those that go on."""
        banks = [bank([*hypotheses[each.beam], each.token], phrases) for each in choices]
        ending = [each for each in _share(choices, banks, self.beam) if each.token == EOS]
        pairs = [(each, own) for each, own in zip(choices, banks, strict=True) if each.token != EOS]
        going = _share([each for each, _ in pairs], [own for _, own in pairs], self.beam)
        return [*ending, *going]


def _share(choices: Sequence[Choice], banks: Sequence[int], count: int) -> list[Choice]:
    """Take the best of each bank in turn, the fullest first, until there are `count`.

    They come in the order of the banks, and within one the best first.
    """
    rank: dict[int, int] = {}
    turns = []
    for place, own in enumerate(banks):
        rank[own] = rank.get(own, -1) + 1
        turns.append((rank[own], -own, place))
    chosen = sorted(turns)[:count]
    return [choices[place] for _, _, place in sorted(chosen, key=lambda turn: turn[1:])]


def _widened(best: Extensions, width: int) -> Extensions:
    """Return a copy with dead extensions up to the width: there are fewer ids in a small space."""
    more = width - best.total.shape[1]
    dead = dict(total=-torch.inf, beam=0, token=0, token_log_probability=-torch.inf)
    return Extensions(
        **{
            name: torch.nn.functional.pad(part, (0, more), value=dead[name])
            for name, part in best._asdict().items()
        }
    )


def _write(best: Extensions, b: int, chosen: Sequence[Choice], counting: Tensor) -> None:
    """Put the extensions that were chosen in the places of those of sentence b."""
    best.total[b] = -torch.inf
    best.token[b] = 0
    best.token_log_probability[b] = -torch.inf
    if not chosen:
        return
    device, C = counting.device, len(chosen)
    n = torch.tensor([each.beam for each in chosen], device=device)
    token = torch.tensor([each.token for each in chosen], device=device)
    best.total[b, :C] = torch.tensor([-each.minus_total for each in chosen]).to(best.total)
    best.beam[b, :C], best.token[b, :C] = n, token
    best.token_log_probability[b, :C] = counting[b, n, token]
