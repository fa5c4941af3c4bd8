"""Run every test that needs an NVIDIA GPU, then time every attention backend there.

    python tests/gpu_check.py [--quick] [--no-tests]          (make gpu-check)

Progress and the report of the tests go to stderr. stdout gets two tables and, as its last line, one
JSON object with the same numbers:

    attention  forward and forward + backward in milliseconds, and peak memory in MiB, of one
               attention of 8 heads of width 64 over 32,768 positions, for each backend, dtype and
               length, with and without padding; and the operators that really ran
    network    source + target tokens per second, padding not counted, of the size `base`

A backend that refuses, or breaks, says so in place of its numbers. The exit code is 1 where there
is no GPU, a test fails or a backend breaks.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch

from tfm.data.errors import BackendError
from tfm.model.attention.choice import BACKENDS, resolve
from tfm.model.attention.padding import Padding
from tfm.model.settings import SIZES, ModelSettings
from tfm.model.transformer import Transformer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEADS, WIDTH, VOCAB = 8, 64, 32_000
OPERATORS = ("_scaled_dot_product", "varlen", "_flash_attention_forward", "_efficient_attention")


@dataclass
class Timing:
    """One row of a table: what ran, and what it took, or why it did not run."""

    what: str
    backend: str
    dtype: str
    length: int
    padded: bool
    forward_ms: float | None = None
    both_ms: float | None = None
    peak_mib: float | None = None
    tokens_per_s: float | None = None  # forward + backward
    operators: str = ""
    refused: str = ""
    broken: bool = False  # failed by anything but a refusal or too little memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the lengths 64 and 1024")
    parser.add_argument("--no-tests", action="store_true", help="only the timings")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: no NVIDIA GPU is available to this PyTorch", file=sys.stderr)
        return 1
    failed = 0 if options.no_tests else run_tests()
    lengths = (64, 1024) if options.quick else (64, 256, 1024, 4096)
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = [*attention_timings(device, lengths), *network_timings(device)]
    print(table([row for row in rows if row.what != "network"]))
    print(table([row for row in rows if row.what == "network"]))
    report = {"pytest_exit_code": failed, "timings": [asdict(row) for row in rows]}
    print(json.dumps(machine(device) | report))
    return int(failed != 0 or any(row.broken for row in rows))


def run_tests() -> int:
    """Run the tests marked `gpu` and return pytest's exit code; 0 is success."""
    with contextlib.redirect_stdout(sys.stderr):
        return int(pytest.main([str(Path(__file__).parent), "-m", "gpu", "-q"]))


def machine(device: torch.device) -> dict[str, str]:
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "gpu": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }


def attention_timings(
    device: torch.device, lengths: Sequence[int], *, positions: int = 32_768
) -> Iterator[Timing]:
    """Time each backend alone: encoder and decoder self-attention over so many positions."""
    for length in lengths:
        for what in ("encoder", "decoder"):
            for dtype in DTYPES:
                for padded in (False, True):
                    for backend in BACKENDS:
                        row = Timing(what, backend, dtype, length, padded)
                        attempt(row, lambda row=row: time_attention(row, device, positions))
                        yield row


def attempt(row: Timing, measure: Callable[[], None]) -> None:
    """Fill in `row` by `measure`. What goes wrong becomes part of the row: the others still run."""
    print(f"gpu-check: {row.what} {row.backend} {row.dtype} {row.length}", file=sys.stderr)
    try:
        measure()
    except (BackendError, torch.OutOfMemoryError) as error:
        row.refused = first_line(error)
    except (RuntimeError, TypeError, ValueError) as error:
        row.refused = f"{type(error).__name__}: {first_line(error)}"
        row.broken = True


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def plan_for(row: Timing, device: torch.device):
    return resolve(
        row.backend, device=device, dtype=DTYPES[row.dtype], dropout=0.0, training=True,
        head_width=WIDTH,
    )  # fmt: skip


def padding_for(rows: int, length: int, *, padded: bool, device: torch.device) -> Padding:
    """Return full rows, or rows between a quarter of the length and all of it."""
    if not padded:
        return Padding.full(rows, length, device=device)
    lengths = torch.linspace(length // 4, length, rows).long().tolist()
    return Padding.from_lengths(lengths, longest=length, device=device)


def time_attention(row: Timing, device: torch.device, positions: int) -> None:
    B = max(2, positions // row.length)
    padding = padding_for(B, row.length, padded=row.padded, device=device)
    causal = row.what == "decoder"
    attend = plan_for(row, device).decoder if causal else plan_for(row, device).encoder
    shape = (B, row.length, HEADS, WIDTH)
    q, k, v = (
        torch.randn(shape, device=device, dtype=DTYPES[row.dtype]).transpose(1, 2).requires_grad_()
        for _ in range(3)
    )
    upstream = torch.randn_like(q)
    keys = None if causal else padding

    def forward() -> torch.Tensor:
        return attend(q, k, v, causal=causal, queries=padding, keys=keys, dropout=0.0)

    def both() -> None:
        torch.autograd.grad(forward(), (q, k, v), upstream)

    row.operators = operators(forward)
    row.forward_ms = milliseconds(torch.no_grad()(forward), device)
    row.both_ms = milliseconds(both, device)
    row.peak_mib = peak_mib(both, device)


def network_timings(
    device: torch.device, *, size: str = "base", length: int = 64, positions: int = 8192
) -> Iterator[Timing]:
    """Time forward and backward of a whole network in training, without the optimizer."""
    settings = ModelSettings(**SIZES[size])
    model = Transformer(settings, source_vocab=VOCAB, target_vocab=VOCAB, joint=True).to(device)
    for dtype in DTYPES:
        for padded in (False, True):
            for backend in BACKENDS:
                row = Timing("network", backend, dtype, length, padded)
                attempt(row, lambda row=row: time_network(row, model, device, positions))
                yield row


def time_network(row: Timing, model: Transformer, device: torch.device, positions: int) -> None:
    model.use_attention(plan_for(row, device))
    B = max(2, positions // row.length)
    padding = padding_for(B, row.length, padded=row.padded, device=device)
    source, target = torch.randint(VOCAB, (2, B, row.length), device=device)
    autocast = torch.autocast(device.type, DTYPES[row.dtype], enabled=row.dtype != "fp32")

    def forward() -> torch.Tensor:
        with autocast:
            return model(source, target, source=padding, target=padding)

    def both() -> None:
        model.zero_grad()
        forward().float().logsumexp(-1).mean().backward()

    row.forward_ms = milliseconds(torch.no_grad()(forward), device)
    row.both_ms = milliseconds(both, device)
    row.peak_mib = peak_mib(both, device)
    row.tokens_per_s = 2 * padding.total / row.both_ms * 1000


def milliseconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the median time of ten calls after three to warm up."""
    for _ in range(3):
        function()
    return statistics.median(_once(function, device) for _ in range(10))


def _once(function: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":  # so that this script can be tested where there is no GPU
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) * 1000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def peak_mib(function: Callable[[], object], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    function()
    return torch.cuda.max_memory_allocated(device) / 2**20


def operators(function: Callable[[], object]) -> str:
    """Return the names of the attention operators that `function` runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    names = {event.key for event in profile.key_averages()}
    return " ".join(sorted(n for n in names if any(operator in n for operator in OPERATORS)))


def table(rows: list[Timing]) -> str:
    """Return rows as aligned columns."""
    lines = [
        f"{'attention':9} {'backend':7} {'dtype':5} {'length':>6} {'padded':6} "
        f"{'forward ms':>10} {'+backward':>10} {'peak MiB':>9} {'tokens/s':>9}  operators"
    ]
    for row in rows:
        numbers = (row.forward_ms, row.both_ms, row.peak_mib, row.tokens_per_s)
        cells = (
            f"{'' if number is None else format(number, f',.{digits}f'):>{width}}"
            for number, digits, width in zip(numbers, (3, 3, 0, 0), (10, 10, 9, 9), strict=True)
        )
        lines.append(
            f"{row.what:9} {row.backend:7} {row.dtype:5} {row.length:6} "
            f"{'yes' if row.padded else 'no':6} {' '.join(cells)}  {row.refused or row.operators}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
