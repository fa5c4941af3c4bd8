"""TensorBoard: `training.tensorboard` shows the records of metrics.jsonl, each of them once."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.main import main
from tfm.data.errors import DataError
from tfm.model.training.board import Board
from tfm.model.training.run import Run

TrainSmall = Callable[..., Run]
Points = dict[str, list[tuple[int, float]]]


def shown(run: Path) -> Points:
    """Return what TensorBoard's own reader finds: the (step, value) points of each curve."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in tags}


def recorded(run: Path) -> Points:
    """Return the same from metrics.jsonl."""
    points: Points = {}
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if isinstance(value, float) and key != "seconds":
                points.setdefault(f"{record['kind']}/{key}", []).append((record["step"], value))
    return points


def assert_same(found: Points, expected: Points) -> None:
    """Both have the same points; TensorBoard keeps them in fp32."""
    assert found.keys() == expected.keys()
    for tag, points in expected.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        assert [v for _, v in found[tag]] == pytest.approx([v for _, v in points], rel=1e-6), tag


def test_the_board_shows_what_metrics_jsonl_records(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path, tensorboard=True, steps=20)
    found = shown(tmp_path)
    assert_same(found, recorded(tmp_path))
    quantities = ("loss", "learning_rate", "gradient_norm", "tokens_per_s", "padding")
    assert {f"train/{name}" for name in quantities} | {"valid/loss", "valid/bleu"} <= found.keys()


def test_the_board_shows_sample_translations(train_small: TrainSmall, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_small(tmp_path, tensorboard=True, validate_samples=2)
    board = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    records = map(json.loads, (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines())
    samples = [record for record in records if record["kind"] == "sample"]
    for number in (0, 1):
        texts = board.Tensors(f"sample/{number + 1}")
        assert len(texts) == 3, "at the validations of steps 4, 8 and 12"
        for text, sample in zip(texts, samples[number::2], strict=True):
            assert text.step == sample["step"]
            shown_text = text.tensor_proto.string_val[0].decode()
            assert sample["source"] in shown_text and sample["translation"] in shown_text


def test_a_point_stands_there_once_whatever_a_crash_has_lost(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """The checkpoint of step 15 is older than the records of steps 16 and 20, which come again."""

    def crash(run: Run) -> None:
        if run.progress.step == 23:
            raise RuntimeError("power cut")

    options: dict[str, Any] = {"tensorboard": True, "steps": 30, "checkpoint_every": 15}
    with pytest.raises(RuntimeError):
        train_small(tmp_path, after=crash, **options)
    assert [step for step, _ in shown(tmp_path)["train/loss"]] == [10, 20]
    train_small(tmp_path, **options)
    found = shown(tmp_path)
    assert [step for step, _ in found["train/loss"]] == [10, 20, 30]
    assert_same(found, recorded(tmp_path))


def test_the_board_may_be_switched_on_in_the_middle_of_a_run(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path, steps=10)
    assert not (tmp_path / "tensorboard").exists(), "off unless asked for"
    train_small(tmp_path, steps=20, tensorboard=True)
    assert_same(shown(tmp_path), recorded(tmp_path))


def test_nothing_in_it_names_the_machine(train_small: TrainSmall, tmp_path: Path) -> None:
    train_small(tmp_path, tensorboard=True)
    [path] = (tmp_path / "tensorboard").iterdir()
    name = os.uname().nodename
    assert name not in path.name and name.encode() not in path.read_bytes()


def test_without_the_package_it_is_refused_in_one_line_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it raises ImportError
    order = ["train", "--config", "demo", "--train", "builtin:60", "-o", str(tmp_path / "run")]
    assert main([*order, "--set", "training.tensorboard=true"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tfm: error: training.tensorboard needs the package tensorboard: pip")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = Board(tmp_path / "tensorboard")
    board.begin([])
    assert board.file is not None
    board.file.close()
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    board.file = full.open("wb")
    with pytest.raises(DataError, match=f"tensorboard.*{os.strerror(errno.ENOSPC).lower()}"):
        board.add({"kind": "train", "step": 1, "loss": 1.0})
    board.close()  # what could not be written is still in its buffer: no second error
