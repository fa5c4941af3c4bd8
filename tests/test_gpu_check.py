"""The GPU check: what can be known of the script on a machine without a GPU."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tfm.data.errors import BackendError

SCRIPT = Path(__file__).with_name("gpu_check.py")


@pytest.fixture(scope="module")
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "gpu-check: no NVIDIA GPU is available to this PyTorch\n"


def test_every_backend_dtype_and_padding_gets_its_row(gpu_check, monkeypatch):
    monkeypatch.setattr(gpu_check, "VOCAB", 50)
    cpu = torch.device("cpu")
    rows = [
        *gpu_check.attention_timings(cpu, [8], positions=16),
        *gpu_check.network_timings(cpu, size="tiny", length=4, positions=8),
    ]
    assert len(rows) == 2 * 3 * 2 * 3 + 3 * 2 * 3
    for row in rows:
        assert row.forward_ms > 0 and row.both_ms > 0 and not row.refused
        assert (row.tokens_per_s is not None) == (row.what == "network")
    assert "flash" in next(row for row in rows if row.backend == "flash").operators
    assert len(gpu_check.table(rows).splitlines()) == 1 + len(rows)
    json.dumps([asdict(row) for row in rows])


@pytest.mark.parametrize(
    "error, broken",
    [
        (BackendError("no"), False),
        (torch.OutOfMemoryError("no"), False),
        (RuntimeError("no\nand why not"), True),
        (ValueError("no"), True),
    ],
)
def test_what_goes_wrong_is_part_of_the_report(gpu_check, error, broken):
    def fail():
        raise error

    row = gpu_check.Timing("encoder", "flash", "fp32", 64, False)
    gpu_check.attempt(row, fail)
    assert row.broken == broken and row.refused in gpu_check.table([row])
    assert row.refused.endswith("no")


def test_an_error_without_a_message_is_reported_too(gpu_check):
    def fail():
        raise RuntimeError

    row = gpu_check.Timing("encoder", "flash", "fp32", 64, False)
    gpu_check.attempt(row, fail)
    assert row.broken and row.refused == "RuntimeError: "
