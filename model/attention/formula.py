"""The backend `math`: scaled dot-product attention as the formula says it (paper, section 3.2.1).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(K)) V

Every other backend is tested against this one. It holds the whole T x S score matrix in memory.
"""

import torch
from torch import Tensor

from tfm.model.attention.padding import Padding
from tfm.model.dropout import dropout as drop


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
) -> Tensor:
    """Return softmax(Q K^T / sqrt(K)) V.

    Args:
        q: B H T K.
        k, v: B H S K.
        causal: let query t see keys up to S - T + t only (all earlier ones, in a cache too).
        queries, keys: the padding of each side; padded keys are not seen.
        dropout: share of attention weights to drop (training only).

    Returns:
        B H T K; zeros for a query that may see no key at all.
    """
    visible = visible_keys(q.shape[-2], k.shape[-2], causal=causal, keys=keys, device=q.device)
    return attend_where(q, k, v, visible=visible, dropout=dropout)


def attend_where(
    q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor | None, dropout: float
) -> Tensor:
    """Return softmax(Q K^T / sqrt(K)) V where each query sees only the keys that are `visible`.

    That is a boolean mask, broadcastable to B H T S, or None for all keys.
    """
    return drop(weights_where(q, k, visible), dropout) @ v


def attention_weights(q: Tensor, k: Tensor, *, causal: bool, keys: Padding | None) -> Tensor:
    """Return softmax(Q K^T / sqrt(K)), B H T S: each row sums to 1, or is 0 if it sees no key.

    The softmax subtracts each row's maximum, so large scores do not overflow, and it is taken in
    fp32 for half-precision inputs. Hidden keys are set to -inf by a boolean mask: a constant such
    as -1e9 would overflow in fp16, whose largest value is 65,504.
    """
    visible = visible_keys(q.shape[-2], k.shape[-2], causal=causal, keys=keys, device=q.device)
    return weights_where(q, k, visible)


def weights_where(q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    """Return `attention_weights` under any mask, broadcastable to B H T S, or None for all keys."""
    scores = (q * k.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # B H T S
    return masked_softmax(scores, visible)


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Return the softmax over the visible scores of each row; a row without any becomes zeros."""
    if visible is None:
        return softmax(scores)
    return softmax(scores.masked_fill(~visible, -torch.inf)).masked_fill(~visible, 0.0)


def softmax(scores: Tensor) -> Tensor:
    """Return exp(scores) over the last axis, divided by its sum, in the dtype of `scores`."""
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(
        scores.dtype
    )


def visible_keys(
    queries: int, keys_: int, *, causal: bool, keys: Padding | None, device: torch.device
) -> Tensor | None:
    """Return which keys each query may see, broadcastable to B H T S, or None for all of them."""
    padding = None if keys is None or keys.mask is None else keys.mask[:, None, None, :]
    if not causal or queries == 1:  # the last query sees every key
        return padding
    lower = torch.ones(queries, keys_, dtype=torch.bool, device=device).tril(keys_ - queries)
    return lower if padding is None else lower & padding
