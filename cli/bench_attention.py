"""`tfm bench attention`: what attention takes as the text grows, by every backend and form."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.options import Debug, Device, Json, OutputDirectory
from tfm.data.errors import OptionError
from tfm.data.places import require_directory

Lengths = Annotated[
    str, typer.Option("--lengths", metavar="LIST", help="Numbers of positions N to measure at.")
]
Kinds = Annotated[
    str,
    typer.Option(
        "--backends",
        metavar="LIST",
        help="Which of math, sdpa, flash (full attention), local, local-flash and linear.",
    ),
]
Dtypes = Annotated[
    str, typer.Option("--dtypes", metavar="LIST", help="Which of fp32, bf16 and fp16.")
]
Widths = Annotated[str, typer.Option("--widths", metavar="LIST", help="Widths of a head.")]
Heads = Annotated[
    int | None,
    typer.Option(
        "--heads", min=1, metavar="H", help="Heads; 2 on a CPU and 16 on a GPU if not set."
    ),
]
Batch = Annotated[int, typer.Option("--batch", min=1, metavar="B", help="Sequences at once.")]
Window = Annotated[
    int, typer.Option("--window", min=2, metavar="W", help="Window of local attention.")
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        "--memory-limit",
        min=0,
        metavar="GIB",
        help="What would need more is left out, and said so; 4 on a CPU, what is free on a GPU.",
    ),
]


def bench_attention(
    lengths: Lengths = "64,128,256,512,1024,2048,4096,8192,16384",
    backends: Kinds = "math,sdpa,flash,local,local-flash,linear",
    dtypes: Dtypes = "fp32",
    widths: Widths = "64",
    heads: Heads = None,
    batch: Batch = 1,
    window: Window = 128,
    memory_limit: MemoryLimit = None,
    output: OutputDirectory = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure time and peak memory of attention alone against the number of positions N.

    Full attention by its backends, local attention within a window, and linear attention: self-
    attention of an encoder, a forward pass by itself and one with its backward pass. Beside each
    figure stands its ratio to math; "of bound" is the least time that this machine's matrix
    products or memory traffic allow, as a share of the time taken. Peak memory is what is allocated
    beyond queries, keys and values: on a CPU every allocation is recorded, on a GPU the allocator
    tells. -o DIR writes attention.json and attention.svg, where slopes show how the costs grow.
    """
    from tfm.model.benchmarks.attention import KINDS, Setup, cases, measure_bounds, run_case
    from tfm.model.benchmarks.attention_report import Report, chart, table
    from tfm.model.device import PRECISIONS, resolve_device

    require_directory(output)
    chosen = list(
        cases(
            names(backends, KINDS, "--backends"),
            names(dtypes, PRECISIONS, "--dtypes"),
            numbers(widths, "--widths"),
            numbers(lengths, "--lengths"),
        )
    )
    if window % 2:
        raise OptionError(f"--window {window}: must be even: half of it on each side")
    where = resolve_device(device)
    setup = Setup(
        device=where,
        batch=batch,
        heads=heads or (16 if where.type == "cuda" else 2),
        window=window,
        memory_limit=limit(memory_limit, where),
    )
    bounds = measure_bounds(where, dict.fromkeys(case.dtype for case in chosen))
    rows = []
    for case in chosen:
        console.note(f"{case.kind}, {case.dtype}, head width {case.width}, N = {case.length:,}")
        rows.append(run_case(case, setup, bounds))
    report = Report(rows, bounds, conditions(setup))
    if output is not None:
        write(
            output, {"attention.json": json.dumps(report.to_json()), "attention.svg": chart(report)}
        )
    print(json.dumps(report.to_json()) if as_json else table(report), end="\n" if as_json else "")


def names(text: str, known: Iterable[str], option: str) -> list[str]:
    """Return the names in a list with commas.

    Raises:
        typer.BadParameter: if one is unknown.
    """
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return list(dict.fromkeys(found))


def numbers(text: str, option: str) -> list[int]:
    """Return the whole numbers above 0 in a list with commas.

    Raises:
        typer.BadParameter: if one is none.
    """
    found = [part.strip() for part in text.split(",")]
    for part in found:
        if not re.fullmatch(r"[1-9][0-9]{0,8}", part):
            raise typer.BadParameter(f"{part!r} is no whole number above 0", param_hint=option)
    return list(dict.fromkeys(int(part) for part in found))


def limit(gib: float | None, device: Any) -> int:
    """Return the memory limit in bytes."""
    import torch

    if gib is not None:
        return int(min(gib, 2**30) * 2**30)  # more than any machine has, also where it is inf
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 4 * 2**30


def conditions(setup: Any) -> dict[str, Any]:
    """Describe the run: what its figures depend on besides the rows."""
    import torch

    cuda = setup.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(setup.device) if cuda else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "batch": setup.batch,
        "heads": setup.heads,
        "window": setup.window,
        "memory_limit_bytes": setup.memory_limit,
    }


def write(directory: Path, files: dict[str, str]) -> None:
    """Write the files of a report into a directory, which is made if need be."""
    from tfm.data.lines import atomic_writer

    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_writer(directory / name) as file:
            file.write(content)
    console.note(f"wrote to {directory}: {', '.join(files)}")
