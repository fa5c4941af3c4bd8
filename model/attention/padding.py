"""Which positions of a right-padded batch are real: the one description that all backends share.

A backend takes from it what its kernel needs: nothing when no row is padded, a boolean mask, or the
start offsets of the unpadded sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """One side of a batch: `lengths[b]` real positions at the left of row b, padding to its right.

    Attributes:
        lengths: B, int64, on the device of the batch.
        longest: L, the padded length of every row.
        mask: B L, True at real positions, or None when every row is full.
    """

    lengths: Tensor
    longest: int
    mask: Tensor | None

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        *,
        longest: int | None = None,
        device: torch.device | str = "cpu",
    ) -> "Padding":
        """Describe rows of the given lengths, counted on the host so that no device waits."""
        longest = max(lengths) if longest is None else longest
        on_device = torch.as_tensor(lengths, dtype=torch.int64).to(device)
        if min(lengths) == longest:
            return cls(on_device, longest, None)
        positions = torch.arange(longest, device=device)
        return cls(on_device, longest, positions < on_device[:, None])

    def select(self, rows: Tensor) -> "Padding":
        """Return the padding of the given rows, in that order. The padded length stays."""
        mask = None if self.mask is None else self.mask[rows]
        return Padding(self.lengths[rows], self.longest, mask)
