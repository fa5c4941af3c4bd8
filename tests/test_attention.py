"""Attention: every backend computes the formula, or says why it cannot.

The yardstick is the formula in fp64, written here once more. A backend may be off by three times
what the same formula is off by in the same dtype: rounding, but nothing beyond it.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tfm.data.errors import BackendError
from tfm.model.attention import flash, formula, sdpa
from tfm.model.attention.choice import BACKENDS
from tfm.model.attention.padding import Padding

GPU = pytest.mark.gpu
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# About the last place of numbers near 1: no smaller error counts.
ATOL = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}


class Case(NamedTuple):
    """One situation: the lengths of three sentences, None for full ones, and the padded sizes."""

    causal: bool
    queries: list[int] | None
    keys: list[int] | None
    T: int
    S: int


CASES = {
    "encoder": Case(False, None, None, 9, 9),
    "encoder, padded": Case(False, [9, 4, 7], [9, 4, 7], 9, 9),
    "encoder, one token": Case(False, [1, 1, 1], [1, 1, 1], 1, 1),
    "encoder, a row fully masked": Case(False, [9, 0, 7], [9, 0, 7], 9, 9),
    "decoder": Case(True, None, None, 9, 9),
    "decoder, padded": Case(True, [9, 4, 7], None, 9, 9),
    "decoder, one token": Case(True, None, None, 1, 1),
    "decoder, cached step": Case(True, None, None, 1, 9),
    "decoder, several cached steps": Case(True, None, None, 4, 9),
    "cross": Case(False, None, None, 5, 9),
    "cross, padded": Case(False, [5, 2, 3], [4, 9, 7], 5, 9),
    "cross, one token": Case(False, [1, 1, 1], [1, 9, 7], 1, 9),
    "cross, cached step": Case(False, None, [4, 9, 7], 1, 9),
    "cross, cached step of 4 beams": Case(False, None, [4, 9, 7], 4, 9),
    "cross, more queries than keys": Case(False, [12, 2, 7], [3, 5, 1], 12, 5),
    "cross, a row fully masked": Case(False, [5, 2, 3], [9, 0, 7], 5, 9),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def definition(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V, one sentence and one query at a time."""
    B, H, T, K = q.shape
    rows = []
    for b in range(B):
        for t in range(T):
            seen = k.shape[2] if case.keys is None else case.keys[b]
            if case.causal:
                seen = min(seen, case.S - case.T + t + 1)
            scores = (k[b, :, :seen] * q[b, :, t, None]).sum(-1) / K**0.5  # H S
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            rows.append((weights[..., None] * v[b, :, :seen]).sum(1))  # no key at all: zeros
    return torch.stack(rows).view(B, T, H, K).transpose(1, 2)


def real_queries(case: Case) -> Tensor:
    lengths = torch.tensor(case.queries or [case.T] * 3)
    return (torch.arange(case.T) < lengths[:, None])[:, None, :, None]


def draw(case: Case, *, dtype: torch.dtype, width: int = 16) -> tuple[list[Tensor], Tensor]:
    """Return queries, keys, values in fp64 that `dtype` holds exactly, and an output gradient.

    That gradient is zero at padded queries, as it is in training.
    """
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 2, case.T, width), (3, 2, case.S, width), (3, 2, case.S, width)]
    q, k, v, upstream = (
        torch.randn(shape, generator=generator).to(dtype).double() for shape in (*shapes, shapes[0])
    )
    return [q, k, v], upstream * real_queries(case)


def run(attend, case: Case, qkv, upstream, *, device="cpu", dtype=torch.float64) -> list[Tensor]:
    """Return the output at real queries and the gradients of q, k, v, on the CPU in fp64."""
    q, k, v = (x.to(device, dtype, copy=True).requires_grad_() for x in qkv)
    queries, keys = (
        None if lengths is None else Padding.from_lengths(lengths, longest=n, device=device)
        for lengths, n in ((case.queries, case.T), (case.keys, case.S))
    )
    out = attend(q, k, v, causal=case.causal, queries=queries, keys=keys, dropout=0.0)
    out.backward(upstream.to(device, dtype))
    return [
        out.detach().cpu().double() * real_queries(case),
        *(x.grad.cpu().double() for x in (q, k, v)),
    ]


def exactly(case: Case, qkv, upstream) -> list[Tensor]:
    return run(lambda q, k, v, **_: definition(q, k, v, case), case, qkv, upstream)


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [(a - b).abs().max().item() for a, b in zip(found, exact, strict=True)]


def check(attend, case: Case, *, dtype, device="cpu", width=16) -> None:
    """Fail unless `attend` is as near to the definition as the formula in the same dtype."""
    qkv, upstream = draw(case, dtype=dtype, width=width)
    exact = exactly(case, qkv, upstream)
    limits = errors(run(formula.attend, case, qkv, upstream, dtype=dtype), exact)
    found = errors(run(attend, case, qkv, upstream, dtype=dtype, device=device), exact)
    for name, error, limit in zip("output q k v".split(), found, limits, strict=True):
        assert error <= 3 * max(limit, ATOL[dtype]), f"{name}: {error} against {limit}"


@every_case
def test_math_in_fp64_is_the_definition(case):
    inputs = draw(case, dtype=torch.float64)
    assert max(errors(run(formula.attend, case, *inputs), exactly(case, *inputs))) < 1e-12


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@every_case
@pytest.mark.parametrize("backend", ["sdpa", "flash"])
def test_every_backend_computes_the_formula_and_its_gradients(backend, case, dtype):
    check(BACKENDS[backend], case, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@every_case
@pytest.mark.parametrize("backend", [pytest.param(name, marks=GPU) for name in BACKENDS])
def test_every_backend_computes_the_formula_on_cuda(backend, case, dtype):
    if backend == "flash" and dtype is torch.float32:
        pytest.skip("flash refuses fp32, which has a test of its own")
    torch.backends.cuda.matmul.allow_tf32 = False
    sdpa.forbid_cudnn()
    for width in (16, 20, 64):  # 20: CUDA kernels want multiples of 8
        check(BACKENDS[backend], case, dtype=dtype, device="cuda", width=width)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_without_keys_gets_zeros_and_sends_none_back(backend):
    case = CASES["cross, a row fully masked"]
    for x in run(BACKENDS[backend], case, *draw(case, dtype=torch.float32), dtype=torch.float32):
        assert (x[1] == 0).all() and x[0].any()


# The arithmetic of the variable-length path, with a kernel that any machine has.


def by_sentence(q, k, v, *, queries, keys, causal):
    """A variable-length kernel in Python: cut at the offsets, attend, put end to end."""
    assert queries.starts.dtype == keys.starts.dtype == torch.int32
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert len(q) == queries.starts[-1] and len(k) == len(v) == keys.starts[-1]
    pieces = []
    for b in range(len(queries.starts) - 1):
        own = slice(*queries.starts[b : b + 2].tolist())
        other = slice(*keys.starts[b : b + 2].tolist())
        assert own.stop - own.start <= queries.longest
        assert other.stop - other.start <= keys.longest
        one = (x[part].transpose(0, 1)[None] for x, part in ((q, own), (k, other), (v, other)))
        out = formula.attend(*one, causal=causal, queries=None, keys=None, dropout=0.0)
        pieces.append(out[0].transpose(0, 1))
    return torch.cat(pieces)


def unpadded(q, k, v, *, causal, queries, keys, dropout):
    return flash.attend_unpadded(
        q, k, v, causal=causal, queries=queries, keys=keys, kernel=by_sentence
    )


# Causal and padded: flash lets causality hide the padding, and does not remove it.
unpadded_cases = {name: case for name, case in CASES.items() if name != "decoder, padded"}
every_unpadded_case = pytest.mark.parametrize("case", unpadded_cases.values(), ids=unpadded_cases)


@every_unpadded_case
def test_attending_without_padding_equals_attending_with_a_mask(case):
    inputs = draw(case, dtype=torch.float64)
    assert max(errors(run(unpadded, case, *inputs), exactly(case, *inputs))) < 1e-12


def test_the_unpadded_path_can_be_causal_where_both_sides_are_padded_alike():
    padding = Padding.from_lengths([5, 2, 3])
    q = torch.randn(3, 2, 5, 8)
    arguments = dict(causal=True, queries=padding, keys=padding, dropout=0.0)
    expected = formula.attend(q, q, q, **arguments) * padding.mask[:, None, :, None]
    torch.testing.assert_close(unpadded(q, q, q, **arguments), expected)  # zeros at the padding


@pytest.mark.parametrize("queries, keys", [(None, [5, 3]), ([2, 1], None), ([2, 1], [5, 3])])
def test_the_unpadded_path_refuses_what_it_cannot_align(queries, keys):
    q, k = torch.randn(2, 1, 2, 8), torch.randn(2, 1, 5, 8)
    queries, keys = (side and Padding.from_lengths(side) for side in (queries, keys))
    with pytest.raises(ValueError, match="padded alike"):
        unpadded(q, k, k, causal=True, queries=queries, keys=keys, dropout=0.0)


@pytest.fixture
def varlen_calls(monkeypatch):
    """Stand in for torch's varlen_attn: the same arguments, computed by `by_sentence`."""
    calls = []

    def varlen_attn(q, k, v, starts_q, starts_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        calls.append({"window_size": window_size, "width": q.shape[-1]})
        queries, keys = (
            Padding.from_lengths(starts.diff().tolist(), longest=longest)
            for starts, longest in ((starts_q, max_q), (starts_k, max_k))
        )
        if scale is not None:  # by_sentence itself divides by the root of the padded width
            q = q * (scale * q.shape[-1] ** 0.5)
        return by_sentence(q, k, v, queries=queries, keys=keys, causal=window_size == (-1, 0))

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    flash.causal_argument.cache_clear()
    yield calls
    flash.causal_argument.cache_clear()


@pytest.mark.parametrize("width", [16, 20])
@every_unpadded_case
def test_varlen_gets_the_widths_scale_and_causality_it_understands(varlen_calls, case, width):
    def attend(q, k, v, *, causal, queries, keys, dropout):
        return flash.attend_unpadded(q, k, v, causal=causal, queries=queries, keys=keys)

    inputs = draw(case, dtype=torch.float64, width=width)
    assert max(errors(run(attend, case, *inputs), exactly(case, *inputs))) < 1e-12
    window = (-1, 0) if case.causal else (-1, -1)
    assert varlen_calls == [{"window_size": window, "width": 16 if width == 16 else 24}]


@every_case
def test_where_a_kernel_takes_no_mask_padding_is_removed_only_if_it_must_be(varlen_calls, case):
    inputs = draw(case, dtype=torch.float64)
    assert max(errors(run(flash.without_mask, case, *inputs), exactly(case, *inputs))) < 1e-12
    padded_keys = case.keys is not None and min(case.keys) < case.S
    later_steps = case.causal and 1 < case.T < case.S
    assert len(varlen_calls) == int(padded_keys or later_steps)


def test_causality_has_the_name_that_this_version_of_varlen_knows(monkeypatch):
    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False): ...

    flash.causal_argument.cache_clear()
    assert flash.causal_argument() == {"window_size": (-1, 0)}
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", older)
    flash.causal_argument.cache_clear()
    assert flash.causal_argument() == {"is_causal": True}
    flash.causal_argument.cache_clear()


# The kernel that really runs.


def kernels(attend, case, *, device="cpu", dtype=torch.float32) -> str:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(attend, case, *draw(case, dtype=dtype), dtype=dtype, device=device)
    return " ".join(event.key for event in profile.key_averages())


@every_case
@pytest.mark.parametrize("backend", ["sdpa", "flash"])
def test_the_cpu_flash_kernel_is_the_one_that_runs(backend, case):
    names = kernels(BACKENDS[backend], case)
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names
    assert "attention_math" not in names


@pytest.mark.filterwarnings("ignore:.*ernel:UserWarning")
def test_flash_never_falls_back_silently():
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(BackendError, match="PyTorch refused: .*do not support non-zero dropout"):
        flash.attend(q, q, q, causal=False, queries=None, keys=None, dropout=0.1)
    assert torch.backends.cuda.math_sdp_enabled()  # nothing stays switched off afterwards


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)])
def test_a_flash_kernel_is_the_one_that_runs_on_cuda(device, dtype, case):
    names = kernels(flash.attend, case, device=device, dtype=dtype)
    assert "_flash_attention_forward" in names or "_scaled_dot_product_flash_attention" in names
    assert "efficient" not in names and "attention_math" not in names


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)])
def test_flash_refuses_fp32_on_cuda_at_run_time_too(device):
    q = torch.randn(1, 2, 3, 8, device=device)
    with pytest.raises(BackendError, match="PyTorch refused"):
        flash.attend(q, q, q, causal=False, queries=None, keys=None, dropout=0.0)
