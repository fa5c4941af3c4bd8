"""Run every test that needs an NVIDIA GPU, then measure attention, training and search there.

    python tests/gpu_check.py [-o DIR] [--minutes M] [--no-tests]          (make gpu-check)

Progress and the report of the tests go to stderr; the table goes to stdout and, with one JSON
object of the same figures, into DIR: gpu-check.txt and gpu-check.json.

    equality   the error of each backend against fp64, and which operators really ran
    attention  `tfm bench attention`: time and memory against N
    training   tokens per second, padding not counted, and the share of the peak of matrix products,
               of steps of the presets' networks by each backend, with and without padding
    search     sentences per second of the same networks with random weights and forced length

It takes M minutes at most: what is left then is not run, and says so. The exit code is 1 where
there is no GPU, DIR cannot be written, a test fails, or a backend breaks or is wrong.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tfm.data.errors import UserError
from tfm.data.lines import atomic_writer
from tfm.data.places import require_directory
from tfm.model.benchmarks import attention
from tfm.model.benchmarks.attention_report import Report
from tfm.model.benchmarks.attention_report import table as attention_table
from tfm.model.benchmarks.entries import Deadline, Entry, table
from tfm.model.benchmarks.equality import compare_backends
from tfm.model.benchmarks.networks import Load, search_entries, training_entries

TESTS = Path(__file__).parent
TESTS_SHARE = 0.5  # of the time, at most
PRESETS = ("wmt14-base", "wmt14-big")


@dataclass(frozen=True)
class Sizes:
    """How large all of it is. `overrides` make the presets' networks smaller."""

    equality: int = 257  # positions: one more than any block
    lengths: Sequence[int] = (256, 1024, 4096, 16384)
    heads: int = 16
    load: Load = Load(vocabulary=37_000, lengths=(32, 256), sentences=256)
    dtypes: Sequence[str] = ("fp32", "bf16", "fp16")
    training_dtypes: Sequence[str] = ("bf16",)
    overrides: Sequence[str] = ()


# For the tests of this script, where there is no GPU.
SMALL = Sizes(
    equality=33,
    lengths=(64, 128),
    heads=2,
    load=Load(vocabulary=50, lengths=(8,), sentences=4),
    dtypes=("fp32", "bf16"),
    overrides=(
        "model.d_model=16", "model.d_ff=32", "model.heads=2", "model.encoder_layers=1",
        "model.decoder_layers=1", "training.batch_tokens=64",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """What is to be done: where, how large, until when."""

    device: torch.device
    sizes: Sizes
    deadline: Deadline

    def equality(self) -> Iterator[Entry]:
        return compare_backends(self.device, self.sizes.dtypes, self.sizes.equality, self.deadline)

    def training(self) -> Iterator[Entry]:
        sizes = self.sizes
        return training_entries(
            PRESETS, sizes.load, self.device, sizes.training_dtypes, self.deadline, sizes.overrides
        )

    def search(self) -> Iterator[Entry]:
        sizes = self.sizes
        return search_entries(
            PRESETS, sizes.load, self.device, sizes.training_dtypes, self.deadline, sizes.overrides
        )

    def attention(self) -> Report:
        """Measure attention against N, the short lengths first."""
        sizes, cuda = self.sizes, self.device.type == "cuda"
        setup = attention.Setup(
            device=self.device,
            batch=1,
            heads=sizes.heads,
            window=128,
            memory_limit=torch.cuda.mem_get_info(self.device)[0] if cuda else 2**30,
        )
        bounds = attention.measure_bounds(self.device, sizes.dtypes)
        rows = []
        for case in attention.cases(attention.KINDS, sizes.dtypes, [64], sizes.lengths):
            tell(f"attention: {case.kind} {case.dtype} N = {case.length}")
            if self.deadline.left:
                rows.append(attention.run_case(case, setup, bounds))
            else:
                rows.append(attention.Row(case, not_run="the time was up"))
        return Report(rows, bounds, {"heads": sizes.heads, "window": 128})


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: no NVIDIA GPU is available to this PyTorch", file=sys.stderr)
        return 1
    try:
        require_directory(options.output)  # now, not after all of it
    except UserError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 1
    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    check = Check(device, SMALL if options.small else Sizes(), Deadline(60 * options.minutes))
    tests = {} if options.no_tests else run_tests(TESTS, TESTS_SHARE * check.deadline.seconds)
    report, text = measure(check)
    report = {**machine(device), "tests": tests, **report}
    report["passed"] = not (tests.get("exit_code") or broken(report))
    report["seconds"] = round(check.deadline.seconds - check.deadline.left, 1)
    text += f"tests: {tests.get('summary', 'not run')}\n"
    print(text, end="")
    write(options.output, {"gpu-check.txt": text, "gpu-check.json": json.dumps(report)})
    return 0 if report["passed"] else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/gpu-check"), metavar="DIR")
    parser.add_argument("--minutes", type=float, default=8.0, help="at most; 8 if not set")
    parser.add_argument("--no-tests", action="store_true", help="only the measurements")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def tell(text: str) -> None:
    print(f"gpu-check: {text}", file=sys.stderr)


def run_tests(folder: Path, seconds: float) -> dict[str, Any]:
    """Run the tests marked `gpu` in a process of their own; return how that ended."""
    command = [sys.executable, "-m", "pytest", str(folder), "-m", "gpu", "-q"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"exit_code": 124, "summary": f"not done within {seconds:.0f} seconds"}
    print(done.stdout, end="", file=sys.stderr)
    lines = done.stdout.splitlines()
    return {"exit_code": done.returncode, "summary": lines[-1] if lines else "no output"}


def measure(check: Check) -> tuple[dict[str, Any], str]:
    """Do all measurements; return them as JSON and as a table."""
    report: dict[str, Any] = {}
    text = ""
    sections: dict[str, Callable[[], Iterator[Entry]]] = {
        "equality": check.equality,
        "training": check.training,
        "search": check.search,
    }
    for name, entries in sections.items():
        rows = []
        for entry in entries():
            tell(f"{name}: {' '.join(map(str, entry.labels.values()))}")
            rows.append(entry)
        report[name] = [row.to_json() for row in rows]
        text += table(name, rows) + "\n"
    found = check.attention()  # the last, for what it measures is known best
    report["attention"] = found.to_json()
    return report, text + "attention\n" + attention_table(found) + "\n"


def machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "capability": list(torch.cuda.get_device_capability(device)) if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def broken(report: dict[str, Any]) -> bool:
    """Return whether a row of any section is broken."""
    return any(row["broken"] for name in ("equality", "training", "search") for row in report[name])


def write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_writer(directory / name) as file:
            file.write(content)
    tell(f"wrote to {directory}: {', '.join(files)}")


if __name__ == "__main__":
    sys.exit(main())
