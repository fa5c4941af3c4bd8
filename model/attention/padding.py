"""Which positions of a right-padded batch are real: the one description that all backends share.

A backend takes from it what its kernel needs: nothing when no row is padded, a boolean mask, or the
start offsets of the sentences once they stand end to end without padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """One side of a batch: `lengths[b]` real positions at the left of row b, padding to its right.

    Attributes:
        lengths: B, int64, on the device of the batch.
        longest: L, the padded length of every row.
        mask: B L, True at real positions, or None when every row is full.
        total: the number of real positions in all rows, counted on the host.
    """

    lengths: Tensor
    longest: int
    mask: Tensor | None
    total: int

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        *,
        longest: int | None = None,
        device: torch.device | str = "cpu",
    ) -> "Padding":
        """Describe rows of the given lengths, counted on the host so that no device waits."""
        longest = int(max(lengths)) if longest is None else longest
        on_device = torch.as_tensor(lengths, dtype=torch.int64).to(device)
        full = min(lengths) == longest
        mask = None if full else torch.arange(longest, device=device) < on_device[:, None]
        return cls(on_device, longest, mask, int(sum(lengths)))

    @classmethod
    def full(cls, rows: int, length: int, *, device: torch.device | str = "cpu") -> "Padding":
        """Describe rows without padding, all `length` long."""
        return cls.from_lengths([length] * rows, device=device)

    def select(self, rows: Tensor) -> "Padding":
        """Return the padding of the given rows, in that order, as wide as the longest of them.

        Where rows are padded this waits for the device once, to count what is left.
        """
        lengths = self.lengths[rows]
        if self.mask is None or not len(rows):
            return Padding(lengths, self.longest, None, len(rows) * self.longest)
        total, longest = torch.stack([lengths.sum(), lengths.max()]).tolist()
        full = total == longest * len(rows)
        return Padding(lengths, longest, None if full else self.mask[rows, :longest], total)

    def twice(self) -> "Padding":
        """Return the padding of a batch whose rows stand there twice, one copy after the other."""
        mask = None if self.mask is None else self.mask.repeat(2, 1)
        return Padding(self.lengths.repeat(2), self.longest, mask, 2 * self.total)

    @cached_property
    def starts(self) -> Tensor:
        """Where each sentence begins once all stand end to end, and where the last ends.

        B + 1, int32, as the variable-length kernels want it.
        """
        ends = self.lengths.cumsum(0, dtype=torch.int32)
        return torch.nn.functional.pad(ends, (1, 0))

    @cached_property
    def real(self) -> Tensor:
        """The indices of the real positions among all B L, in order; `total` of them."""
        rows = torch.arange(len(self.lengths), device=self.lengths.device)
        row = rows.repeat_interleave(self.lengths, output_size=self.total)
        shift = rows * self.longest - self.starts[:-1]  # what padding adds before each row
        return torch.arange(self.total, device=self.lengths.device) + shift[row]

    def unpad(self, x: Tensor) -> Tensor:
        """Put the real positions of x, B L ..., end to end: `total` ..."""
        x = x.flatten(0, 1)
        return x if self.mask is None else x.index_select(0, self.real)

    def pad(self, x: Tensor) -> Tensor:
        """Put x, `total` ..., back to its places in B L ..., with zeros at the padding."""
        if self.mask is not None:
            zeros = x.new_zeros(len(self.lengths) * self.longest, *x.shape[1:])
            x = zeros.index_copy(0, self.real, x)
        return x.view(-1, self.longest, *x.shape[1:])
