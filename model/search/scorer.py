"""What a search asks for: how likely each id is to follow each live hypothesis.

A search knows nothing else of a model. So whatever can answer may be searched: one network and its
cache, or several networks that agree on an average.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tfm.data.errors import CheckpointError
from tfm.data.tokenizer import PAD
from tfm.model.attention.padding import Padding
from tfm.model.search.beams import Beams
from tfm.model.search.prepared import Prepared, prepare
from tfm.model.transformer import Transformer

# Rows of logits that are computed and normalised together on a CPU: few enough for its cache, and
# enough for the product to be quick.
BLOCK = 64

NO_NUMBERS = (
    "the model computes values that are not numbers: it is damaged, or its training diverged; use "
    "another checkpoint (or --precision fp32, if this was fp16)"
)


class Scorer(Protocol):
    """The state of one batch of sources, B at first, from its first step to its last."""

    @property
    def device(self) -> torch.device:
        """Where the log probabilities are."""

    def log_probabilities(self, beams: Beams) -> Tensor:
        """Return log P of each id after each live hypothesis, B N V in fp32 or wider.

        It is the caller's to change, until the next call.
        """

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those at the given places; `reorder` follows."""

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue row `rows[i]` of the step before, counted before any `keep`."""


class NetworkScorer:
    """One network, which decodes step by step from its cache.

    Args:
        model: in eval mode.
        sources: ids, EOS included.
    """

    def __init__(self, model: Transformer | Prepared, sources: Sequence[Sequence[int]]) -> None:
        self.model = prepare(model)
        self.device = self.model.device
        source_ids, source = pad(sources, self.device)
        self.cache = self.model.start(self.model.encode(source_ids, source), source)
        self._buffer = torch.empty(0)

    def log_probabilities(self, beams: Beams) -> Tensor:
        """Run one step of the network: only the last id of each hypothesis is new to it."""
        hidden = self.model.step(beams.tokens[:, :, -1].flatten(), self.cache)
        return self._next_ids(hidden).view(*beams.total.shape, -1)

    def keep(self, sentences: Tensor) -> None:
        """Drop the source of all other sentences."""
        self.cache.keep(sentences)

    def reorder(self, rows: Tensor) -> None:
        """Let each row continue the past of another."""
        self.cache.reorder(rows)

    def _next_ids(self, hidden: Tensor) -> Tensor:
        """Return log P of each id, R V, after hidden states, R D; valid until the next call."""
        if hidden.device.type != "cpu":
            return log_softmax(self.model.project(hidden))
        if len(self._buffer) < len(hidden):
            dtype = torch.promote_types(hidden.dtype, torch.float32)
            self._buffer = torch.empty(len(hidden), self.model.vocabulary, dtype=dtype)
        result = self._buffer[: len(hidden)]
        for block, rows in zip(torch.split(hidden, BLOCK), torch.split(result, BLOCK), strict=True):
            logits = self.model.project(block)
            if logits.dtype != rows.dtype:
                logits = rows.copy_(logits)
            torch.log_softmax(logits, -1, out=rows)
        return result


def require_numbers(next_ids: Tensor) -> None:
    """Raise `CheckpointError` if a probability is not a number: then all that sum to 1 are not."""
    if next_ids[:, :, 0].isnan().any():
        raise CheckpointError(NO_NUMBERS)


def log_softmax(logits: Tensor) -> Tensor:
    """Return log-softmax over the last axis, in fp32 for half-precision logits too."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def pad(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Padding]:
    """Return sequences of ids as the rows of one tensor, and where they end."""
    padding = Padding.from_lengths([len(ids) for ids in sequences], device=device)
    rows = [[*ids, *[PAD] * (padding.longest - len(ids))] for ids in sequences]
    return torch.tensor(rows, device=device), padding


def batches_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut places 0, 1, ... into batches of like lengths, longest first.

    A batch has at most `budget` positions, padding included; a longer sequence goes alone.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
