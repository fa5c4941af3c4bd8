"""Products by another library are the same products: values, gradients, names of weights."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from tfm.model import linear
from tfm.model.linear import Linear, multiply, multiply_columns

SHAPES = [(3, 5, 16, 24), (40, 1, 24, 16)]


@pytest.fixture(params=["onednn", "default"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose the library, whatever is faster here."""
    if request.param == "onednn" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(linear, "mkl_is_slow", lambda: request.param == "onednn")
    return str(request.param)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_and_its_gradients_are_those_of_double_precision(
    shape: tuple[int, int, int, int],
) -> None:
    B, T, wide, out = shape
    torch.manual_seed(1)
    layer, x, g = Linear(wide, out), torch.randn(B, T, wide), torch.randn(B, T, out)
    found = values_and_gradients(layer, x, g)
    exact = values_and_gradients(deepcopy(layer).double(), x.double(), g.double())
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def values_and_gradients(
    layer: torch.nn.Module, x: torch.Tensor, g: torch.Tensor
) -> list[torch.Tensor]:
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(g)
    gradients = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    return [y.detach(), *(gradient for gradient in gradients if gradient is not None)]


def test_onednn_is_really_what_multiplies(library: str) -> None:
    layer, x = Linear(16, 24), torch.randn(40, 16)

    def operators(profile: torch.profiler.profile) -> set[str]:
        return {event.name for event in profile.events()}

    with torch.profiler.profile() as profile:
        layer(x).sum().backward()
    used = "mkldnn::_linear_pointwise" in operators(profile)
    assert used == (library == "onednn")
    with torch.profiler.profile() as profile, torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16  # half precision has its own way to oneDNN
    assert "mkldnn::_linear_pointwise" not in operators(profile)


def test_a_first_layer_needs_no_gradient_of_its_input() -> None:
    layer = Linear(16, 24)
    layer(torch.randn(40, 16)).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.shape == (24, 16)


@pytest.mark.parametrize(("wide", "out"), [(16, 24), (24, 16)])
def test_products_without_gradient_are_products(wide: int, out: int) -> None:
    x, weight, g = torch.randn(40, wide), torch.randn(out, wide), torch.randn(40, out)
    torch.testing.assert_close(multiply(x, weight), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(multiply_columns(g, x), g.t() @ x, rtol=1e-4, atol=1e-4)


def test_weights_keep_the_names_and_first_values_of_a_linear_layer() -> None:
    torch.manual_seed(1)
    ours = Linear(3, 5).state_dict()
    torch.manual_seed(1)
    plain = torch.nn.Linear(3, 5).state_dict()
    assert list(ours) == list(plain)
    assert all(torch.equal(ours[name], plain[name]) for name in ours)
