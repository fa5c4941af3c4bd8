"""Linear attention (Katharopoulos et al. 2020, section 3.2): no softmax, and no T x S matrix.

    phi(Q) (phi(K)^T V) / (phi(Q) sum phi(K)),  phi(x) = elu(x) + 1

The product in brackets is taken first, so that time and memory grow with N K^2 instead of N^2 K.
It is another function than softmax attention, of which it is a rough approximation: part of the
architecture, not a backend. All sums are taken in fp32 at least.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.attention.formula import masked_softmax, visible_keys
from tfm.model.attention.padding import Padding

CHUNK = 512  # positions whose phi is held in fp32 at once
CAUSAL_CHUNK = 64  # within so many the causal form makes a square of scores


class State(NamedTuple):
    """What is kept of the keys and values seen so far, however many they are."""

    products: Tensor  # B H K K: the sum of phi(k)^T v
    features: Tensor  # B H K 1: the sum of phi(k)

    @classmethod
    def empty(cls, k: Tensor) -> "State":
        """Return the state before the first key, in the dtype of the sums."""
        B, H, _, K = k.shape
        zeros = k.new_zeros(B, H, K, K + 1, dtype=sum_dtype(k))
        return cls(zeros[..., :K], zeros[..., K:])

    def add(self, features: Tensor, v: Tensor) -> "State":
        """Take in keys as phi(k), B H n K, with their values."""
        return State(
            self.products + features.transpose(-2, -1) @ v,
            self.features + features.sum(-2).unsqueeze(-1),
        )


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
    """Return linear attention, B H T K, of q, B H T K, to k and v, B H S K.

    The arguments are those of `formula.attend`. A query that sees no key gets zeros.

    Raises:
        ValueError: if asked to drop attention weights: there are none.
    """
    if dropout:
        raise ValueError("linear attention forms no weights that could be dropped")
    with torch.autocast(q.device.type, enabled=False):  # it would take sums in half precision
        real = None if keys is None or keys.mask is None else keys.mask[:, None, :, None]
        parts = causal_parts(q, k, v, real) if causal else whole_parts(q, k, v, real)
        return torch.cat([part.to(q.dtype) for part in parts], dim=-2)


def whole_parts(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Iterator[Tensor]:
    """Yield the output of all queries, chunk by chunk, where each sees every real key."""
    state = absorb(State.empty(k), k, v, real)
    for part in torch.split(q, CHUNK, dim=-2):
        features = feature_map(part)
        yield normalised(features @ state.products, features @ state.features)


def causal_parts(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Iterator[Tensor]:
    """Yield the output of all queries where query t sees keys up to S - T + t.

    The state is all that is known of the chunks before: were they of one position each, this would
    be the recurrent form.
    """
    past = k.shape[-2] - q.shape[-2]
    masks = (None, None) if real is None else (real[..., :past, :], real[..., past:, :])
    state = absorb(State.empty(k), k[..., :past, :], v[..., :past, :], masks[0])
    own = chunks(k[..., past:, :], v[..., past:, :], masks[1], size=CAUSAL_CHUNK)
    for part, (keys, values, mask) in zip(torch.split(q, CAUSAL_CHUNK, dim=-2), own, strict=True):
        features, of_keys = feature_map(part), hidden_features(keys, mask)
        scores = (features @ of_keys.transpose(-2, -1)).tril()
        values = values.to(of_keys.dtype)
        yield normalised(
            scores @ values + features @ state.products,
            scores.sum(-1, keepdim=True) + features @ state.features,
        )
        state = state.add(of_keys, values)


def absorb(state: State, k: Tensor, v: Tensor, real: Tensor | None) -> State:
    """Return the state after all keys and values, taken in chunk by chunk."""
    for keys, values, mask in chunks(k, v, real, size=CHUNK):
        features = hidden_features(keys, mask)
        state = state.add(features, values.to(features.dtype))
    return state


def chunks(
    k: Tensor, v: Tensor, real: Tensor | None, *, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield keys, values and which of them are real, `size` at a time."""
    parts = torch.split(k, size, dim=-2), torch.split(v, size, dim=-2)
    masks = repeat(None) if real is None else torch.split(real, size, dim=-2)
    yield from zip(*parts, masks, strict=False)


def feature_map(x: Tensor) -> Tensor:
    """Return elu(x) + 1 in the dtype of the sums: x + 1 above zero and e^x below, never negative.

    Small values keep their digits, which `elu(x) + 1` as it stands rounds away.
    """
    features: Tensor = _Features.apply(x.to(sum_dtype(x)))  # type: ignore[no-untyped-call]
    return features


class _Features(torch.autograd.Function):
    """phi, whose derivative is min(phi, 1): nothing is kept that the product after it does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = x.clamp(max=0).exp_().add_(F.relu(x))
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        features: Tensor = ctx.saved_tensors[0]
        return gradient * features.clamp(max=1)


def hidden_features(k: Tensor, real: Tensor | None) -> Tensor:
    """Return phi(k), and zeros for padding, which then adds nothing to any sum."""
    features = feature_map(k)
    return features if real is None else features * real


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return what sums over `x` are taken in: fp32, or fp64 for fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def normalised(products: Tensor, weights: Tensor) -> Tensor:
    """Return `products` by the sum of the weights in them; zeros where there are none."""
    return products / torch.where(weights > 0, weights, 1)


def attention_weights(q: Tensor, k: Tensor, *, causal: bool, keys: Padding | None) -> Tensor:
    """Return the weights that linear attention implies: softmax(log(phi(Q) phi(K)^T)), B H T S."""
    visible = visible_keys(q.shape[-2], k.shape[-2], causal=causal, keys=keys, device=q.device)
    with torch.autocast(q.device.type, enabled=False):
        scores = feature_map(q) @ feature_map(k).transpose(-2, -1)
        return masked_softmax(scores.log(), visible).to(q.dtype)
