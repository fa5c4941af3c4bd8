"""The training objective: cross-entropy of the next target piece, with label smoothing.

It is a sum over target tokens, not a mean: the step divides by the tokens of all its batches, so
that a token counts the same in whichever batch it stands.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.data.batching import Batch
from tfm.model.attention.padding import Padding
from tfm.model.transformer import Transformer


class Losses(NamedTuple):
    """Sums over the target tokens of a batch; end of sentence is a token, padding is not."""

    loss: Tensor  # with label smoothing: what is differentiated
    nats: Tensor  # -log P(target | source), without smoothing and gradient


@dataclass(frozen=True)
class DeviceBatch:
    """A batch where the network is.

    Args:
        source, target_in: ids, B S and B T.
        source_padding, target_padding: which of them are real.
        places: positions of the real target tokens in the flattened B T, N.
        targets: the ids to predict there, N.
    """

    source: Tensor
    source_padding: Padding
    target_in: Tensor
    target_padding: Padding
    places: Tensor
    targets: Tensor

    @classmethod
    def from_batch(cls, batch: Batch, device: torch.device) -> "DeviceBatch":
        """Move a batch to `device`; what depends on lengths is computed on the host before."""
        real = np.arange(batch.target_out.shape[1]) < batch.target_lengths[:, None]
        places = np.flatnonzero(real)
        return cls(
            source=_to(batch.source, device),
            source_padding=Padding.from_lengths(batch.source_lengths.tolist(), device=device),
            target_in=_to(batch.target_in, device),
            target_padding=Padding.from_lengths(batch.target_lengths.tolist(), device=device),
            places=_to(places, device),
            targets=_to(batch.target_out.reshape(-1)[places], device),
        )


class Objective(nn.Module):
    """A network and what it is trained for, in one forward pass: what DDP or a compiler can wrap.

    Args:
        model: the network; its weights are the only ones.
        label_smoothing: how much probability is spread over all pieces.
    """

    def __init__(self, model: Transformer, *, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, batch: DeviceBatch) -> Losses:
        """Run the network on a batch and compare its predictions with the targets.

        Logits are computed for real target tokens only: on padding they would be thrown away.
        """
        memory = self.model.encode(batch.source, batch.source_padding)
        hidden = self.model.decode(
            batch.target_in, memory, source=batch.source_padding, target=batch.target_padding
        )
        real = hidden.flatten(0, 1).index_select(0, batch.places)  # B T D -> N D
        return smoothed_cross_entropy(self.model.project(real), batch.targets, self.label_smoothing)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Losses:
    """Return the cross-entropy with the targets, smoothed over the V classes, in fp32.

    The true piece has probability 1 - smoothing, and `smoothing` is spread evenly over all V
    (Szegedy et al. 2016, section 7; paper, section 5.4).

    Args:
        logits: N V.
        targets: N.
    """
    log_probabilities = F.log_softmax(logits.float(), dim=-1)
    nats = F.nll_loss(log_probabilities, targets, reduction="sum")
    if smoothing == 0:
        return Losses(nats, nats.detach())
    even = -log_probabilities.sum() / logits.shape[-1]
    return Losses((1 - smoothing) * nats + smoothing * even, nats.detach())


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
