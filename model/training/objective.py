"""The training objective: cross-entropy of the next target piece, with label smoothing.

With `[training] consistency` the network sees two views of each batch in one forward pass, and
`consistency.py` compares what it predicts from them.

It is a sum over target tokens, not a mean: the step divides by the tokens of all its batches, so
that a token counts the same in whichever batch it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.data.batching import Batch
from tfm.model.attention.padding import Padding
from tfm.model.training.consistency import TwoViews, divergence, kept_in_second_view
from tfm.model.transformer import Transformer


class Losses(NamedTuple):
    """Sums over the target tokens of a batch; end of sentence is a token, padding is not."""

    loss: Tensor  # with label smoothing and what two views weigh: what is differentiated
    nats: Tensor  # -log P(target | source), without either and without gradient


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

    def twice(self) -> "DeviceBatch":
        """Return the batch whose rows stand there twice, one copy after the other."""
        return DeviceBatch(
            source=self.source.repeat(2, 1),
            source_padding=self.source_padding.twice(),
            target_in=self.target_in.repeat(2, 1),
            target_padding=self.target_padding.twice(),
            places=torch.cat([self.places, self.places + self.target_in.numel()]),
            targets=self.targets.repeat(2),
        )


class Objective(nn.Module):
    """A network and what it is trained for, in one forward pass: what DDP or a compiler can wrap.

    Args:
        model: the network; its weights are the only ones.
        label_smoothing: how much probability is spread over all pieces.
        views: what two views of a batch weigh; None trains on one view. While the model evaluates
            there is one view.
    """

    def __init__(
        self, model: Transformer, *, label_smoothing: float, views: TwoViews | None = None
    ) -> None:
        super().__init__()
        self.model, self.label_smoothing, self.views = model, label_smoothing, views

    def forward(self, batch: DeviceBatch) -> Losses:
        """Run the network on a batch and compare its predictions with the targets."""
        if self.views is not None and self.model.training:
            return self._two_views(batch, self.views)
        return smoothed_cross_entropy(self._logits(batch), batch.targets, self.label_smoothing)

    def _two_views(self, batch: DeviceBatch, views: TwoViews) -> Losses:
        """Return the losses of `consistency.py`; the nats are weighted like the cross-entropy."""
        kept = None
        if views.cutoff:
            ids = (batch.source, batch.target_in)
            kept = [kept_in_second_view(side, views.cutoff) for side in ids]
        log_p, log_q = F.log_softmax(self._logits(batch.twice(), kept).float(), dim=-1).chunk(2)
        first = _cross_entropy(log_p, batch.targets, self.label_smoothing)
        second = _cross_entropy(log_q, batch.targets, self.label_smoothing)
        loss = views.forward * divergence(log_p, log_q)
        if views.backward:
            loss = loss + views.backward * divergence(log_q, log_p)
        loss = loss + views.first * first.loss + views.second * second.loss
        return Losses(loss, views.first * first.nats + views.second * second.nats)

    def _logits(self, batch: DeviceBatch, kept: Sequence[Tensor | None] | None = None) -> Tensor:
        """Return the logits of the real target tokens, N V: on padding they would be thrown away.

        Args:
            kept: which tokens of source and target input the network sees; None for all.
        """
        source_kept, target_kept = kept or (None, None)
        memory = self.model.encode(batch.source, batch.source_padding, kept=source_kept)
        hidden = self.model.decode(
            batch.target_in,
            memory,
            source=batch.source_padding,
            target=batch.target_padding,
            kept=target_kept,
        )
        real = hidden.flatten(0, 1).index_select(0, batch.places)  # B T D -> N D
        return self.model.project(real)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Losses:
    """Return the cross-entropy with the targets, smoothed over the V classes, in fp32.

    The true piece has probability 1 - smoothing, and `smoothing` is spread evenly over all V
    (Szegedy et al. 2016, section 7; paper, section 5.4).

    Args:
        logits: N V.
        targets: N.
    """
    return _cross_entropy(F.log_softmax(logits.float(), dim=-1), targets, smoothing)


def _cross_entropy(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Losses:
    nats = F.nll_loss(log_probabilities, targets, reduction="sum")
    if smoothing == 0:
        return Losses(nats, nats.detach())
    even = -log_probabilities.sum() / log_probabilities.shape[-1]
    return Losses((1 - smoothing) * nats + smoothing * even, nats.detach())


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
