"""`tfm bench attention`: what it counts is there, grows as it should, and is all said."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tfm.cli.bench_attention import limit
from tfm.cli.main import main
from tfm.model.attention import formula
from tfm.model.benchmarks.attention import (
    KINDS,
    Bounds,
    Case,
    Row,
    Setup,
    bound,
    expected_bytes,
    kernel,
    passes,
    run_case,
)
from tfm.model.benchmarks.attention_report import MEASURES, Report, chart, slopes, table
from tfm.model.benchmarks.clock import Cost, peak_bytes_of, seconds_of

CPU = torch.device("cpu")
SETUP = Setup(CPU, batch=1, heads=2, window=128, memory_limit=2**31)
BOUNDS = Bounds({"fp32": 1e11, "bf16": 2e11}, 4e10)
MIB = 2**20


def peaks(case: Case, setup: Setup = SETUP) -> list[int]:
    """Return the peaks of forward, and of forward and backward."""
    return [peak_bytes_of(call, CPU) for call in passes(kernel(case, setup), case, setup)]


@pytest.fixture(autouse=True)
def one_run_is_timed(monkeypatch):
    monkeypatch.setattr("tfm.model.benchmarks.clock.ENOUGH_SECONDS", 0.0)


def test_the_peak_is_what_is_held_at_once_to_the_byte():
    def call():
        first = torch.empty(4 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(3 * MIB, dtype=torch.uint8)
        return second, third

    assert peak_bytes_of(call, CPU) == 6 * MIB


def test_what_was_there_before_does_not_count_and_what_a_kernel_takes_does():
    x = torch.randn(1, 1, 2048, 64)
    held = torch.empty(8 * MIB)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    found = peak_bytes_of(lambda: sdpa(x, x, x), CPU)
    assert x.nbytes < found < 4 * x.nbytes < held.nbytes  # the output, and room for tiles


def test_the_peak_is_measured_without_a_word():
    """In a process of its own: one that has used the profiler before may have to hear from it."""
    code = (
        "import torch; from tfm.model.benchmarks.clock import peak_bytes_of\n"
        "peak_bytes_of(lambda: torch.ones(3), torch.device('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_time_is_the_median_of_the_calls(monkeypatch):
    took = iter([5.0, 1.0, 2.0])
    monkeypatch.setattr("tfm.model.benchmarks.clock.ENOUGH_SECONDS", 7.5)
    monkeypatch.setattr("tfm.model.benchmarks.clock._once", lambda call, device: next(took))
    assert seconds_of(lambda: None, CPU) == 2.0


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_expected_is_enough_and_not_much_too_much(kind, dtype):
    case = Case(kind, dtype, 64, 2048)
    found = max(peaks(case))
    assert 0.9 * found < expected_bytes(case, SETUP) < 6 * found


# Long ones where it grows slowly: each thread of a kernel takes the same at any length.
LENGTHS = {True: (512, 1024), False: (4096, 8192)}


@pytest.mark.parametrize("kind", ["math", "flash", "local", "linear"])
def test_memory_grows_with_the_square_of_n_for_math_and_with_n_for_all_others(kind):
    setup = replace(SETUP, heads=8)  # so that what a kernel takes at any length counts for little
    cases = [Case(kind, "fp32", 64, N) for N in LENGTHS[kind == "math"]]
    rows = [Row(case, *(Cost(0.1, size) for size in peaks(case, setup)), 0.01) for case in cases]
    powers = slopes(rows)[kind]
    for name in ("forward_peak_bytes", "peak_bytes"):
        assert powers[name] == pytest.approx(2 if kind == "math" else 1, abs=0.15)


def test_a_fused_kernel_needs_less_than_a_tenth_of_the_memory_of_math_at_4096():
    of_math = peaks(Case("math", "fp32", 64, 4096))
    for kind in ("sdpa", "flash", "local", "linear"):
        for found, reference in zip(peaks(Case(kind, "fp32", 64, 4096)), of_math, strict=True):
            assert found <= reference / 10


def row(kind: str, N: int, seconds: float, size: float) -> Row:
    return Row(Case(kind, "fp32", 64, N), *[Cost(seconds, int(size))] * 2, bound=seconds / 4)


def report(rows) -> Report:
    return Report(rows, BOUNDS, {"device": "cpu"})


def test_slopes_are_the_powers_of_n_in_the_upper_lengths():
    rows = [row("math", N, 3e-6 * N**1.5, 100 * N**2) for N in (256, 1024, 2048, 4096)]
    rows[0] = row("math", 256, 1, 1)  # too short to count
    powers = slopes(rows)["math"]
    assert powers["seconds"] == pytest.approx(1.5) and powers["peak_bytes"] == pytest.approx(2)
    assert slopes(rows[:1]) == {}


def test_the_table_has_every_row_with_its_ratios_and_says_what_was_not_run():
    rows = [row("math", 64, 2e-3, 8 * MIB), row("flash", 64, 1e-3, MIB), row("flash", 128, 1, 1)]
    rows += [Row(Case("math", "fp32", 64, 128), not_run="needs about 9.0 GiB")]
    lines = table(report(rows)).splitlines()
    (math_,) = [line.split() for line in lines if line.startswith("     64  math")]
    (flash,) = [line.split() for line in lines if line.startswith("     64  flash")]
    assert math_[2:] == ["2.00", "1.000"] * 2 + ["8.00", "1.000"] * 2 + ["25.0%"]
    assert flash[2:] == ["1.00", "0.500"] * 2 + ["1.00", "0.125"] * 2 + ["25.0%"]
    assert "    128  math           not run: needs about 9.0 GiB" in lines
    (alone,) = [line.split() for line in lines if line.startswith("    128  flash")]
    assert len(alone) == 2 + len(MEASURES) + 1  # no ratio to what was not run


def test_a_case_beyond_the_memory_limit_is_not_tried():
    setup = Setup(CPU, batch=1, heads=2, window=128, memory_limit=10**6)
    found = run_case(Case("math", "fp32", 64, 10**6), setup, BOUNDS)
    assert found.not_run.startswith("needs about") and "memory limit is 0.0 GiB" in found.not_run
    assert found.to_json()["not_run"] == found.not_run


@pytest.mark.parametrize("kind", KINDS)
def test_wide_heads_count_toward_the_memory_limit(kind):
    assert "memory limit" in run_case(Case(kind, "fp32", 10**9, 64), SETUP, BOUNDS).not_run


def test_there_may_be_no_memory_limit():
    assert limit(float("inf"), CPU) > 2**50 and limit(0.5, CPU) == 2**29


def test_a_backend_that_refuses_says_so_in_its_row(monkeypatch):
    monkeypatch.setitem(KINDS, "odd", KINDS["linear"]._replace(backend="sdpa"))
    found = run_case(Case("odd", "fp32", 64, 64), SETUP, BOUNDS)
    assert "linear attention has no softmax" in found.not_run


@pytest.mark.parametrize("kind", ["math", "local", "linear"])
def test_the_bound_counts_the_products_that_have_to_be(kind):
    case = Case(kind, "fp32", 16, 4096)
    seconds = bound(case, SETUP, Bounds({"fp32": 1.0}, math.inf))
    q = torch.randn(1, 2, 4096, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        attend = kernel(case, SETUP) if kind != "local" else formula.attend
        attend(q, q, q, causal=False, queries=None, keys=None, dropout=0.0).sum().backward()
    counted = counter.get_total_flops()
    expected = {"math": counted, "local": counted * 129 / 4096, "linear": counted}[kind]
    assert seconds == pytest.approx(expected, rel=0.1)  # sums of phi are small beside the products


def test_the_bound_is_the_traffic_where_that_takes_longer():
    case = Case("math", "bf16", 64, 8)
    seconds = bound(case, SETUP, Bounds({"bf16": math.inf}, 1.0))
    assert seconds == 12 * (2 * 8 * 64) * 2  # 12 tensors of bf16, read or written


def test_the_chart_names_every_kind_with_its_slopes():
    rows = [row(kind, N, 1e-6 * N, N**2) for N in (64, 128) for kind in KINDS]
    drawing = ElementTree.fromstring(chart(report(rows)))
    words = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    for kind in KINDS:
        lines = [e for e in drawing.iter() if e.get("class") == f"line {kind}"]
        assert sum(e.tag.endswith("polyline") for e in lines) == 2  # time and memory
        assert f"{kind}: 1.00" in words and f"{kind}: 2.00" in words


def test_a_chart_of_nothing_that_could_be_run_is_still_a_drawing():
    rows = [Row(Case("math", "fp32", 64, 128), not_run="needs about 9.0 GiB")]
    drawing = ElementTree.fromstring(chart(report(rows)))
    assert any(element.tag.endswith("text") for element in drawing.iter())
    assert not any(element.tag.endswith("polyline") for element in drawing.iter())


def bench(*flags: object) -> int:
    return main(["bench", "attention", "--device", "cpu", *map(str, flags)])


def test_the_command_prints_json_and_writes_its_files(tmp_path: Path, capsys):
    where = tmp_path / "bench"
    assert bench("--lengths", "64,256", "--dtypes", "fp32,bf16", "--json", "-o", where) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found == json.loads((where / "attention.json").read_text())
    assert len(found["rows"]) == 2 * 2 * len(KINDS)
    for one in found["rows"]:
        assert one["seconds"] > 0 and one["peak_bytes"] > 0 and one["peak_bytes_by_math"] > 0
    assert {(s["dtype"], s["backend"]) for s in found["slopes"]} == {
        (dtype, kind) for dtype in ("fp32", "bf16") for kind in KINDS
    }
    assert found["heads"] == 2 and found["bytes_per_s"] > 0 and found["peak_flops_per_s"]["bf16"]
    assert "linear, bf16, head width 64, N = 256" in err
    ElementTree.parse(where / "attention.svg")


def test_the_command_prints_a_table_and_tells_what_does_not_fit(capsys):
    assert bench("--lengths", "64,8192", "--backends", "math", "--memory-limit", "0.5") == 0
    out = capsys.readouterr().out
    assert "not run: needs about 1.7 GiB, but the memory limit is 0.5 GiB" in out


@pytest.mark.parametrize(
    "flags, code, said",
    [
        (["--lengths", "64,0"], 2, "'0' is no whole number above 0"),
        (["--lengths", "many"], 2, "'many' is no whole number above 0"),
        (["--backends", "math,fast"], 2, "'fast' is none of math, sdpa, flash, local"),
        (["--dtypes", "fp8"], 2, "'fp8' is none of fp32, bf16, fp16"),
        (["--window", "7"], 2, "--window 7: must be even"),
        (["-o", __file__], 1, f"{__file__}: a file, not a directory; choose another -o"),
        (["-o", f"{__file__}/x/y"], 1, f"{__file__}: a file, not a directory"),
    ],
)
def test_a_wrong_list_is_one_line(flags, code, said, capsys):
    assert bench(*flags) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.gpu
def test_the_peak_on_cuda_is_that_of_its_allocator():
    held = torch.empty(4 * MIB, device="cuda", dtype=torch.uint8)
    found = peak_bytes_of(lambda: held.clone() + held, torch.device("cuda"))
    assert 8 * MIB <= found < 9 * MIB


@pytest.mark.gpu
def test_every_kind_runs_on_cuda_in_half_precision(capsys):
    flags = ["--lengths", "256,1024", "--dtypes", "bf16,fp16", "--device", "cuda", "--json"]
    assert main(["bench", "attention", *flags]) == 0
    for one in json.loads(capsys.readouterr().out)["rows"]:
        assert "not_run" not in one and one["seconds"] > 0
