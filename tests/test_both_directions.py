"""Both directions first, then one: what is learned from when, and that both phases start anew."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.data.batching import Batch
from tfm.data.errors import CheckpointError, SettingsError
from tfm.model.checkpoint import weights_of
from tfm.model.settings import TrainingSettings
from tfm.model.tensor_file import read_tensors
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run
from tfm.model.training.schedule import learning_rate
from tfm.model.training.signals import Interrupted
from tfm.model.training.state import Progress

TrainSmall = Callable[..., Run]
FIRST = 7


def texts(run: Run, batch: Batch) -> list[tuple[str, str]]:
    decode = run.tokenizer.decode_source
    return [
        (decode(source), decode(target))
        for source, target in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True)
    ]


def test_the_first_phase_learns_every_pair_both_ways_round_and_the_second_one_way(
    small_order: Callable[..., Any], tmp_path: Path
) -> None:
    order = small_order(tmp_path, both_directions_steps=FIRST)
    expected = [tuple(pair) for pair in order.pairs("builtin:60", "train")]
    with prepare(order, Silence()) as run:
        stream = replace(run, progress=Progress()).stream()
        batches = stream.take(len(stream.epoch_order))
        both = [pair for batch in batches for pair in texts(run, batch)]
        assert sorted(both) == sorted([*expected, *(pair[::-1] for pair in expected)])
        sides = [{pair in expected for pair in texts(run, batch)} for batch in batches]
        assert {True, False} in sides, "directions are mixed within a batch"
        stream.progress.step = FIRST
        stream.next_epoch()
        batches = stream.take(len(stream.epoch_order))
        assert sorted(pair for batch in batches for pair in texts(run, batch)) == sorted(expected)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine"])
def test_each_phase_has_the_schedule_of_a_run_of_its_own(schedule: Any) -> None:
    def settings(**steps: int) -> TrainingSettings:
        return TrainingSettings(schedule=schedule, warmup_steps=10, **steps)

    both = settings(steps=300, both_directions_steps=100)
    found = [learning_rate(step, both) for step in range(1, 301)]
    first = [learning_rate(step, settings(steps=100)) for step in range(1, 101)]
    second = [learning_rate(step, settings(steps=200)) for step in range(1, 201)]
    assert found == first + second


def test_moments_average_and_snapshots_start_anew_and_the_weights_do_not(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    weights: dict[int, dict[str, torch.Tensor]] = {}
    averages: dict[int, dict[str, torch.Tensor]] = {}
    moments: dict[int, float] = {}

    def record(run: Run) -> None:
        step, learner = run.progress.step, run.learner
        assert learner.average is not None
        weights[step] = {n: w.clone() for n, w in weights_of(learner.model).items()}
        averages[step] = {n: w.clone() for n, w in learner.average.weights.items()}
        moments[step] = max(float(state["step"]) for state in learner.optimizer.state.values())

    options: dict[str, Any] = {"ema_decay": 0.9, "average_last": 9, "checkpoint_every": 2}
    run = train_small(tmp_path, after=record, both_directions_steps=FIRST, **options)
    assert list(moments.values()) == [*range(1, FIRST + 1), *range(1, 12 - FIRST + 1)]
    assert run.progress.snapshots == [8, 10, 12]
    decay = 2 / 11  # that of a first step
    for name, weight in weights[FIRST].items():
        assert not weight.equal(weights[FIRST + 1][name])
        expected = decay * weight + (1 - decay) * weights[FIRST + 1][name]
        torch.testing.assert_close(averages[FIRST + 1][name], expected)


def test_only_the_second_phase_runs_out_of_patience(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """A learning rate of nearly 0: no validation brings a new best after the first one."""
    options: dict[str, Any] = {
        "learning_rate": 1e-30,
        "validate_every": 1,
        "patience": 2,
        "steps": 12,
    }
    run = train_small(tmp_path / "both", both_directions_steps=FIRST, **options)
    assert run.progress.step == FIRST + 2
    assert train_small(tmp_path / "one", **options).progress.step == 3


@pytest.mark.parametrize("first", [3, 4, 7, 9], ids=lambda n: f"after step {n}")
def test_resuming_is_exact(assert_resume_is_exact: Callable[..., None], first: int) -> None:
    """Stops come after steps 3 and 9, a crash after 7, checkpoints at 5, 10 and 12."""
    assert_resume_is_exact(both_directions_steps=first, ema_decay=0.9)


def test_the_option_changes_what_is_learned(train_small: TrainSmall, tmp_path: Path) -> None:
    runs = [train_small(tmp_path / str(n), both_directions_steps=n) for n in (0, 1)]
    one, other = (read_tensors(run.directory.last).tensors for run in runs)
    assert not one["model.target_embedding.weight"].equal(other["model.target_embedding.weight"])


def test_separate_vocabularies_are_refused_before_anything_is_written(
    small_order: Callable[..., Any], tmp_path: Path
) -> None:
    order = small_order(tmp_path / "run", separate=True, both_directions_steps=3)
    message = "^.*both_directions_steps.*one vocabulary.*separate = false.*$"
    with pytest.raises(SettingsError, match=message), prepare(order, Silence()):
        pass
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_the_same_phases_only(
    small_order: Callable[..., Any], train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path, both_directions_steps=3)
    order = small_order(tmp_path, steps=20, both_directions_steps=4)
    with pytest.raises(CheckpointError, match="both_directions_steps"), prepare(order, Silence()):
        pass


def test_other_batches_may_be_asked_for_where_the_phases_meet(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """What is left of an epoch counts pairs of both directions until the second phase begins."""

    def stop_at(step: int) -> Callable[[Run], None]:
        def stop(run: Run) -> None:
            if run.progress.step == step:
                signal.raise_signal(signal.SIGTERM)

        return stop

    for step, batch_tokens in ((FIRST - 1, 200), (FIRST, 150)):
        options: dict[str, Any] = {
            "both_directions_steps": FIRST,
            "batch_tokens": batch_tokens,
            "accumulate": 1,
        }
        with pytest.raises(Interrupted):
            train_small(tmp_path, after=stop_at(step), **options)
    run = train_small(tmp_path, **options)
    assert (run.progress.step, run.progress.left) == (12, None)


def test_with_every_other_option_resuming_is_exact(
    assert_resume_is_exact: Callable[..., None],
) -> None:
    """As Bi-SimCut is trained, and then some."""
    assert_resume_is_exact(
        kind="bpe",
        both_directions_steps=FIRST,
        consistency="simcut",
        cutoff=0.2,
        subword_dropout=0.1,
        ema_decay=0.9,
    )
