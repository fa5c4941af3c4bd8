"""The loss in pieces is the loss: values and gradients are those of plain autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.training import cross_entropy
from tfm.model.training.cross_entropy import Losses, projected_losses, smoothed_cross_entropy

N, D, V = 37, 8, 23


def one_view(logits: Tensor, targets: Tensor) -> Losses:
    return smoothed_cross_entropy(logits[0], targets, 0.1)


def two_views(logits: Tensor, targets: Tensor) -> Losses:
    """Compare with targets and with each other, the views not being interchangeable."""
    first, second = (smoothed_cross_entropy(view, targets, 0.1) for view in logits)
    log_p, log_q = logits.log_softmax(-1)
    apart = F.kl_div(log_q, log_p, reduction="sum", log_target=True)
    return Losses(first.loss + 0.5 * second.loss + 3 * apart, first.nats)


CASES = [(1, one_view), (2, two_views)]


@pytest.fixture(params=[(5 * V, 2 * V), (1, 1), (2**25, 2**19)], ids=["few", "one", "all"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into pieces of 5 and 2 rows (of one view), of a single row, and not at all."""
    logits, cached = request.param
    monkeypatch.setattr(cross_entropy, "LOGITS", logits)
    monkeypatch.setattr(cross_entropy, "CACHED", cached)


def drawn(views: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    hidden = torch.randn(views, N, D, dtype=dtype, requires_grad=True)
    matrix = torch.randn(V, D, dtype=dtype, requires_grad=True)
    return hidden, matrix, torch.randint(0, V, (N,))


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(("views", "compare"), CASES)
def test_losses_and_gradients_are_those_of_plain_autograd(views: int, compare: object) -> None:
    hidden, matrix, targets = drawn(views, torch.float64)
    found = projected_losses(hidden, matrix, targets, compare)
    plain = compare(hidden @ matrix.T, targets)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, check_dtype=False)
    # The step scales the loss: the gradient must follow.
    ours = torch.autograd.grad(found.loss * 7, (hidden, matrix))
    theirs = torch.autograd.grad(plain.loss * 7, (hidden, matrix))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # the softmax is in fp32


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(("views", "compare"), CASES)
def test_without_gradient_the_losses_are_the_same(views: int, compare: object) -> None:
    hidden, matrix, targets = drawn(views, torch.float32)
    with torch.no_grad():
        found = projected_losses(hidden, matrix, targets, compare)
    assert not found.loss.requires_grad
    for one, other in zip(found, compare(hidden @ matrix.T, targets), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("pieces")
def test_half_precision_is_as_near_to_exact_as_plain_autograd_is() -> None:
    hidden, matrix, targets = drawn(1, torch.float32)
    exact = torch.autograd.grad(one_view(hidden @ matrix.T, targets).loss, (hidden, matrix))
    with torch.autocast("cpu", torch.bfloat16):
        plain = one_view(F.linear(hidden, matrix), targets)
        found = projected_losses(hidden, matrix, targets, one_view)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, plain.loss, rtol=1e-5, atol=0)
    theirs = torch.autograd.grad(plain.loss, (hidden, matrix))
    ours = torch.autograd.grad(found.loss, (hidden, matrix))
    for one, other, truth in zip(ours, theirs, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - truth).norm() < 1.1 * (other - truth).norm() < 0.02 * truth.norm()


def test_nats_give_no_gradient() -> None:
    hidden, matrix, targets = drawn(1, torch.float32)
    found = projected_losses(hidden, matrix, targets, one_view)
    assert found.loss.requires_grad and not found.nats.requires_grad


def test_nothing_as_large_as_the_logits_is_kept_for_the_backward_pass() -> None:
    hidden, matrix, targets = drawn(1, torch.float32)
    loss = projected_losses(hidden, matrix, targets, one_view).loss
    kept = [tensor.numel() for tensor in loss.grad_fn.saved_tensors]
    assert sorted(kept) == sorted([N * D, V * D])
