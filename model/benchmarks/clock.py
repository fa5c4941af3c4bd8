"""What one call takes: time by its device's clock, and peak memory by its device's allocator."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

ENOUGH_SECONDS = 0.3  # of repeated calls, after the first
MOST_CALLS = 20
MEMORY_EVENT = "[memory]"  # what PyTorch's profiler calls an allocation, or the end of one

Call = Callable[[], object]


class Cost(NamedTuple):
    """What a call takes. The peak is what it allocates at once beyond what was there before."""

    seconds: float
    peak_bytes: int


def measure(call: Call, device: torch.device) -> Cost:
    """Return what `call` takes. The run that finds the peak warms up for those that are timed."""
    peak = peak_bytes_of(call, device)
    return Cost(seconds_of(call, device), peak)


def seconds_of(call: Call, device: torch.device) -> float:
    """Return the median time of calls; one is enough where it takes long."""
    times = [_once(call, device)]
    while sum(times) < ENOUGH_SECONDS and len(times) < MOST_CALLS:
        times.append(_once(call, device))
    return statistics.median(times)


def _once(call: Call, device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def peak_bytes_of(call: Call, device: torch.device) -> int:
    """Return the largest number of bytes that `call` has allocated at any moment.

    On CUDA the allocator itself keeps this. On a CPU every allocation and release that PyTorch's
    allocator makes is recorded in the order of time, those within kernels too, and added up: exact
    to the byte, whatever else the process holds. Memory that a library gets past that allocator is
    not seen; for the calls measured here, the growth of the resident set agrees.
    """
    if device.type != "cuda":
        return _recorded_peak(call)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def quiet_profiler() -> None:
    """Keep PyTorch's profiler from writing to stderr; for before its first use."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _recorded_peak(call: Call) -> int:
    quiet_profiler()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    changes = [
        (event["ts"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == MEMORY_EVENT
    ]
    live = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        live += change
        peak = max(peak, live)
    return peak
