"""`tfm bench attention`: what each form of attention, by each backend, takes as N grows.

A case is the self-attention of an encoder by itself: no projections, no padding. Its training is
forward and backward, to the gradients of queries, keys and values.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfm.data.errors import BackendError
from tfm.model.attention.choice import resolve
from tfm.model.attention.forms import AttentionForm
from tfm.model.attention.multihead import Attend
from tfm.model.benchmarks.clock import Call, Cost, measure
from tfm.model.benchmarks.products import BACKWARD, measure_peak, wait_for
from tfm.model.device import PRECISIONS

COPIED = 2**26  # bytes, beyond any cache
COPIES = 10
SQUARE = ("math",)  # the kinds that hold matrices of N x N numbers


class Kind(NamedTuple):
    """A form of attention and the `--attention` that computes it."""

    form: AttentionForm
    backend: str


KINDS: dict[str, Kind] = {
    "math": Kind("full", "math"),
    "sdpa": Kind("full", "sdpa"),
    "flash": Kind("full", "flash"),
    "local": Kind("local", "auto"),
    "local-flash": Kind("local", "flash"),
    "linear": Kind("linear", "auto"),
}


@dataclass(frozen=True)
class Setup:
    """What all cases of a run share."""

    device: torch.device
    batch: int
    heads: int
    window: int
    memory_limit: int  # bytes


@dataclass(frozen=True)
class Case:
    """One row: a kind of attention at one length, head width and dtype."""

    kind: str
    dtype: str
    width: int
    length: int


@dataclass(frozen=True)
class Row:
    """A case, and what it takes or why it was not run. `bound` is the least seconds of training."""

    case: Case
    forward: Cost | None = None
    training: Cost | None = None
    bound: float = math.nan
    not_run: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row by names that scripts may rely on."""
        named = {"backend" if key == "kind" else key: v for key, v in asdict(self.case).items()}
        if self.forward is None or self.training is None:
            return named | {"not_run": self.not_run}
        return named | {
            "forward_seconds": self.forward.seconds,
            "forward_peak_bytes": self.forward.peak_bytes,
            "seconds": self.training.seconds,
            "peak_bytes": self.training.peak_bytes,
            "bound_seconds": self.bound,
        }


class Bounds(NamedTuple):
    """What the machine can do at most, measured: FLOP and bytes of memory traffic per second."""

    flops: dict[str, float]  # by dtype
    bandwidth: float


def cases(
    kinds: Iterable[str], dtypes: Sequence[str], widths: Sequence[int], lengths: Sequence[int]
) -> Iterator[Case]:
    """Yield every combination, short ones first within a dtype and width."""
    kinds = list(kinds)
    for dtype in dtypes:
        for width in widths:
            for length in sorted(lengths):
                for kind in kinds:
                    yield Case(kind, dtype, width, length)


def run_case(case: Case, setup: Setup, bounds: Bounds) -> Row:
    """Measure `case`, or say why it cannot run here."""
    needed = expected_bytes(case, setup)
    if needed > setup.memory_limit:
        return Row(
            case,
            not_run=f"needs about {_gib(needed)}, but the memory limit is "
            f"{_gib(setup.memory_limit)}",
        )
    try:
        forward, training = (
            measure(call, setup.device) for call in passes(kernel(case, setup), case, setup)
        )
    except (BackendError, torch.OutOfMemoryError) as error:
        return Row(case, not_run=str(error).partition("\n")[0])
    return Row(case, forward, training, bound(case, setup, bounds))


def kernel(case: Case, setup: Setup) -> Attend:
    """Return what computes `case`.

    Raises:
        BackendError: if nothing can here.
    """
    kind = KINDS[case.kind]
    plan = resolve(
        kind.backend,
        device=setup.device,
        dtype=PRECISIONS[case.dtype],
        dropout=0.0,
        training=True,
        head_width=case.width,
        encoder_forms=(kind.form,),
        window=setup.window,
    )
    return plan.of_encoder(kind.form)


def passes(attend: Attend, case: Case, setup: Setup) -> tuple[Call, Call]:
    """Return a forward pass without gradients, and one with its backward pass."""
    shape = (setup.batch, case.length, setup.heads, case.width)
    q, k, v, upstream = (
        torch.randn(shape, device=setup.device, dtype=PRECISIONS[case.dtype]).transpose(1, 2)
        for _ in range(4)
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def forward() -> Tensor:
        return attend(q, k, v, causal=False, queries=None, keys=None, dropout=0.0)

    def training() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), inputs, upstream)

    return torch.no_grad()(forward), training


def expected_bytes(case: Case, setup: Setup) -> int:
    """Estimate the peak of training, in order not to try what cannot fit."""
    rows = setup.batch * setup.heads * case.length
    if case.kind in SQUARE:
        return rows * (13 * case.length + 64 * case.width)  # three matrices in fp32 at once
    keys = 2 * setup.window + 32 if KINDS[case.kind].form == "local" else 0
    return rows * (64 * case.width + 16 * keys)


def bound(case: Case, setup: Setup, bounds: Bounds) -> float:
    """Return the least seconds that training can take: its products or its traffic, if perfect.

    The traffic is that of a kernel that keeps all else in registers: it reads queries, keys and
    values and writes the output, then reads these and the output's gradient and writes three.
    """
    form, N, K = KINDS[case.kind].form, case.length, case.width
    seen = {"full": N, "local": min(N, setup.window + 1), "linear": K}[form]
    rows = setup.batch * setup.heads * N
    flops = 4 * (1 + BACKWARD) * rows * seen * K  # two products, each of 2 FLOP a number
    traffic = 12 * rows * K * PRECISIONS[case.dtype].itemsize
    return max(flops / bounds.flops[case.dtype], traffic / bounds.bandwidth)


def measure_bounds(device: torch.device, dtypes: Iterable[str]) -> Bounds:
    """Measure large matrix products in each dtype, and the copying of memory beyond the caches."""
    flops = {dtype: measure_peak(device, PRECISIONS[dtype]) for dtype in dtypes}
    source, target = (torch.zeros(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    fastest = math.inf
    for _ in range(COPIES):
        begin = time.perf_counter()
        target.copy_(source)
        wait_for(device)
        fastest = min(fastest, time.perf_counter() - begin)
    return Bounds(flops, 2 * COPIED / fastest)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
