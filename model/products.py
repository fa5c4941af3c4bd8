"""Products with weights that never change: what search multiplies by, thousands of times.

Training changes the weights at every step. Where they stay it pays to bring them into the blocked
layout of oneDNN, PyTorch's library of CPU kernels, once and not at every call; and the activation,
or the sum that follows, costs nothing in the same pass.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.model.layers import FeedForward

ROWS = 128  # that the layout is made for; it is the same for all numbers of rows but one


class Product(nn.Module):
    """f(x W^T + b), or x W^T + b + y: anywhere, by PyTorch's own product.

    Args:
        weight: W, E D.
        bias: b, E, or None.
        activation: f: none, relu or gelu.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: str = "none") -> None:
        super().__init__()
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.activation = activation

    def forward(self, x: Tensor, *, plus: Tensor | None = None) -> Tensor:
        """Map x, ... D, to ... E, and add `plus` if there is one (and no activation)."""
        x = F.linear(x, self.weight, self.bias)
        if plus is not None:
            return x + plus
        match self.activation:
            case "relu":
                return x.relu_()
            case "gelu":
                return F.gelu(x)
            case _:
                return x


class Packed(Product):
    """The same by oneDNN, from weights in its own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: str = "none") -> None:
        super().__init__(weight, bias, activation=activation)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def forward(self, x: Tensor, *, plus: Tensor | None = None) -> Tensor:
        """Map x, ... D, to ... E, and add `plus` if there is one (and no activation)."""
        y: Tensor
        if plus is None:
            y = torch.ops.mkldnn._linear_pointwise(
                x, self.weight, self.bias, self.activation, [], "none"
            )
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, self.bias, "add")
        return y

    @staticmethod
    def suits(weight: Tensor) -> bool:
        """Return whether oneDNN multiplies such weights here."""
        return (
            weight.device.type == "cpu"
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
            and (
                weight.dtype == torch.float32
                or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
            )
        )


class FeedForwardProducts(nn.Module):
    """The position-wise network of two products."""

    def __init__(self, network: FeedForward, make: Callable[..., Product]) -> None:
        super().__init__()
        self.gated = network.activation == "swiglu"
        inner, outer = network.inner, network.outer
        activation = "none" if self.gated else network.activation
        self.inner = make(inner.weight, inner.bias, activation=activation)
        self.outer = make(outer.weight, outer.bias)

    def forward(self, x: Tensor, *, plus: Tensor | None = None) -> Tensor:
        """Map x, ... D, to ... D, each position by itself, and add `plus` if there is one."""
        x = self.inner(x)
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        y: Tensor = self.outer(x, plus=plus)
        return y


def replace_products(network: nn.Module, make: Callable[..., Product]) -> None:
    """Put a product in the place of each `nn.Linear` and each `FeedForward` of `network`."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, FeedForward):
                setattr(module, name, FeedForwardProducts(child, make))
            elif isinstance(child, nn.Linear):
                setattr(module, name, make(child.weight, child.bias))
