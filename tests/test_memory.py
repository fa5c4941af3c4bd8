"""Freed memory stays with the process that asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfm.cli import translation_job
from tfm.cli.main import main
from tfm.model import memory

pytestmark = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="needs glibc"
)

FAULTS = """
import resource, sys, torch
from tfm.model.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
before = faults()
for _ in range(30):
    torch.ones(2**24)  # 64 MiB, more than glibc keeps by itself: 16,384 pages
print(faults() - before)
"""


def faults(how: str, **environment: str) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_most_large_blocks_are_faulted_in_once_and_not_again() -> None:
    """Not all: a small block may settle at the end of a free large one, and the next needs more."""
    assert faults("keep") < 200_000 < 400_000 < faults("return")


def test_whoever_sets_the_variables_of_glibc_is_not_overruled() -> None:
    assert faults("keep", MALLOC_MMAP_THRESHOLD_="1000000") > 400_000


KERNELS = """
import torch
from tfm.model.memory import keep_memory_for_training
keep_memory_for_training()
weight = torch.ones(64, 64, dtype=torch.bfloat16)
for _ in range(2):
    for rows in range(10, 160):
        torch.nn.functional.linear(torch.ones(rows, 64, dtype=torch.bfloat16), weight)
"""


def test_training_keeps_the_kernels_of_few_shapes() -> None:
    """Of 150 shapes each is new again the second time, unless the user wants them all kept."""

    def made(**environment: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", KERNELS],
            env=os.environ | {"ONEDNN_VERBOSE": "all"} | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.count("create:cache_miss")

    by_default = made()
    if not by_default:
        pytest.skip("oneDNN does not compute these products on this processor")
    assert by_default == 300
    assert made(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024") == 150


HELD = """
import torch
from tfm.model.memory import give_back_freed_memory, keep_freed_memory
def held():
    return int(open("/proc/self/statm").read().split()[1])
keep_freed_memory()
low = [torch.ones(2**18) for _ in range(64)]
last = torch.ones(2**18)  # lies behind the others, which are free now, but not at the end
del low
before = held()
give_back_freed_memory()
print((before - held()) * 4096 >> 20)
"""


def test_what_is_free_between_what_is_used_goes_back_to_the_kernel() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", HELD], env=clean, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 48  # of 64 MiB


def test_translating_keeps_freed_memory_and_returns_it_after_each_full_window(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: calls.append("keep"))
    monkeypatch.setattr(memory, "give_back_freed_memory", lambda: calls.append("give back"))
    monkeypatch.setattr(translation_job, "WINDOW", 2)
    monkeypatch.setattr(translation_job, "FIRST_WINDOW", 2)
    lines = tmp_path / "lines.txt"
    lines.write_text("A dog runs.\n" * 5, encoding="utf-8")
    done = main(["translate", str(tiny_model), "-i", str(lines), "-o", str(tmp_path / "out.txt")])
    assert done == 0
    assert calls == ["keep", "give back", "give back"]
