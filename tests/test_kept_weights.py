"""The weights that stay beside the state: the last and the best, and what happens without them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.model.tensor_file import read_tensors
from tfm.model.training.loop import train
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run
from tfm.model.training.selection import Outcome
from tfm.model.training.validation import Validation, ValidationScores

TrainSmall = Callable[..., Run]
SmallOrder = Callable[..., Any]
SCORES = [5.0, 9.0, 7.0, 9.5, 8.0, 6.0, 9.0]  # of validations, one after each step
EVERY: dict[str, Any] = {"validate_every": 1, "steps": len(SCORES), "checkpoint_every": 1}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let validations find `SCORES`, by step; the choice at the end has real ones."""

    def score(learner: Any, *_: object, **__: object) -> Validation:
        state = next(iter(learner.optimizer.state.values()))
        bleu = SCORES[int(state["step"]) - 1]
        return Validation(ValidationScores(loss=1.0, nats_per_token=1.0, bleu=bleu))

    monkeypatch.setattr("tfm.model.training.loop.validate", score)


def steps_of(run: Run, kind: str) -> list[int]:
    paths = run.directory.checkpoints.glob(f"{kind}-*.safetensors")
    return sorted(int(path.stem.removeprefix(f"{kind}-")) for path in paths)


@pytest.mark.usefixtures("scored")
@pytest.mark.parametrize(("count", "kept"), [(1, []), (2, [2, 4]), (4, [2, 4, 5, 7])])
def test_the_best_validations_keep_their_weights(
    train_small: TrainSmall, tmp_path: Path, count: int, kept: list[int]
) -> None:
    """Steps 2 and 7 are equal: the earlier one stands first."""
    weights: dict[int, torch.Tensor] = {}

    def record(run: Run) -> None:
        weights[run.progress.step] = run.learner.model.target_embedding.weight.detach().clone()

    run = train_small(tmp_path, after=record, keep_best=count, average_last=0, **EVERY)
    assert steps_of(run, "best") == kept
    for step in kept:
        stored = read_tensors(run.directory.ranked(step))
        assert stored.header["step"] == step and stored.header["scores"]["bleu"] == SCORES[step - 1]
        assert stored.tensors["target_embedding.weight"].equal(weights[step])
    assert read_tensors(run.directory.best).header["step"] == 4
    assert run.progress.best_step == 4


@pytest.mark.usefixtures("scored")
def test_a_crash_keeps_the_same_best_weights(train_small: TrainSmall, tmp_path: Path) -> None:
    options = EVERY | {"keep_best": 3, "checkpoint_every": 3}

    def crash(run: Run) -> None:
        if run.progress.step == 6:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        train_small(tmp_path, after=crash, **options)
    assert train_small(tmp_path, **options).progress.ranking[-1].step == 7
    run = train_small(tmp_path, **options)
    assert steps_of(run, "best") == [2, 4, 7]


def test_fewer_best_weights_are_kept_from_the_next_validation_on(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"validate_every": 1, "checkpoint_every": 1}
    assert len(steps_of(train_small(tmp_path, steps=4, keep_best=3, **options), "best")) == 3
    assert len(steps_of(train_small(tmp_path, steps=5, keep_best=2, **options), "best")) == 2
    assert len(steps_of(train_small(tmp_path, steps=6, keep_best=1, **options), "best")) == 0


@pytest.mark.parametrize(
    ("average", "keep", "steps"), [(2, 0, [10, 12]), (2, 4, [6, 8, 10, 12]), (0, 2, [10, 12])]
)
def test_the_last_checkpoints_are_kept_and_no_more_of_them_averaged_than_asked_for(
    train_small: TrainSmall, tmp_path: Path, average: int, keep: int, steps: list[int]
) -> None:
    options: dict[str, Any] = {"valid": False, "checkpoint_every": 2, "validate_every": 2}
    run = train_small(tmp_path, average_last=average, keep_last=keep, **options)
    assert steps_of(run, "step") == steps
    final = read_tensors(run.directory.weights).tensors
    parts = [read_tensors(run.directory.snapshot(step)).tensors for step in (10, 12)]
    for name, weight in final.items():
        last = parts[1][name]
        mean = (parts[0][name].double() + last.double()).div(2).float()
        torch.testing.assert_close(weight, mean if average else last, atol=1e-7, rtol=0)


# Files that are lost or damaged before the end


@pytest.fixture
def unfinished(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> Iterator[tuple[Run, Callable[[], tuple[Outcome, list[str]]]]]:
    """Give a run at its last step with nothing chosen yet, and what lets it finish."""

    def crash(run: Run) -> None:
        if run.progress.step == 12:
            raise RuntimeError("power cut")

    options: dict[str, Any] = {"checkpoint_every": 3, "average_last": 3, "keep_best": 2}
    with pytest.raises(RuntimeError):
        train_small(tmp_path, after=crash, **options)

    class Notes(Silence):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def on_note(self, text: str) -> None:
            self.lines.append(text)

    def finish() -> tuple[Outcome, list[str]]:
        notes = Notes()
        outcome = train(run, notes)
        return outcome, [line for line in notes.lines if "chosen without it" in line]

    with prepare(small_order(tmp_path, **options), Silence()) as run:
        yield run, finish


@pytest.fixture
def no_new_best(monkeypatch: pytest.MonkeyPatch) -> None:
    worst = Validation(ValidationScores(loss=99.0, nats_per_token=99.0, bleu=-1.0))
    monkeypatch.setattr("tfm.model.training.loop.validate", lambda *_, **__: worst)


@pytest.mark.usefixtures("no_new_best")
def test_lost_best_weights_are_taken_from_the_ranking(unfinished: Any) -> None:
    run, finish = unfinished
    run.directory.best.unlink()
    outcome, notes = finish()
    assert outcome.best_step == run.progress.best_step and set(outcome.scores) == {
        "best",
        "average",
    }
    [note] = notes
    assert note.startswith(f"{run.directory.best}: no such file")


@pytest.mark.usefixtures("no_new_best")
@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_without_any_best_weights_the_average_is_chosen_and_said_so(
    unfinished: Any, damage: str
) -> None:
    run, finish = unfinished
    for path in run.directory.checkpoints.glob("best*"):
        path.unlink() if damage == "lost" else path.write_bytes(b"damaged")
    outcome, notes = finish()
    assert (outcome.chosen, outcome.best_step, outcome.averaged) == ("average", None, 3)
    assert len(notes) >= 1 and f"{run.directory.best}: " in notes[0]
    assert run.progress.finished


def test_a_damaged_snapshot_leaves_the_mean_of_the_others(unfinished: Any) -> None:
    run, finish = unfinished
    assert run.progress.snapshots == [3, 6, 9]
    run.directory.snapshot(9).write_bytes(b"damaged")
    outcome, notes = finish()
    assert outcome.averaged == 2
    [note] = notes
    assert str(run.directory.snapshot(9)) in note


@pytest.mark.parametrize("average", [False, True], ids=["last", "moving average"])
def test_without_any_of_them_the_last_weights_are_chosen(
    train_small: TrainSmall, small_order: SmallOrder, tmp_path: Path, average: bool
) -> None:
    options: dict[str, Any] = {"average_last": 0, "ema_decay": 0.5 if average else 0.0}
    train_small(tmp_path, **options)
    with prepare(small_order(tmp_path, **options), Silence()) as run:
        run.directory.best.unlink()
        outcome = train(run, Silence())
    assert outcome.chosen == ("moving average" if average else "last")
    assert outcome.scores[outcome.chosen].bleu is not None
    state = read_tensors(run.directory.last).tensors
    for name, weight in read_tensors(run.directory.weights).tensors.items():
        assert weight.equal(state[f"{'average' if average else 'model'}.{name}"])
