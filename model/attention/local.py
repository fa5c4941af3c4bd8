"""Local attention: a position sees those at most w/2 away (Beltagy et al. 2020, section 3.1).

    softmax(Q K^T / sqrt(K) + M) V,  M_ij = 0 where |i - j| <= w/2, else -inf

A sequence is cut into blocks of queries. Each block sees the keys of its own places and of w/2 more
on both sides, so that time and memory grow with N w instead of N^2. Within its blocks this is
attention under a mask, which any kernel can do that takes masks, forward and backward.
"""

from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.attention import flash, sdpa
from tfm.model.attention.formula import weights_where
from tfm.model.attention.padding import Padding

SMALLEST_BLOCK = 32  # queries; smaller ones cost more in overhead than they save in arithmetic


class AttendWhere(Protocol):
    """Attention under a mask: B H T K, B H S K twice, and what is visible, to B H T K."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor, dropout: float
    ) -> Tensor: ...


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
    window: int,
    kernel: AttendWhere = sdpa.attend_where,
) -> Tensor:
    """Return the attention of a sequence to itself within `window`, in O(N window).

    Args:
        q, k, v: B H N K, with keys and queries at the same places.
        window: w; each side of a position has w/2 visible neighbours.
        kernel: what attends within the blocks.

    Raises:
        ValueError: if asked for causal attention, or for another sequence than the queries'.
    """
    _require_encoder(q, k, causal=causal)
    N, reach = q.shape[-2], window // 2
    size = max(SMALLEST_BLOCK, reach)
    if N <= size + 2 * reach:  # one block would see all
        visible = visible_keys(N, window=window, keys=keys, device=q.device)
        return kernel(q, k, v, visible=visible, dropout=dropout)
    visible = visible_in_blocks(q, size=size, reach=reach, keys=keys)
    parts = (blocks(q, size), blocks(k, size, reach), blocks(v, size, reach))
    out = kernel(*parts, visible=visible, dropout=dropout).transpose(1, 2)  # (B n) size H K
    out = out.reshape(len(q), -1, *out.shape[2:])  # B (n size) H K
    return out[:, :N].transpose(1, 2)


def attention_weights(
    q: Tensor, k: Tensor, *, causal: bool, keys: Padding | None, window: int
) -> Tensor:
    """Return the definition: the weights, B H N N, of attention under a mask with that band."""
    _require_encoder(q, k, causal=causal)
    visible = visible_keys(q.shape[-2], window=window, keys=keys, device=q.device)
    return weights_where(q, k, visible)


def visible_keys(N: int, *, window: int, keys: Padding | None, device: torch.device) -> Tensor:
    """Return which keys each query sees: the band, and no padding; 1 or B, 1, N N."""
    places = torch.arange(N, device=device)
    band = ((places[:, None] - places).abs() <= window // 2)[None, None]
    return band if keys is None or keys.mask is None else band & keys.mask[:, None, None, :]


def blocks(x: Tensor, size: int, reach: int = 0) -> Tensor:
    """Cut B H N K into n blocks each with `reach` more at both sides: (B n) H (size + 2 reach) K.

    The rows of the batch stand end to end meanwhile, so that neighbouring blocks share memory; what
    a block sees of another row, the mask hides.
    """
    x = x.transpose(1, 2)  # B N H K
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % size)).flatten(0, 1)
    if reach:
        x = F.pad(x, (0, 0, 0, 0, reach, reach))
    return x.unfold(0, size + 2 * reach, size).transpose(-1, -2)


def visible_in_blocks(x: Tensor, *, size: int, reach: int, keys: Padding | None) -> Tensor:
    """Return which keys of its block each query sees: (B n) 1 size (size + 2 reach)."""
    B, N = len(x), x.shape[-2]
    n = -(-N // size)
    within = torch.arange(size + 2 * reach, device=x.device) - reach
    queries = torch.arange(size, device=x.device)
    band = (queries[:, None] - within).abs() <= reach  # size, size + 2 reach
    places = torch.arange(n, device=x.device)[:, None] * size + within  # n, size + 2 reach
    lengths = torch.full((B,), N, device=x.device) if keys is None else keys.lengths
    real = (places >= 0) & (places < lengths[:, None, None])  # B n, size + 2 reach
    return (band & real[:, :, None]).flatten(0, 1)[:, None]


def attend_unpadded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
    window: int,
) -> Tensor:
    """Return the same as `attend` by the sliding window of the varlen flash kernel (CUDA)."""
    _require_encoder(q, k, causal=causal)
    if dropout:
        raise ValueError("the varlen kernel has no attention dropout")
    kernel = partial(flash.varlen, reach=window // 2)
    return flash.attend_unpadded(q, k, v, causal=False, queries=queries, keys=keys, kernel=kernel)


def _require_encoder(q: Tensor, k: Tensor, *, causal: bool) -> None:
    if causal or q.shape[-2] != k.shape[-2]:
        raise ValueError(
            "local attention is that of an encoder to itself: neither causal nor cross"
        )
