"""What a search asks for: how likely each id is to follow each live hypothesis.

A search knows nothing else of a model. So whatever can answer may be searched: one network and its
cache, or several networks that agree on an average.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tfm.data.tokenizer import PAD
from tfm.model.attention.padding import Padding
from tfm.model.beams import Beams
from tfm.model.transformer import Transformer


class Scorer(Protocol):
    """The state of one batch of sources, B at first, from its first step to its last."""

    @property
    def device(self) -> torch.device:
        """Where the log probabilities are."""

    def log_probabilities(self, beams: Beams) -> Tensor:
        """Return log P of each id after each live hypothesis, B N V in fp32 or wider."""

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

    def __init__(self, model: Transformer, sources: Sequence[Sequence[int]]) -> None:
        self.model = model
        source_ids, source = pad(sources, self.device)
        self.cache = model.start(model.encode(source_ids, source), source)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.target_embedding.weight.device

    def log_probabilities(self, beams: Beams) -> Tensor:
        """Run one step of the network: only the last id of each hypothesis is new to it."""
        logits = self.model.project(self.model.step(beams.tokens[:, :, -1].flatten(), self.cache))
        return log_softmax(logits).view(*beams.log_probability.shape, -1)

    def keep(self, sentences: Tensor) -> None:
        """Drop the source of all other sentences."""
        self.cache.keep(sentences)

    def reorder(self, rows: Tensor) -> None:
        """Let each row continue the past of another."""
        self.cache.reorder(rows)


def log_softmax(logits: Tensor) -> Tensor:
    """Return log-softmax over the last axis, in fp32 for half-precision logits too."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def pad(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Padding]:
    """Return sequences of ids as the rows of one tensor, and where they end."""
    padding = Padding.from_lengths([len(ids) for ids in sequences], device=device)
    rows = [[*ids, *[PAD] * (padding.longest - len(ids))] for ids in sequences]
    return torch.tensor(rows, device=device), padding
