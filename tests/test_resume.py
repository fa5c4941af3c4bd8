"""Promise 6, resume is exact: what may change and what not, where a run goes on, and how far."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfm.data.errors import CheckpointError, SettingsError
from tfm.model.tensor_file import read_tensors
from tfm.model.training.loop import train
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run
from tfm.model.training.signals import Interrupted

TrainSmall = Callable[..., Run]
SmallOrder = Callable[..., Any]


class Notes(Silence):
    """Remembers what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_note(self, text: str) -> None:
        self.lines.append(text)

    def starting(self, start: str) -> list[str]:
        return [line.removeprefix(start) for line in self.lines if line.startswith(start)]


def stop_after(step: int, log: "list[list[int]] | None" = None) -> Callable[[Run], None]:
    def after(run: Run) -> None:
        if run.progress.step == step:
            signal.raise_signal(signal.SIGTERM)

    return after


def stopped(train_small: TrainSmall, directory: Path, step: int, **options: Any) -> None:
    with pytest.raises(Interrupted):
        train_small(directory, after=stop_after(step), **options)


def pairs_of_the_rest(run: Run) -> list[int]:
    """Return the pairs that come in the rest of the epoch, in the order of the corpus."""
    stream = run.stream()
    batches = stream.take(len(stream.epoch_order) - run.progress.batch)
    return sorted(int(i) for batch in batches for i in batch.indices)


# What may change


@pytest.mark.parametrize(
    "change",
    [{"batch_tokens": 90}, {"batch_tokens": 400}, {"subword_alpha": 0.2}],
    ids=["smaller batches", "larger batches", "other pieces"],
)
def test_an_epoch_has_every_pair_once_though_its_batches_are_cut_anew(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Steps of one batch: two before the change, two with it, and the rest after another stop."""
    seen: list[int] = []
    options: dict[str, Any] = {"accumulate": 1}
    with prepare(small_order(tmp_path, **options), Silence()) as run:
        assert len(run.stream().epoch_order) > 7, "the epoch must be long enough"
    for step, settings in ((2, {}), (4, change)):
        with prepare(small_order(tmp_path, **options, **settings), Silence()) as run:
            done = run.progress.step
            probe = replace(run, progress=replace(run.progress)).stream()
            seen += [int(i) for batch in probe.take(step - done) for i in batch.indices]
        stopped(train_small, tmp_path, step, **options, **settings)
    with prepare(small_order(tmp_path, **options, **change), Silence()) as run:
        assert run.progress.epoch == 0 and run.progress.left is not None
        assert sorted([*seen, *pairs_of_the_rest(run)]) == list(range(60))
        stream = run.stream()
        stream.take(len(stream.epoch_order) - run.progress.batch)
        stream.take(1)
        assert run.progress.left is None
        assert sorted(np.concatenate(stream.epoch_order)) == list(range(60)), "as ever after"


def test_a_change_takes_hold_at_once_and_resuming_after_it_is_exact(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    stopped(train_small, tmp_path / "a", 3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with prepare(small_order(tmp_path / "a", batch_tokens=100), Silence()) as run:
        lengths = [batch.target_in.size for batch in replace(run).stream().take(4)]
    assert max(lengths) <= 100
    whole = train_small(tmp_path / "a", batch_tokens=100)
    stopped(train_small, tmp_path / "b", 4, batch_tokens=100)  # within the epoch of the change
    stopped(train_small, tmp_path / "b", 7, batch_tokens=100)
    parts = train_small(tmp_path / "b", batch_tokens=100)
    one, other = (read_tensors(run.directory.last).tensors for run in (whole, parts))
    assert one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)
    unchanged = read_tensors(train_small(tmp_path / "c").directory.last).tensors
    assert not one["model.target_embedding.weight"].equal(
        unchanged["model.target_embedding.weight"]
    )


def test_what_may_change_is_told_with_a_line_for_each_setting(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    stopped(train_small, tmp_path, 3)
    order = small_order(tmp_path, steps=20, batch_tokens=300, learning_rate=0.01, accumulate=1)
    order = replace(
        order,
        precision="bf16",
        attention="sdpa",
        settings=replace(order.settings, model=replace(order.settings.model, dropout=0.25)),
    )
    notes = Notes()
    with prepare(order, notes) as run:
        assert notes.starting("changed from here on: ") == [
            "model.dropout 0.1 -> 0.25",
            "training.steps 12 -> 20",
            "training.batch_tokens 200 -> 300",
            "training.accumulate 2 -> 1",
            "training.learning_rate 0.001 -> 0.01",
        ]
        [machine] = notes.starting("computed otherwise from here on: ")
        assert "precision fp32 -> bf16" in machine and "attention" in machine
        train(run, Silence())
    assert run.progress.step == 20
    again = Notes()
    with prepare(order, again):
        assert not again.starting("changed from here on")


def test_another_machine_is_told(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    stopped(train_small, tmp_path, 3)
    provenance = tmp_path / "provenance.json"
    record = json.loads(provenance.read_text("utf-8"))
    record["sittings"][-1] |= {"device": "NVIDIA H200", "processes": 2}
    provenance.write_text(json.dumps(record), encoding="utf-8")
    notes = Notes()
    with prepare(small_order(tmp_path), notes):
        pass
    [machine] = notes.starting("computed otherwise from here on: ")
    assert machine == "device NVIDIA H200 -> cpu, processes 2 -> 1"


def test_settings_are_compared_with_those_of_the_checkpoint_whatever_config_toml_says(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    """A kill between config.toml and the next checkpoint leaves the older state."""
    stopped(train_small, tmp_path, 3)
    for _ in range(2):  # the first writes config.toml, and saves nothing
        notes = Notes()
        with prepare(small_order(tmp_path, batch_tokens=100), notes) as run:
            assert notes.starting("changed from here on: ") == ["training.batch_tokens 200 -> 100"]
            assert run.progress.left is not None


# What must not change


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"model": {"d_model": 32, "norm": "post"}},
            ["model.d_model: 16 -> 32", "model.norm: pre -> post"],
        ),
        ({"training": {"seed": 2}}, ["training.seed: 1 -> 2"]),
        ({"tokenizer": {"vocab_size": 500}}, ["tokenizer.vocab_size: 8000 -> 500"]),
        ({"data": {"max_length": 9}}, ["data.max_length: 256 -> 9"]),
        # Scores of other sentences, or of another search, cannot be compared with the best so far.
        (
            {"training": {"validate_sentences": 2}, "decoding": {"max_length": 5}},
            ["training.validate_sentences: 1000 -> 2", "decoding.max_length: 10 -> 5"],
        ),
    ],
    ids=["network", "seed", "vocabulary", "length", "validation"],
)
def test_what_must_not_change_is_refused_with_a_line_for_each_setting(
    small_order: SmallOrder,
    train_small: TrainSmall,
    tmp_path: Path,
    changes: dict[str, dict[str, Any]],
    expected: list[str],
) -> None:
    stopped(train_small, tmp_path, 3)
    order = small_order(tmp_path)
    settings = order.settings
    for section, values in changes.items():
        settings = replace(settings, **{section: replace(getattr(settings, section), **values)})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    notes = Notes()
    with pytest.raises(CheckpointError) as error, prepare(replace(order, settings=settings), notes):
        pass
    assert notes.lines == expected
    names = ", ".join(line.partition(":")[0] for line in expected)
    assert f"{tmp_path}: holds a run in which {names} must not change; " in str(error.value)
    assert "choose another -o" in str(error.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_another_corpus_is_refused(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    stopped(train_small, tmp_path, 3)
    for change, name in (({"train": "builtin:59"}, "training"), ({"valid": None}, "validation")):
        notes = Notes()
        order = replace(small_order(tmp_path), **change)
        with pytest.raises(CheckpointError, match=f"{name} corpus"), prepare(order, notes):
            pass
        assert re.fullmatch(
            rf"{name} corpus: [0-9a-f]{{12}}\.\.\. -> ([0-9a-f]{{12}}\.\.\.|none)", notes.lines[-1]
        )


# Where it goes on, and how far


def test_the_report_says_where_training_goes_on_and_what_is_best(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    stopped(train_small, tmp_path, 6)
    notes = Notes()
    with prepare(small_order(tmp_path), notes) as run:
        stream = run.stream()
        done, batches, epoch = run.progress.batch, len(stream.epoch_order), run.progress.epoch
        assert run.progress.best is not None
        train(run, notes)
    [line] = notes.starting("continues ")
    assert line.startswith(
        f"after step 6 of 12; {done} of {batches} batches of epoch {epoch + 1} done; best BLEU "
    )
    assert re.search(r"best BLEU \d+\.\d\d at step 4(;|$)", line)
    fresh = Notes()
    with prepare(small_order(tmp_path / "new"), fresh) as run:
        train(run, fresh)
    assert not fresh.starting("continues ")


def more(order: Any, steps: int) -> Any:
    """Order `--steps +STEPS`."""
    return replace(order.up_to(steps), more_steps=steps)


def test_plus_steps_go_on_from_where_a_run_is_and_repeated_to_the_same_end(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    def go(order: Any, stop: int | None = None) -> int:
        class Stop(Silence):
            def on_step(self, report: Any) -> None:
                if report.step == stop:
                    signal.raise_signal(signal.SIGTERM)

        with prepare(order, Silence()) as run:
            if stop is None:
                train(run, Silence())
            else:
                with pytest.raises(Interrupted):
                    train(run, Stop())
        return run.progress.step

    assert go(small_order(tmp_path), stop=5) == 5
    assert go(more(small_order(tmp_path), 4), stop=7) == 7
    assert go(more(small_order(tmp_path), 4)) == 9, "the end is the one of the first time"
    assert go(more(small_order(tmp_path), 4)) == 13, "a finished run takes as many again"
    assert go(more(small_order(tmp_path), 2)) == 15
    assert go(more(small_order(tmp_path / "new"), 3), stop=2) == 2
    assert go(more(small_order(tmp_path / "new"), 3)) == 3, "a new run begins at 0"


def test_plus_steps_are_exact_however_often_they_are_stopped(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with prepare(more(small_order(tmp_path / "a"), 8), Silence()) as whole:
        train(whole, Silence())
    with prepare(more(small_order(tmp_path / "b"), 8), Silence()) as run:

        class Crash(Silence):
            def on_step(self, report: Any) -> None:
                if report.step == 14:
                    raise RuntimeError("power cut")

        with pytest.raises(RuntimeError):
            train(run, Crash())
    with prepare(more(small_order(tmp_path / "b"), 8), Silence()) as run:
        assert run.settings.training.steps == 20
        train(run, Silence())
    one, other = (read_tensors(r.directory.weights).tensors for r in (whole, run))
    assert all(one[key].equal(other[key]) for key in one)


def test_patience_counts_on_after_a_stop(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    """The first validation is the best; the second and the third are not, a stop between them."""
    options: dict[str, Any] = {"validate_every": 1, "patience": 2, "learning_rate": 1e-30}
    stopped(train_small, tmp_path, 2, **options)
    assert train_small(tmp_path, **options).progress.step == 3


def test_plus_steps_that_end_before_the_last_phase_are_refused_with_how_many_it_takes(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    stopped(train_small, tmp_path, 3, forward_steps=6)
    order = small_order(tmp_path, forward_steps=6)
    message = r"--steps \+3: .* take 6 steps, of which 3 are done; give at least --steps \+4"
    with (
        pytest.raises(SettingsError, match=message),
        prepare(replace(order, more_steps=3), Silence()),
    ):
        pass
    with prepare(replace(order, more_steps=4), Silence()) as run:
        assert run.last_step == 7


def test_plus_steps_overrule_patience_that_has_run_out(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"validate_every": 1, "patience": 2, "learning_rate": 1e-30}
    assert train_small(tmp_path, **options).progress.step == 3
    with prepare(more(small_order(tmp_path, **options), 9), Silence()) as run:
        assert not run.complete
        train(run, Silence())
    assert run.progress.step == 5, "patience begins anew"
