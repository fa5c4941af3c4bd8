"""Promise 6: a run that is killed at any moments ends with the weights of one that was left alone.

Twenty times SIGKILL, which no program can notice: at random moments, and in the midst of writing a
file. Each time the same command goes on.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tfm.data.lines import TEMPORARY
from tfm.model.tensor_file import read_tensors

DEFAULTS = str(Path(__file__).with_name("defaults.toml"))  # without it, settings are chosen
SETTINGS = [
    "tokenizer.vocab_size=420",
    "model.d_model=16",
    "model.d_ff=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.steps=120",
    "training.batch_tokens=200",
    "training.accumulate=2",
    "training.warmup_steps=10",
    "training.validate_every=10",
    "training.checkpoint_every=4",
    "training.average_last=2",
    "training.keep_best=2",
    "training.ema_decay=0.9",
    "training.subword_alpha=0.2",
    "training.forward_steps=40",
    "decoding.max_length=10",
]
KILLS = 20
# Where a file is being made or removed, and up to which of its calls a process may live: a
# checkpoint of weights takes some thirty writes, and one of all the state a hundred.
CALLS = {"write": 400, "fsync": 30, "replace": 20, "unlink": 20}

# Imports tfm once, and runs each command that it reads in a process forked from there. `call` and
# `count` name the system call that the process does not survive: half of a write is done then.
SERVER = """
import json, os, pathlib, signal, sys, time
import tfm.cli.main, tfm.data.lines as lines
import tfm.model.training.loop, tfm.model.training.recipe

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def deadly(function, count):
    left = [count]
    def call(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            die()
        return function(*arguments, **options)
    return call

class HalfWritten:
    left = 0
    def __init__(self, file):
        self.file = file
    def write(self, data):
        HalfWritten.left -= 1
        if HalfWritten.left == 0:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            die()
        return self.file.write(data)
    def __enter__(self):
        self.file.__enter__()
        return self
    def __exit__(self, *error):
        return self.file.__exit__(*error)
    def __getattr__(self, name):
        return getattr(self.file, name)

def prepare(call, count):
    if call in ("fsync", "replace"):
        setattr(os, call, deadly(getattr(os, call), count))
    elif call == "unlink":
        pathlib.Path.unlink = deadly(pathlib.Path.unlink, count)
    elif call == "write":
        HalfWritten.left, create = count, lines._create
        def half_written(path, binary):  # a binary file is one of tensors
            return HalfWritten(create(path, binary)) if binary else create(path, binary)
        lines._create = half_written

def wait(child, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        prepare(order["call"], order["count"])
        os._exit(tfm.cli.main.main(order["arguments"]))
    print(os.waitstatus_to_exitcode(wait(child, order["seconds"])), flush=True)
"""

Go = Callable[..., int]


@contextmanager
def server(environment: dict[str, str]) -> Iterator[Go]:
    """Give the function that runs a command, and kills it after `seconds` or within a call."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdin and process.stdout

    def go(arguments: list[str], *, seconds: float = 600, call: str = "", count: int = 0) -> int:
        assert process.stdin and process.stdout
        order = {"arguments": arguments, "seconds": seconds, "call": call, "count": count}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        yield go
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def command(output: Path) -> list[str]:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    corpora = ["--train", "builtin:60", "--valid", "builtin:4"]
    fixed = ["--device", "cpu", "--precision", "fp32"]
    return ["train", "--config", DEFAULTS, *sets, *corpora, *fixed, "-o", str(output)]


def story(directory: Path) -> list[dict[str, Any]]:
    """Return metrics.jsonl without what a clock measures."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "tokens_per_s")
    return [{key: r[key] for key in r if key not in clock} for r in records]


def assert_same(whole: Path, other: Path, context: str) -> None:
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    found = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    assert files == found, context
    for name in files:
        if name.suffix == ".safetensors":
            one, two = (read_tensors(run / name).tensors for run in (whole, other))
            assert one.keys() == two.keys(), f"{name}; {context}"
            assert all(one[key].equal(two[key]) for key in one), f"{name}; {context}"
    assert story(whole) == story(other), context


@pytest.mark.slow
def test_twenty_kills_leave_the_weights_of_a_run_that_was_left_alone(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    whole = tmp_path / "whole"
    with server(environment) as go:
        begin = time.monotonic()
        assert go(command(whole)) == 0
        seconds = time.monotonic() - begin
        log: list[str] = []
        killed, runs = 0, 0
        target = tmp_path / "0"
        while killed < KILLS:
            if killed % 2:
                call = list(CALLS)[killed // 2 % len(CALLS)]
                count = rng.randint(1, CALLS[call])
                code = go(command(target), call=call, count=count)
                log.append(f"run {target.name}: {call} {count}")
            else:
                moment = rng.uniform(0, seconds / 4)
                code = go(command(target), seconds=moment)
                log.append(f"run {target.name}: {moment:.2f} s")
            context = f"seed {seed}; {'; '.join(log)}"
            assert code in (0, -signal.SIGKILL), context
            killed += code != 0
            if code and log[-1].startswith(f"run {target.name}: write"):
                # In a checkpoint; at the end of a run in the weights of the model itself.
                halves = list(target.rglob(TEMPORARY))
                assert halves, f"it was killed elsewhere than in a file of tensors; {context}"
            if code == 0:  # it has ended before it was to be killed
                assert_same(whole, target, context)
                runs += 1
                target = tmp_path / str(runs)
        assert go(command(target)) == 0, context
        assert_same(whole, target, context)
