"""The steps of beam search: pure functions of tensors, without a network. `beam` runs them.

A step extends the N live hypotheses of a sentence by every id. Of the N best extensions, those that
end in EOS are finished, and the N best of the others live on. Ties go to the lower beam, then to
the lower id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tfm.data.tokenizer import BOS, EOS

CHUNK = 64  # ids of which `best_extensions` looks at the largest first


@dataclass(frozen=True)
class Hypothesis:
    """A translation as ids, without BOS and EOS.

    Attributes:
        tokens: target ids.
        log_probability: log P(tokens, EOS | source); without EOS if truncated.
        score: `log_probability` / n ** length_penalty for n ids, EOS included; where repetition
            is penalised, with log P' in place of log P (`tfm.model.search.processors`).
        truncated: it was cut at the maximum length and has no EOS.
        token_log_probabilities: one for each of its n ids, EOS included.
    """

    tokens: list[int]
    log_probability: float
    score: float
    truncated: bool
    token_log_probabilities: list[float]


class Beams(NamedTuple):
    """The live hypotheses of B sentences, N each, best first, all t ids long.

    Where a sentence has fewer than N, dead ones with a total of -inf stand after them.
    """

    sentences: Tensor  # B: place among the sources
    longest: Tensor  # B: most ids that a hypothesis may have
    tokens: Tensor  # B N t+1: BOS and t ids
    token_log_probabilities: Tensor  # B N t
    total: Tensor  # B N: what they are ranked by, the sum of what their ids count: log P, mostly
    rows: Tensor  # B N: which row (of B * N) of the step before each continues

    @classmethod
    def start(cls, longest: Sequence[int], device: torch.device) -> "Beams":
        """Return one hypothesis for each sentence: BOS alone."""
        B = len(longest)
        return cls(
            sentences=torch.arange(B, device=device),
            longest=torch.tensor(longest, device=device),
            tokens=torch.full((B, 1, 1), BOS, device=device),
            token_log_probabilities=torch.empty(B, 1, 0, device=device),
            total=torch.zeros(B, 1, device=device),
            rows=torch.arange(B, device=device)[:, None],
        )

    def group(self, own: slice) -> "Beams":
        """Return some hypotheses of each sentence."""
        return self._replace(
            tokens=self.tokens[:, own],
            token_log_probabilities=self.token_log_probabilities[:, own],
            total=self.total[:, own],
            rows=self.rows[:, own],
        )

    def beside(self, others: Sequence["Beams"]) -> "Beams":
        """Return the hypotheses of this and of others side by side."""
        parts = [self, *others]
        return self._replace(
            tokens=torch.cat([part.tokens for part in parts], 1),
            token_log_probabilities=torch.cat([part.token_log_probabilities for part in parts], 1),
            total=torch.cat([part.total for part in parts], 1),
            rows=torch.cat([part.rows for part in parts], 1),
        )

    def repeated(self, count: int) -> "Beams":
        """Return `count` of each hypothesis, side by side."""
        return self._replace(
            tokens=self.tokens.repeat_interleave(count, 1),
            token_log_probabilities=self.token_log_probabilities.repeat_interleave(count, 1),
            total=self.total.repeat_interleave(count, 1),
            rows=self.rows.repeat_interleave(count, 1),
        )

    @property
    def length(self) -> int:
        """The number of ids chosen so far, t."""
        return self.token_log_probabilities.shape[2]

    def select(self, sentences: Tensor) -> "Beams":
        """Return the beams of the given sentences of the batch (places or a mask)."""
        return Beams(*(part[sentences] for part in self))


class Extensions(NamedTuple):
    """The C best extensions of each sentence's live hypotheses by one id, best first."""

    total: Tensor  # B C, of the whole extended hypothesis
    beam: Tensor  # B C: which live hypothesis is extended
    token: Tensor  # B C
    token_log_probability: Tensor  # B C: what the id counts

    def with_probabilities(self, next_ids: Tensor) -> "Extensions":
        """Return the same with log P of each id, from B N V, where it counts something else."""
        places = self.beam * next_ids.shape[2] + self.token
        return self._replace(token_log_probability=next_ids.flatten(1).gather(1, places))


def best_extensions(total: Tensor, next_ids: Tensor, count: int) -> Extensions:
    """Return the `count` best extensions of each sentence, or all where there are fewer.

    To sort N V of them is slow, to find the largest of each CHUNK of ids is quick. And the `count`
    best stand in the `count` chunks whose largest come first: before any other chunk there are as
    many extensions that are better than its own, or as good and further left.

    Args:
        total: of the live hypotheses, B N.
        next_ids: what each id counts after each of them, B N V.
        count: twice the beam, so that N of them live on even if N end in EOS; 1 for greedy search.
    """
    B, N, V = next_ids.shape
    if N == count == 1:
        return _best_extension(total, next_ids)
    largest = total.unsqueeze(2) + chunk_maxima(next_ids)  # B N V/CHUNK
    chunks = largest.shape[2]
    _, chunk = stable_topk(largest.flatten(1), min(count, N * chunks))
    chunk = chunk.sort(1).values  # B C
    beam = chunk // chunks
    first = chunk * CHUNK if V % CHUNK == 0 else beam * V + (chunk - beam * chunks) * CHUNK
    places = first.unsqueeze(2) + torch.arange(CHUNK, device=first.device)  # B C CHUNK, in N V
    beyond = None
    if V % CHUNK:  # the last chunk of each hypothesis is not full
        beyond = places >= ((beam + 1) * V).unsqueeze(2)
        places.clamp_(max=N * V - 1)
    each = next_ids.flatten(1).gather(1, places.flatten(1)).view_as(places)
    if beyond is not None:
        each.masked_fill_(beyond, -torch.inf)
    extended = total.gather(1, beam).unsqueeze(2) + each
    values, best = stable_topk(extended.flatten(1), min(count, N * V))
    place = places.flatten(1).gather(1, best)
    beam = place // V
    return Extensions(
        total=values,
        beam=beam,
        token=place - beam * V,
        token_log_probability=each.flatten(1).gather(1, best),
    )


def _best_extension(total: Tensor, next_ids: Tensor) -> Extensions:
    """Return the best extension of each sentence's only hypothesis: a step of greedy search."""
    V = next_ids.shape[2]
    chunk = chunk_maxima(next_ids).squeeze(1).argmax(1, keepdim=True)  # the leftmost of equals
    ids = chunk * CHUNK + torch.arange(CHUNK, device=chunk.device)
    if V % CHUNK:
        ids.clamp_(max=V - 1)
    each, best = next_ids.squeeze(1).gather(1, ids).max(1, keepdim=True)
    token = ids.gather(1, best)
    return Extensions(total + each, torch.zeros_like(token), token, each)


def chunk_maxima(next_ids: Tensor) -> Tensor:
    """Return the largest of each CHUNK of ids, the last one maybe smaller: B N V to B N V/CHUNK."""
    B, N, V = next_ids.shape
    chunks = next_ids[:, :, : V - V % CHUNK].view(B, N, V // CHUNK, CHUNK).amax(3)
    if V % CHUNK:
        rest = next_ids[:, :, V - V % CHUNK :].amax(2, keepdim=True)
        chunks = torch.cat([chunks, rest], dim=2)
    return chunks


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row and their places, of equal ones the leftmost first.

    `torch.topk` leaves open which of equal values it takes, so it is given keys that differ.
    """
    if values.device.type == "cpu" and k < values.shape[1]:  # where to look costs no waiting
        top, places = values.topk(k + 1)
        if not (top[:, 1:] == top[:, :-1]).any():  # nothing is left open
            return top[:, :k], places[:, :k]
    if values.dtype != torch.float32:  # twice the bits, and none left to tell places apart
        top, places = values.sort(dim=1, descending=True, stable=True)
        return top[:, :k], places[:, :k]
    _, places = ordered_keys(values).topk(k)
    return values.gather(1, places), places


def ordered_keys(values: Tensor) -> Tensor:
    """Return integers that compare as the fp32 values in a row do, or if these are equal, by place.

    Read as an integer, a positive fp32 number keeps its order, and the bits of a negative one other
    than the sign count backwards. This fills the upper half of 64 bits.
    """
    bits = (values + 0.0).view(torch.int32)  # -0 becomes 0, its equal
    upper = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (upper.long() << 32) - torch.arange(values.shape[1], device=values.device)


def ending(best: Extensions, beam: int) -> Tensor:
    """Return which extensions are finished hypotheses, B C: EOS among the N best."""
    rank = torch.arange(best.token.shape[1], device=best.token.device)
    return (best.token == EOS) & (rank < beam)


def extend(beams: Beams, best: Extensions, beam: int) -> Beams:
    """Return the N best extensions that do not end, as the next live hypotheses."""
    ended = best.token == EOS
    if not ended.any():
        best = Extensions(*(part[:, :beam] for part in best))
    else:
        best = best._replace(total=best.total.masked_fill(ended, -torch.inf))
        order = ended.sort(dim=1, stable=True).indices[:, :beam]  # B N, the others in their order
        best = Extensions(*(part.gather(1, order) for part in best))
    B, N = beams.total.shape
    rows = best.beam + N * torch.arange(B, device=best.beam.device).unsqueeze(1)
    return Beams(
        sentences=beams.sentences,
        longest=beams.longest,
        tokens=_continued(beams.tokens, rows, best.token),
        token_log_probabilities=_continued(
            beams.token_log_probabilities, rows, best.token_log_probability
        ),
        total=best.total,
        rows=rows,
    )


def _continued(past: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """Return what the rows, B N, of a past, B M t, hold, each with one more at its end."""
    chosen = past.flatten(0, 1).index_select(0, rows.flatten())
    return torch.cat([chosen.view(*rows.shape, past.shape[2]), new.unsqueeze(2)], dim=2)
