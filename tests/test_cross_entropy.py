"""The loss in pieces is the loss: values and gradients are those of plain autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.training import cross_entropy
from tfm.model.training.consistency import TwoViews, compare_views
from tfm.model.training.cross_entropy import (
    Compare,
    Differentiated,
    Losses,
    projected_losses,
    smoothed_cross_entropy,
)

N, D, V = 37, 8, 23


def one_view(logits: Tensor, targets: Tensor) -> Differentiated:
    return smoothed_cross_entropy(logits[0], targets, 0.1)


def two_views(logits: Tensor, targets: Tensor) -> Differentiated:
    """Compare with targets and with each other, the views not being interchangeable."""
    return compare_views(logits, targets, TwoViews(0.3, 0.7, 1.5, 2.5, cutoff=0.0), 0.1)


def plain(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Losses:
    """Return the losses of one or two views by what PyTorch offers."""
    logits = F.linear(hidden, matrix).to(torch.promote_types(hidden.dtype, torch.float32))
    smoothed = [
        F.cross_entropy(view, targets, reduction="sum", label_smoothing=0.1) for view in logits
    ]
    nats = [F.cross_entropy(view, targets, reduction="sum") for view in logits]
    if len(logits) == 1:
        return Losses(smoothed[0], nats[0])
    log_p, log_q = logits.log_softmax(-1)
    forward = F.kl_div(log_q, log_p, reduction="sum", log_target=True)
    backward = F.kl_div(log_p, log_q, reduction="sum", log_target=True)
    loss = 0.3 * smoothed[0] + 0.7 * smoothed[1] + 1.5 * forward + 2.5 * backward
    return Losses(loss, 0.3 * nats[0] + 0.7 * nats[1])


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
def test_losses_and_gradients_are_those_of_plain_autograd(views: int, compare: Compare) -> None:
    hidden, matrix, targets = drawn(views, torch.float64)
    found = projected_losses(hidden, matrix, targets, compare)
    expected = plain(hidden, matrix, targets)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double())
    # The step scales the loss: the gradient must follow.
    ours = torch.autograd.grad(found.loss * 7, (hidden, matrix))
    theirs = torch.autograd.grad(expected.loss * 7, (hidden, matrix))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(("views", "compare"), CASES)
def test_without_gradient_the_losses_are_the_same(views: int, compare: Compare) -> None:
    hidden, matrix, targets = drawn(views, torch.float32)
    with torch.no_grad():
        found = projected_losses(hidden, matrix, targets, compare)
    assert not found.loss.requires_grad
    for one, other in zip(found, plain(hidden, matrix, targets), strict=True):
        torch.testing.assert_close(one, other.detach())


@pytest.mark.usefixtures("pieces")
def test_half_precision_is_as_near_to_exact_as_plain_autograd_is() -> None:
    hidden, matrix, targets = drawn(1, torch.float32)
    exact = torch.autograd.grad(plain(hidden, matrix, targets).loss, (hidden, matrix))
    with torch.autocast("cpu", torch.bfloat16):
        theirs = plain(hidden, matrix, targets)
        ours = projected_losses(hidden, matrix, targets, one_view)
    assert ours.loss.dtype == torch.float32
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-5, atol=0)
    gradients = (torch.autograd.grad(x.loss, (hidden, matrix)) for x in (ours, theirs))
    for one, other, truth in zip(*gradients, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - truth).norm() < 1.1 * (other - truth).norm() < 0.02 * truth.norm()


def test_a_probability_that_underflows_makes_no_loss_infinite() -> None:
    logits = torch.tensor([[0.0, 500.0, -500.0]])
    losses, gradient = smoothed_cross_entropy(logits, torch.tensor([2]), 0.0)
    assert losses.loss == losses.nats == 1000
    assert gradient.tolist() == [[0.0, 1.0, -1.0]]


def test_nats_give_no_gradient() -> None:
    hidden, matrix, targets = drawn(1, torch.float32)
    found = projected_losses(hidden, matrix, targets, one_view)
    assert found.loss.requires_grad and not found.nats.requires_grad


def test_nothing_as_large_as_the_logits_is_kept_for_the_backward_pass() -> None:
    hidden, matrix, targets = drawn(1, torch.float32)
    loss = projected_losses(hidden, matrix, targets, one_view).loss
    kept = [tensor.numel() for tensor in loss.grad_fn.saved_tensors]
    assert sorted(kept) == sorted([N * D, V * D])
