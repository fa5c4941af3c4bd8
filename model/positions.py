"""Sinusoidal positional encoding (paper, section 3.5).

PE(pos, 2i) = sin(pos / 10000^(2i / D))    PE(pos, 2i + 1) = cos(same)
"""

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return PE for positions 0 .. length - 1, L D, computed in fp64 and rounded to fp32.

    Raises:
        ValueError: if `d_model` is odd: a sine would have no cosine beside it.
    """
    if d_model % 2:
        raise ValueError(f"`d_model` must be even, but is {d_model}.")
    position = torch.arange(length, dtype=torch.float64)[:, None]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10000 ** (pair / d_model)  # L D/2
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).float()


class Positions(nn.Module):
    """Adds PE to embeddings; the table grows on demand, so no length is too long.

    The table is fp32 whatever the network is cast to, and the sum is rounded once. It is computed
    where it is needed: no part of a checkpoint.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = sinusoids(512, d_model)  # no buffer: casting the network would round it

    def forward(self, x: Tensor, *, start: int = 0) -> Tensor:
        """Add PE(start), PE(start + 1), ... to x, B L D."""
        end = start + x.shape[-2]
        self._reach(end, x.device)
        return (x + self.table[start:end]).to(x.dtype)

    def at(self, place: int, device: torch.device) -> Tensor:
        """Return PE(place), D, in fp32."""
        self._reach(place + 1, device)
        return self.table[place]

    def _reach(self, end: int, device: torch.device) -> None:
        """Bring a table with so many positions to `device`."""
        if end > len(self.table):
            self.table = sinusoids(max(end, 2 * len(self.table)), self.table.shape[1])
        if self.table.device != device:
            self.table = self.table.to(device)
