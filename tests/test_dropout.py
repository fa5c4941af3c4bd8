"""Dropout: our masks of random bytes are as good as the textbook's."""

import pytest
import torch

from tfm.model.dropout import Dropout, dropout, random_bytes

PROBABILITIES = [0.1, 0.3, 0.5, 0.9]


@pytest.mark.parametrize("p", PROBABILITIES)
def test_share_of_zeros_mean_and_variance_are_those_of_a_bernoulli_mask(p):
    torch.manual_seed(1)
    n = 1_000_000
    out = dropout(torch.ones(n), p)
    share = (out == 0).double().mean().item()
    kept = 1 - round(p * 256) / 256  # the probability is rounded to 1/256, as documented
    assert abs(1 - share - kept) < 5 * (kept * (1 - kept) / n) ** 0.5
    assert abs(share - p) < 1 / 512 + 0.003
    variance = (1 - kept) / kept
    assert abs(out.double().mean().item() - 1) < 5 * (variance / n) ** 0.5  # unbiased exactly
    assert abs(out.double().var().item() / variance - 1) < 0.02


def test_every_byte_value_is_equally_likely_at_every_place_in_a_word():
    torch.manual_seed(1)
    counts = torch.stack([b.int().bincount(minlength=256) for b in random_bytes_by_place(2**19)])
    expected = 2**16 / 256
    chi_square = ((counts - expected) ** 2 / expected).sum(1)  # 255 degrees of freedom each
    assert ((chi_square - 255).abs() < 5 * (2 * 255) ** 0.5).all()


def random_bytes_by_place(n):
    return random_bytes(torch.Size([n])).view(-1, 8).T


def test_neighbours_and_calls_are_independent():
    torch.manual_seed(1)
    first, second = (random_bytes(torch.Size([2**18])).double() for _ in range(2))
    for a, b in ((first, second), (first[1:], first[:-1]), (first[8:], first[:-8])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 5 / 2**9


def test_the_gradient_is_the_mask():
    x = torch.randn(50, 7, requires_grad=True)
    out = dropout(x, 0.3)
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(x.grad, out.detach() / x.detach())


@pytest.mark.parametrize("module", [Dropout(0.0), Dropout(0.5).eval()], ids=["p=0", "eval"])
def test_without_anything_to_drop_the_input_itself_comes_back(module):
    x = torch.randn(3, 4)
    assert module(x) is x


def test_the_torch_seed_determines_the_mask_and_a_restored_state_continues_it():
    module, x = Dropout(0.5), torch.ones(100)
    torch.manual_seed(3)
    first = module(x)
    state = torch.get_rng_state()
    second = module(x)
    torch.manual_seed(3)
    assert torch.equal(module(x), first)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(module(x), second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_stays(dtype):
    torch.manual_seed(1)
    out = dropout(torch.ones(10_000, dtype=dtype), 0.5)
    assert out.dtype is dtype and set(out.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_expectation_is_kept_in_half_precision_too(dtype):
    torch.manual_seed(1)
    x = 1 + torch.rand(1_000_000).to(dtype)
    ratio = dropout(x, 0.1).double().mean() / x.double().mean()
    assert abs(ratio.item() - 1) < 0.002  # six standard deviations


@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (0, 4)])
def test_any_shape_works(shape):
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_an_input_that_is_not_contiguous_is_dropped_element_by_element():
    torch.manual_seed(1)
    x = torch.randn(40, 60)
    out = dropout(x.T, 0.5)
    kept = out != 0
    assert torch.equal(out[kept], 2 * x.T[kept])
    for axis in (0, 1):  # no row or column stays or goes as a whole
        assert kept.any(axis).all() and not kept.all(axis).any()


@pytest.mark.parametrize("p, low, high", [(0.001, 0.0005, 0.0015), (0.999, 0.9985, 0.9995)])
def test_a_probability_too_near_0_or_1_for_a_byte_still_holds(p, low, high):
    torch.manual_seed(1)
    share = (dropout(torch.ones(1_000_000), p) == 0).double().mean().item()
    assert low < share < high


def test_autocast_leaves_half_precision_inputs_alone():
    layer, module = torch.nn.Linear(8, 8), Dropout(0.5)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(layer(torch.ones(4, 8))).dtype is torch.bfloat16
