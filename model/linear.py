"""x W^T + b, by the library that multiplies fastest on this machine.

PyTorch multiplies fp32 matrices on a CPU by MKL, which leaves the AVX-512 units of AMD processors
alone. oneDNN, which PyTorch brings along too, uses them: 250 GFLOP/s a core for 115 (Zen 5).
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FEWEST_ROWS = 8  # with fewer, MKL is as fast


class Linear(nn.Linear):
    """`nn.Linear`, with the same weights, gradients and names, by the faster library."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x, ... in, to ... out."""
        if not prefers_onednn(x):
            return F.linear(x, self.weight, self.bias)
        y: Tensor = _OneDnnLinear.apply(x.flatten(0, -2), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], -1)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T for x, N in, and W, out in, without a gradient."""
    return _onednn(x, weight) if prefers_onednn(x) else F.linear(x, weight)


def multiply_columns(g: Tensor, x: Tensor) -> Tensor:
    """Return g^T x for g, N out, and x, N in: the gradient of W. It has no gradient itself."""
    if not prefers_onednn(x):
        return g.t() @ x
    # oneDNN is faster where the result has fewer rows than columns.
    if g.shape[1] > x.shape[1]:
        return _onednn(x.t(), g.t()).t()
    return _onednn(g.t(), x.t())


def prefers_onednn(x: Tensor) -> bool:
    """Return whether a product of x, ... in, is for oneDNN and no autocast will round it."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.numel() >= FEWEST_ROWS * x.shape[-1]
        and _onednn_is_better_here()
        and not torch.is_autocast_enabled("cpu")
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _onednn_is_better_here() -> bool:
    return mkl_is_slow()  # which a compiler could not look into


@cache
def mkl_is_slow() -> bool:
    """Return whether this is an AMD processor with AVX-512, and oneDNN is there to use it."""
    features = torch.cpu.get_capabilities()
    return (
        "AMD" in str(features.get("cpu_name"))
        and bool(features.get("avx512_f"))
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y: Tensor
    if torch.compiler.is_compiling():
        y = _onednn_unseen(x, weight, bias)
    else:
        y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


@torch.library.custom_op("tfm::onednn", mutates_args=())
def _onednn_unseen(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do the same where a compiler does not see it: it takes oneDNN's for constant weights only."""
    return _onednn(x, weight, bias)


@_onednn_unseen.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class _OneDnnLinear(torch.autograd.Function):
    """x W^T + b for x, N in, by oneDNN, whose operator has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        x_gradient = _onednn(g, weight.t()) if ctx.needs_input_grad[0] else None
        return x_gradient, multiply_columns(g, x), g.sum(0)
