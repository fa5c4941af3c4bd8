"""The moving average of the weights: its formula, what it is used for, and exact resuming."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tfm.model.checkpoint import weights_of
from tfm.model.tensor_file import read_tensors
from tfm.model.training.run import Run

TrainSmall = Callable[..., Run]


class Recorder:
    """Keeps the weights after each step, and the average as the formula has it, in fp64."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.averages: dict[int, dict[str, Tensor]] = {}

    def __call__(self, run: Run) -> None:
        step = run.progress.step
        weights = {n: w.double().clone() for n, w in weights_of(run.learner.model).items()}
        d = min(self.decay, (1 + step) / (10 + step))
        if step == 1:
            # The state of step 0 is on disk by now, and no later one.
            stored = read_tensors(run.directory.last).tensors
            self.average = {n: stored[f"model.{n}"].double() for n in weights}
        self.average = {n: d * self.average[n] + (1 - d) * w for n, w in weights.items()}
        self.averages[step] = self.average


def assert_near(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name].float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.3, 0.999], ids=["constant", "warming up"])
def test_average_is_the_formulas(train_small: TrainSmall, tmp_path: Path, decay: float) -> None:
    recorder = Recorder(decay)
    run = train_small(tmp_path, after=recorder, ema_decay=decay)
    assert run.learner.average is not None
    assert_near(run.learner.average.weights, recorder.averages[12])


def test_the_average_is_measured_and_saved_as_the_best(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    recorder = Recorder(0.9)
    run = train_small(tmp_path / "average", after=recorder, ema_decay=0.9, metric="loss")
    best = read_tensors(run.directory.best)
    assert_near(best.tensors, recorder.averages[best.header["step"]])
    plain = train_small(tmp_path / "plain", metric="loss")
    assert best.header["scores"] != read_tensors(plain.directory.best).header["scores"]


def test_training_goes_on_from_the_weights_and_not_from_the_average(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    averaged = train_small(tmp_path / "average", ema_decay=0.9)
    plain = train_small(tmp_path / "plain")
    one, other = (weights_of(run.learner.model) for run in (averaged, plain))
    assert all(one[name].equal(other[name]) for name in one)
    assert averaged.progress.snapshots == plain.progress.snapshots


def test_without_validation_the_average_is_the_model(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    recorder = Recorder(0.9)
    run = train_small(tmp_path, valid=False, after=recorder, ema_decay=0.9)
    assert_near(read_tensors(run.directory.weights).tensors, recorder.averages[12])


def test_resuming_is_exact(assert_resume_is_exact: Callable[..., None]) -> None:
    assert_resume_is_exact(ema_decay=0.9)


def test_an_average_asked_for_later_begins_with_the_weights_of_then(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path, steps=6)
    run = train_small(tmp_path, steps=7, ema_decay=0.9)
    assert run.learner.average is not None
    before = read_tensors(run.directory.snapshot(6)).tensors
    decay = 8 / 17
    for name, weight in weights_of(run.learner.model).items():
        expected = decay * before[name] + (1 - decay) * weight
        torch.testing.assert_close(run.learner.average.weights[name], expected)


def test_at_the_end_it_competes_with_the_mean_of_the_last_checkpoints(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """The mean is that of the weights themselves, as without a moving average."""
    run = train_small(tmp_path / "average", ema_decay=0.9, metric="loss")
    plain = train_small(tmp_path / "plain", metric="loss")
    finals = [json.loads(r.directory.metrics.read_text().splitlines()[-1]) for r in (run, plain)]
    candidates, without = (final["candidates"] for final in finals)
    assert candidates.keys() == {"best", "average"}
    assert candidates["average"] == without["average"]
    assert candidates["best"] != without["best"]
    better = min(candidates, key=lambda name: candidates[name]["nats_per_token"])
    assert finals[0]["chosen"] == better
    assert read_tensors(run.directory.weights).header["scores"] == candidates[better]
