"""Dropout whose CPU mask costs one random byte per element.

PyTorch draws a Bernoulli variable per element on one thread, which takes up to a third of a CPU
training step. Here each element gets one byte cut from full 64-bit random words of the same torch
generator, so seeding works as ever. The probability is rounded to 1/256, and the kept elements are
scaled by what it was rounded to: the expectation is exact.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zero each element with probability p in training, and scale the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements dropped, in training; x itself otherwise. Any shape."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element of x with probability p and scale the others by 1 / (1 - p). Any shape.

    On a CPU p is rounded to 1/256, unless that would drop nothing or everything.
    """
    if p == 0:
        return x
    dropped = round(p * 256)  # this many of the 256 byte values mean "drop"
    if x.device.type != "cpu" or not 0 < dropped < 256:
        return F.dropout(x, p)
    kept = (random_bytes_for(x) >= dropped).to(x.dtype)
    scale = 256 / (256 - dropped)
    if x.dtype in (torch.bfloat16, torch.float16):
        return x * kept * scale  # rounded to the dtype, the scale alone would be off by up to 0.4 %
    # Scaling the mask and not the product leaves one multiplication to the backward pass.
    return x * kept.mul_(scale)


def random_bytes_for(x: Tensor) -> Tensor:
    """Return independent uniform bytes in the shape of x from torch's CPU generator."""
    return _random_bytes_unseen(x) if torch.compiler.is_compiling() else random_bytes(x.shape)


@torch.library.custom_op(
    "tfm::random_bytes", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _random_bytes_unseen(x: Tensor) -> Tensor:
    """Do the same where a compiler does not see it, so that it draws no numbers of its own.

    That it asks for x, and not for a shape, keeps the order in which the dropouts of a layer draw.
    """
    return random_bytes(x.shape)


@_random_bytes_unseen.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.uint8)


def random_bytes(shape: torch.Size) -> Tensor:
    """Return independent uniform bytes of the given shape from torch's CPU generator."""
    words = torch.empty((shape.numel() + 7) // 8, dtype=torch.int64)
    words.random_(-(2**63), None)  # the full 64-bit range: the generator's raw words
    return words.view(torch.uint8)[: shape.numel()].view(shape)
