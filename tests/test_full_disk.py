"""A disk that is full, or a place that cannot be written: one line, and nothing older is lost."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.main import main
from tfm.data.errors import UserError
from tfm.model.tensor_file import read_tensors
from tfm.model.training.reporting import StepReport
from tfm.model.training.run import Run

TrainSmall = Callable[..., Run]
OPTIONS: dict[str, Any] = {"validate_every": 3, "checkpoint_every": 3, "steps": 6}


class FullDisk:
    """Lets `os.fsync` fail from its n-th call on, as it does on a disk that is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.calls, self.fsync = calls, os.fsync
        self.seen = 0
        monkeypatch.setattr(os, "fsync", self.call)

    def call(self, descriptor: int) -> None:
        self.seen += 1
        if self.seen > self.calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.fsync(descriptor)


def weights(run: Path) -> dict[str, Any]:
    return {
        f"{name} {key}": tensor
        for name in ("model", "checkpoints/last", "checkpoints/best")
        for key, tensor in read_tensors(run / f"{name}.safetensors").tensors.items()
    }


def test_a_disk_that_fills_at_any_write_costs_no_run(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """Every third file that is written, from the first of a run to its last."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, 10_000)
        train_small(tmp_path / "whole", **OPTIONS)
    expected = weights(tmp_path / "whole")
    assert disk.seen > 20
    for calls in range(0, disk.seen, 3):
        directory = tmp_path / str(calls)
        with pytest.MonkeyPatch.context() as patch:
            FullDisk(patch, calls)
            with pytest.raises(UserError) as error:
                train_small(directory, **OPTIONS)
        line = str(error.value)
        assert line.startswith(str(directory)) and "\n" not in line
        assert "cannot be written: no space left on device; free space" in line
        assert not list(directory.rglob(".tfm-*")), "what was half written makes room"
        train_small(directory, **OPTIONS)
        found = weights(directory)
        assert found.keys() == expected.keys()
        assert all(found[key].equal(expected[key]) for key in found), calls


def test_an_older_checkpoint_is_intact_when_a_newer_one_cannot_be_written(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    before: list[bytes] = []

    with pytest.MonkeyPatch.context() as patch:

        def fill(run: Run) -> None:
            if run.progress.step == 5:
                before.append(run.directory.last.read_bytes())
                FullDisk(patch, 0)

        with pytest.raises(UserError, match="no space left"):
            train_small(tmp_path, after=fill, **OPTIONS)
    last = tmp_path / "checkpoints" / "last.safetensors"
    assert [last.read_bytes()] == before
    assert read_tensors(last).header["progress"]["step"] == 3


def test_metrics_that_cannot_be_written_are_named(train_small: TrainSmall, tmp_path: Path) -> None:
    """/dev/full refuses what is written to it as a full disk does."""

    def fill(run: Run) -> None:
        if run.progress.step == 1:
            run.directory.metrics.unlink()
            run.directory.metrics.symlink_to("/dev/full")

    with pytest.raises(UserError, match="metrics.jsonl: cannot be written: no space .*free space"):
        train_small(tmp_path, after=fill, **OPTIONS)


def test_a_curve_that_cannot_be_written_is_named(train_small: TrainSmall, tmp_path: Path) -> None:
    def block(run: Run) -> None:
        run.directory.curve.mkdir(exist_ok=True)

    with pytest.raises(UserError, match="learning_curve.svg: cannot be written: it is a directory"):
        train_small(tmp_path, after=block, **OPTIONS)


DEFAULTS = str(Path(__file__).with_name("defaults.toml"))  # without it, settings are chosen
IN_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=400k tmpfs "$1"
shift
"$@"
"""
SCRIPT = """
import sys
from pathlib import Path
from tfm.cli.main import main
from tfm.model.tensor_file import read_tensors

disk, *arguments = sys.argv[1:]
last = Path(disk, "run/checkpoints/last.safetensors")
assert main([*arguments, "--steps", "4"]) == 0
filler = Path(disk, "filler").open("wb", buffering=0)
try:
    while filler.write(b"x" * 1024):
        pass
except OSError:
    pass
print("code", main([*arguments, "--steps", "8"]))
print("step", read_tensors(last).header["progress"]["step"])
Path(disk, "filler").unlink()
filler.close()
print("code", main([*arguments, "--steps", "8"]))
print("step", read_tensors(last).header["progress"]["step"])
"""


def test_a_real_small_disk_that_is_full_ends_the_run_in_one_line(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", IN_A_SMALL_DISK, "sh", disk]
    if not shutil.which("unshare") or subprocess.run([*namespace, "true"]).returncode:
        pytest.skip("no right to mount a small disk")
    sets = ["tokenizer.vocab_size=320", "model.d_model=16", "model.d_ff=32", "model.heads=2"]
    sets += ["model.encoder_layers=1", "model.decoder_layers=1", "training.batch_tokens=200"]
    sets += ["training.checkpoint_every=2", "training.average_last=0"]
    arguments = [
        "train",
        "--config",
        DEFAULTS,
        *(word for item in sets for word in ("--set", item)),
    ]
    arguments += ["--train", "builtin:60", "-o", str(disk / "run")]
    done = subprocess.run(
        [*namespace, sys.executable, "-c", SCRIPT, disk, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
    )
    assert done.stdout.split("\n")[:4] == ["code 1", "step 4", "code 0", "step 8"], done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("tfm: error:")]
    assert "cannot be written: no space left on device; free space or choose another -o" in line
    assert "Traceback" not in done.stderr


def test_a_full_disk_while_a_signal_asks_to_save_is_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any, report: StepReport) -> None:
        if report.step == 3:
            FullDisk(monkeypatch, 0)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("tfm.cli.progress.TrainingProgress.on_step", stop)
    sets = ["model.d_model=16", "model.d_ff=32", "model.heads=2", "tokenizer.vocab_size=320"]
    arguments = [
        "train",
        "--config",
        DEFAULTS,
        *(word for item in sets for word in ("--set", item)),
    ]
    assert main([*arguments, "--train", "builtin:60", "-o", str(tmp_path / "run")]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 1 and "last.safetensors: cannot be written: no space left" in errors[0]


# Ctrl-C


def test_a_second_ctrl_c_leaves_at_once_and_saves_nothing(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    def press(times: int) -> Callable[[Run], None]:
        def after(run: Run) -> None:
            if run.progress.step == 5:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
                after.reached = True  # type: ignore[attr-defined]

        after.reached = False  # type: ignore[attr-defined]
        return after

    twice = press(2)
    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path, after=twice, **OPTIONS)
    assert not twice.reached  # type: ignore[attr-defined]
    last = tmp_path / "checkpoints" / "last.safetensors"
    assert read_tensors(last).header["progress"]["step"] == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    train_small(tmp_path, **OPTIONS)
    train_small(tmp_path / "whole", **OPTIONS)
    one, other = weights(tmp_path), weights(tmp_path / "whole")
    assert all(one[key].equal(other[key]) for key in one)


def test_a_second_ctrl_c_during_the_saving_keeps_the_older_checkpoint(
    train_small: TrainSmall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def impatient(descriptor: int) -> None:
        signal.raise_signal(signal.SIGINT)
        fsync(descriptor)

    def stop(run: Run) -> None:
        if run.progress.step == 5:
            signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr(os, "fsync", impatient)

    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path, after=stop, **OPTIONS)
    last = tmp_path / "checkpoints" / "last.safetensors"
    assert read_tensors(last).header["progress"]["step"] == 3
    assert not list(tmp_path.rglob(".tfm-*"))
