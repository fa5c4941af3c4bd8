"""The training objective: cross-entropy of the next target piece, with label smoothing.

With `[training] consistency` the network sees two views of each batch in one forward pass, and
`consistency.py` compares what it predicts from them.

It is a sum over target tokens, not a mean: the step divides by the tokens of all its batches, so
that a token counts the same in whichever batch it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tfm.data.batching import Batch
from tfm.model.attention.padding import Padding
from tfm.model.training.consistency import TwoViews, compare_views, kept_in_second_view
from tfm.model.training.cross_entropy import (
    Compare,
    Differentiated,
    Losses,
    projected_losses,
    smoothed_cross_entropy,
)
from tfm.model.transformer import Transformer


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
    """A network and what it is trained for, in one forward pass: what a compiler can wrap.

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
        hidden = self._hidden(batch)[None]

        def compare(logits: Tensor, targets: Tensor) -> Differentiated:
            return smoothed_cross_entropy(logits[0], targets, self.label_smoothing)

        return self._losses(hidden, batch.targets, compare)

    def _two_views(self, batch: DeviceBatch, views: TwoViews) -> Losses:
        """Return the losses of `consistency.py`; the nats are weighted like the cross-entropy."""
        kept = None
        if views.cutoff:
            ids = (batch.source, batch.target_in)
            kept = [kept_in_second_view(side, views.cutoff) for side in ids]
        both = self._hidden(batch.twice(), kept)
        hidden = both.view(2, -1, both.shape[-1])

        def compare(logits: Tensor, targets: Tensor) -> Differentiated:
            return compare_views(logits, targets, views, self.label_smoothing)

        return self._losses(hidden, batch.targets, compare)

    def _hidden(self, batch: DeviceBatch, kept: Sequence[Tensor | None] | None = None) -> Tensor:
        """Return the last hidden states of the real target tokens, N D.

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
        return hidden.flatten(0, 1).index_select(0, batch.places)  # B T D -> N D

    def _losses(self, hidden: Tensor, targets: Tensor, compare: Compare) -> Losses:
        return projected_losses(hidden, self.model.target_embedding.weight, targets, compare)


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
