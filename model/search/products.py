"""Products with weights that never change: what search multiplies by, thousands of times.

Training changes the weights at every step. Where they stay it pays to bring them into the blocked
layout of oneDNN, PyTorch's library of CPU kernels, once and not at every call; and the activation,
or the sum that follows, costs nothing in the same pass. Or they are rounded to 8 bits, which
processors multiply twice as fast as bf16.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.data.errors import BackendError
from tfm.model.layers import FeedForward

ROWS = 128  # that the layout is made for; it is the same for all numbers of rows but one
LARGEST = 127  # of 8-bit numbers
TINY = torch.finfo(torch.float32).tiny  # in the place of 0, to divide by


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


class Int8(Product):
    """The same with x and W rounded to whole numbers, -127 ... 127, times a scale each: one for
    each row of W, and one for each row of x, which is found anew at every call.

    The sums are exact, so a row's product is the same in every batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: str = "none") -> None:
        super().__init__(weight, bias, activation=activation)
        rows = self.weight.float()
        scale = rows.abs().amax(1).clamp_min_(TINY) / LARGEST
        self.weight = (rows / scale[:, None]).round_().to(torch.int8).t()  # D E
        if len(self.weight) == 1:  # `_int_mm` is wrong where the strides do not tell rows apart
            self.weight = self.weight.clone(memory_format=torch.contiguous_format)
        self.scale = scale / LARGEST  # of W and of x, but for the largest number of each row of x
        self.largest = torch.tensor(float(LARGEST))
        self.bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor, *, plus: Tensor | None = None) -> Tensor:
        """Map x, ... D, to ... E, and add `plus` if there is one (and no activation)."""
        rows = x if x.dim() == 2 else x.flatten(0, -2)
        if x.dtype != torch.float32:
            rows = rows.float()
        largest = rows.abs().amax(1, keepdim=True)
        # Where it is 0, anything may come out of the division: it is multiplied by 0 again.
        rounded = (rows * torch.div(self.largest, largest)).round_().to(torch.int8)
        y = torch.mul(torch._int_mm(rounded, self.weight), self.scale)
        if self.bias is None:
            y.mul_(largest)
        else:
            y = torch.addcmul(self.bias, y, largest)
        if self.activation == "relu":
            y.relu_()
        elif self.activation == "gelu":
            y = F.gelu(y)
        if x.dim() != 2:
            y = y.view(*x.shape[:-1], -1)
        if plus is not None:
            y.add_(plus)
        return y if x.dtype == torch.float32 else y.to(x.dtype)

    @staticmethod
    def refusal(device: torch.device) -> str | None:
        """Return why 8-bit products cannot run on a device, or None if they can."""
        if device.type != "cpu":
            return f"8-bit products are for the CPU, and this is {device}"
        if not hasattr(torch, "_int_mm"):
            return f"PyTorch {torch.__version__} has no 8-bit product for this CPU"
        extreme = torch.full((2, 64), -LARGEST, dtype=torch.int8)
        try:
            product = torch._int_mm(extreme, extreme.t())
        except RuntimeError:
            return f"PyTorch {torch.__version__} has no 8-bit product for this CPU"
        # Processors without instructions for it may sum in 16 bits, which are too few.
        exact = bool((product == 64 * LARGEST**2).all())
        return None if exact else "this CPU's 8-bit products are not exact"


def choose_product(weight: Tensor, *, quantize: bool) -> Callable[..., Product]:
    """Return what multiplies fastest by weights like this one, in 8 bits if wanted.

    Raises:
        BackendError: if 8-bit products cannot run here.
    """
    if not quantize:
        return Packed if Packed.suits(weight) else Product
    reason = Int8.refusal(weight.device)
    if reason is not None:
        raise BackendError(f"--quantize int8: {reason}; leave it out")
    return Int8


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
