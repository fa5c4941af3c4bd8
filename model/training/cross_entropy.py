"""The loss of the output projection, without ever holding its V columns for a whole batch.

Logits take more memory than everything else: N V numbers, and plain autograd keeps several copies
in fp32. Here a few rows of logits at a time, which fit into the processor's cache, are compared
with the targets, and the gradient takes their place. From it come the gradients of the hidden
states and of the matrix, in the forward pass already, so that nothing of size N V is kept.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfm.model.linear import multiply, multiply_columns

# Logits in memory at a time, over all views: 64 MiB in half precision.
LOGITS = 2**25
# Logits compared at a time on a CPU, for its cache: 2 MiB in fp32.
CACHED = 2**19


class Losses(NamedTuple):
    """Sums over the target tokens of a batch; end of sentence is a token, padding is not."""

    loss: Tensor  # with label smoothing and what two views weigh: what is differentiated
    nats: Tensor  # -log P(target | source), without either and without gradient


class Differentiated(NamedTuple):
    """Losses, and the gradient of `losses.loss` with respect to the logits."""

    losses: Losses
    gradient: Tensor


# From logits, views N V in fp32 or better, which it may overwrite, and targets, N.
Compare = Callable[[Tensor, Tensor], Differentiated]


class Distributions(NamedTuple):
    """Softmax and log sum exp of logits, ... V: probabilities, ... V, and normaliser, ..."""

    probabilities: Tensor
    normaliser: Tensor  # log P = logit - normaliser

    @classmethod
    def of(cls, logits: Tensor) -> "Distributions":
        """Compute both by one softmax: the largest probability of a row is never 0."""
        p = logits.softmax(-1)
        return cls(p, logits.amax(-1) - p.amax(-1).log())


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Differentiated:
    """Return the cross-entropy with the targets, smoothed over the V classes.

    The true piece has probability 1 - smoothing, and `smoothing` is spread evenly over all V
    (Szegedy et al. 2016, section 7; paper, section 5.4). The gradient is softmax(logits) minus
    these probabilities. Plain autograd needs twice the passes over the logits.

    Args:
        logits: N V.
        targets: N.
    """
    p, normaliser = Distributions.of(logits)
    losses = cross_entropy(logits, normaliser, targets, smoothing)
    return Differentiated(losses, subtract_wanted(p, targets, smoothing))


def cross_entropy(logits: Tensor, normaliser: Tensor, targets: Tensor, smoothing: float) -> Losses:
    """Return the losses of `smoothed_cross_entropy`; `normaliser`, N, is log sum exp(logits)."""
    nats = (normaliser - logits.gather(1, targets[:, None]).squeeze(1)).sum()
    even = normaliser.sum() - logits.sum() / logits.shape[-1]
    return Losses((1 - smoothing) * nats + smoothing * even, nats)


def subtract_wanted(x: Tensor, targets: Tensor, smoothing: float, *, weight: float = 1.0) -> Tensor:
    """Subtract `weight` times the smoothed distribution of each target from x, N V, in place."""
    x -= weight * smoothing / x.shape[-1]
    certain = x.new_full((len(x), 1), -weight * (1 - smoothing))
    return x.scatter_add_(1, targets[:, None], certain)


def projected_losses(hidden: Tensor, matrix: Tensor, targets: Tensor, compare: Compare) -> Losses:
    """Return what `compare` says of the logits hidden matrix^T; the products are autocast.

    Args:
        hidden: views N D.
        matrix: V D, the output projection.
        targets: N.
        compare: its losses must be sums over N, for it is asked about some rows at a time.
    """
    if torch.is_grad_enabled():
        loss, nats = _ProjectedLosses.apply(hidden, matrix, targets, compare)  # type: ignore[no-untyped-call]
        return Losses(loss, nats)
    total = _nothing(hidden)
    for rows in _pieces(targets, LOGITS // (len(hidden) * len(matrix))):
        total = _add(
            total, _differentiate(multiply(hidden[:, rows], matrix), targets[rows], compare)
        )
    return total


class _ProjectedLosses(torch.autograd.Function):
    """`projected_losses` with its gradient, which the forward pass computes."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, targets: Tensor, compare: Compare
    ) -> tuple[Tensor, Tensor]:
        device, dtype = hidden.device.type, hidden.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        low_hidden, low_matrix = hidden.to(dtype), matrix.to(dtype)
        total = _nothing(hidden)
        hidden_gradient, matrix_gradient = torch.empty_like(low_hidden), torch.zeros_like(matrix)
        with torch.autocast(device, enabled=False):
            for rows in _pieces(targets, LOGITS // (len(hidden) * len(matrix))):
                part = low_hidden[:, rows]
                logits = multiply(part.flatten(0, 1), low_matrix).view(*part.shape[:2], -1)
                total = _add(total, _differentiate(logits, targets[rows], compare))
                gradient = logits.flatten(0, 1)
                hidden_gradient[:, rows] = multiply(gradient, low_matrix.t()).view(part.shape)
                matrix_gradient += multiply_columns(gradient, part.flatten(0, 1))
        ctx.save_for_backward(hidden_gradient, matrix_gradient)
        ctx.mark_non_differentiable(total.nats)
        ctx.dtype = hidden.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, matrix = ctx.saved_tensors
        return hidden.to(ctx.dtype) * scale, matrix * scale, None, None


def _differentiate(logits: Tensor, targets: Tensor, compare: Compare) -> Losses:
    """Replace logits, views N V, by the gradient of their loss; return the losses."""
    views, _, V = logits.shape
    exact = torch.promote_types(logits.dtype, torch.float32)
    total = _nothing(logits)
    for rows in _pieces(targets, CACHED // (views * V) if logits.is_cpu else len(targets)):
        losses, logits[:, rows] = compare(logits[:, rows].to(exact), targets[rows])
        total = _add(total, losses)
    return total


def _pieces(targets: Tensor, length: int) -> Iterator[slice]:
    """Cut the rows into slices of `length`, at least one row each."""
    length = max(1, length)
    return (slice(start, start + length) for start in range(0, len(targets), length))


def _nothing(like: Tensor) -> Losses:
    zero = torch.zeros((), device=like.device)
    return Losses(zero, zero)


def _add(a: Losses, b: Losses) -> Losses:
    return Losses(a.loss + b.loss, a.nats + b.nats)
