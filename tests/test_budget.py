"""`tfm train --time 30m`: training ends on time, with the whole schedule behind it.

Time is simulated here: a step, a validation and so on take what the test says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tfm.cli.main import main
from tfm.cli.options import _parse_time
from tfm.data.errors import CheckpointError, SettingsError
from tfm.model.checkpoint import load_model
from tfm.model.settings import Settings, TrainingSettings
from tfm.model.tensor_file import read_tensors
from tfm.model.training import diversification, loop, pace, rehearsal, selection, timetable
from tfm.model.training.budget import describe_lateness, still_due, thinned
from tfm.model.training.loop import train
from tfm.model.training.material import Order
from tfm.model.training.moving_average import MovingAverage
from tfm.model.training.plan import plan
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence, StepReport
from tfm.model.training.run import Run
from tfm.model.training.selection import Outcome
from tfm.model.training.signals import Interrupted
from tfm.model.training.timetable import Timetable

SmallOrder = Callable[..., Order]
PHASES = {"backward_steps": 10, "forward_steps": 15}  # of 40, before the last
MADE = ("back-translations.tsv", "forward-translations.tsv")
TABLE = Timetable(10, 0.2, 50, 60.0, 0.1, 0.25)


@dataclass
class World:
    """A clock that only moves when something is done; all lengths are exact in binary."""

    now: float = 1000.0
    step: float = 1.0
    validation: float = 2.0
    translation: float = 3.0
    validations: list[float] = field(default_factory=list)  # when each ended
    stopped: float = 0.0  # the learning rate at which a test stopped a run

    def clock(self) -> float:
        return self.now

    def taking(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            self.now += getattr(self, part)
            if part == "validation":
                self.validations.append(self.now)
            return result

        return slow


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    for module, name in ((loop, "time"), (rehearsal, "time"), (timetable, "time")):
        fake = SimpleNamespace(perf_counter=world.clock, monotonic=world.clock)
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(pace, "perf_counter", world.clock)
    monkeypatch.setattr(loop, "train_step", world.taking(loop.train_step, "step"))
    for module in (loop, rehearsal, selection):
        monkeypatch.setattr(module, "validate", world.taking(module.validate, "validation"))
    for module in (diversification, rehearsal):
        monkeypatch.setattr(module, "search", world.taking(module.search, "translation"))
    return world


@dataclass
class Finished(Silence):
    """What a sitting was: its run, and the reports of its steps."""

    reports: list[StepReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    after: Callable[[StepReport], None] = lambda report: None

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)
        self.after(report)

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def rates(self) -> list[float]:
        return [report.learning_rate for report in self.reports]


def sit(
    order: Order, world: World, after: Callable[[StepReport], None] = lambda report: None
) -> tuple[Run, Finished, Outcome | None]:
    """Train once, until the end or until `after` ends it."""
    watch = Finished(after=after)
    outcome = None
    with prepare(replace(order, started=world.now), watch) as run:
        if not run.complete:
            outcome = train(run, watch)
    return run, watch, outcome


def recipe(**options: Any) -> dict[str, Any]:
    """Return a recipe of 40 steps in a minute; 8 validations, 4 checkpoints."""
    steps: dict[str, Any] = {"steps": 40, "warmup_steps": 8, "schedule": "cosine"}
    every = {"validate_every": 5, "checkpoint_every": 10, "time": 60.0}
    return steps | every | options


# It ends on time


@pytest.mark.parametrize("step", [0.5, 2.0])
def test_it_ends_on_time_however_long_a_step_takes(
    small_order: SmallOrder, world: World, tmp_path: Path, step: float
) -> None:
    """Validations, among them those of the choice of the final weights, are inside the time."""
    world.step = step
    run, watch, outcome = sit(small_order(tmp_path / "run", **recipe()), world)
    assert 0.93 * 60 <= world.now - 1000 <= 60
    assert outcome is not None and not outcome.early and set(outcome.scores) == {"best", "average"}
    assert (tmp_path / "run/model.safetensors").is_file()
    assert run.progress.step == run.last_step == watch.reports[-1].steps
    assert [note for note in watch.notes if note.startswith("--time: about ")]
    assert watch.reports[0].seconds_left > watch.reports[-1].seconds_left >= 0


@pytest.mark.parametrize(("slow_from", "factor"), [(15, 4.0), (15, 0.5), (30, 4.0)])
def test_it_ends_on_time_when_the_machine_changes_its_pace(
    small_order: SmallOrder, world: World, tmp_path: Path, slow_from: int, factor: float
) -> None:
    def after(report: StepReport) -> None:
        if report.step == slow_from:
            world.step *= factor

    sit(small_order(tmp_path / "run", **recipe()), world, after)
    assert 0.9 * 60 <= world.now - 1000 <= 60 + world.step


def test_time_spent_before_the_first_step_counts(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    order = replace(small_order(tmp_path / "run", **recipe()), started=world.now - 30)
    with prepare(order, Silence()) as run:
        train(run, Silence())
    assert 0.85 * 30 <= world.now - 1000 <= 30


def test_a_time_that_is_too_short_still_leaves_a_model(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    run, watch, outcome = sit(small_order(tmp_path / "run", **recipe(time=1.0)), world)
    assert run.progress.step == 3 and outcome is not None and outcome.scores
    assert load_model(tmp_path / "run").model is not None
    [said] = [note for note in watch.notes if "too short" in note]
    # A trial validation of 2 s and 3 steps; then 2 validations are feared, with a tenth more.
    assert said.startswith("--time: 1 s is too short; 5.0 s have gone, and to validate and save ")
    assert said.endswith(" about 4.4 s more")
    lateness = describe_lateness(run)
    assert lateness is not None and "it took 7.0 s, of which 0.0 s to get ready, 2.0 s" in lateness


def test_a_time_that_is_kept_is_not_called_too_short(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    run, watch, _ = sit(small_order(tmp_path / "run", **recipe()), world)
    assert describe_lateness(run) is None
    assert not [note for note in watch.notes if "too short" in note]


def test_a_validation_longer_than_the_trial_says_is_named_when_it_is_over(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    def after(report: StepReport) -> None:
        world.validation = 50.0

    run, watch, _ = sit(small_order(tmp_path / "run", **recipe()), world, after)
    lateness = describe_lateness(run)
    assert lateness is not None and "50.0 s for a validation" in lateness


# The schedule


@pytest.mark.parametrize("step", [0.5, 2.0])
def test_the_whole_schedule_is_gone_through(
    small_order: SmallOrder, world: World, tmp_path: Path, step: float
) -> None:
    world.step = step
    run, watch, _ = sit(small_order(tmp_path / "run", **recipe()), world)
    peak = run.settings.training.learning_rate
    highest = watch.rates.index(max(watch.rates))
    assert max(watch.rates) > 0.9 * peak and watch.rates[-1] < 0.02 * peak
    assert watch.rates[:highest] == sorted(watch.rates[:highest])
    assert watch.rates[highest:] == sorted(watch.rates[highest:], reverse=True)
    assert 0.1 < highest / len(watch.rates) < 0.35, "a warm-up of a fifth"
    assert len(watch.rates) != 40, "or nothing was bent"


def test_a_change_of_pace_bends_the_schedule_and_does_not_break_it(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    def after(report: StepReport) -> None:
        if report.step == 15:
            world.step *= 4

    run, watch, _ = sit(small_order(tmp_path / "run", **recipe()), world, after)
    falls = [a / b for a, b in zip(watch.rates[10:-3], watch.rates[11:-2], strict=True)]
    assert max(falls) < 2 and watch.rates[-1] < 0.02 * run.settings.training.learning_rate


def test_validations_come_as_often_as_in_the_recipe_unless_they_take_too_long(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    world.validation = 0.5
    sit(small_order(tmp_path / "a", **recipe()), world)
    assert len(world.validations) == 8 + 2, "one is tried before, and one is of the average"
    world.validations.clear()
    world.validation = 4.0
    sit(small_order(tmp_path / "b", **recipe()), world)
    assert len(world.validations) == 2 + 3, "of 8, those that fit into a fifth of the time"


def test_shares_go_evenly_from_the_decision_to_the_last_step() -> None:
    assert [TABLE.at(step) for step in (10, 30, 50)] == pytest.approx([0.2, 0.6, 1.0])
    due = [step for step in range(11, 51) if TABLE.due("validation", step)]
    assert due == [15, 20, 25, 30, 35, 40, 45, 50]
    assert [step for step in range(11, 51) if TABLE.due("checkpoint", step)] == [13, 25, 38, 50]
    assert still_due(0.2, 0.1) == 7 and still_due(0.2, 0.25) == 3 and still_due(0.95, 0.1) == 0
    assert [TABLE.stale(step) for step in (10, 11)] == [False, True]
    assert [replace(TABLE, step=500, last=2000).stale(step) for step in (509, 510)] == [False, True]


def test_events_are_thinned_to_a_share_of_the_time() -> None:
    settings = TrainingSettings(steps=100, time=100.0)
    assert thinned(10, 1.0, 0.2, settings) == 0.1
    assert thinned(10, 5.0, 0.2, settings) == pytest.approx(0.3)
    assert thinned(500, 5.0, 0.2, settings) == 1.0


def test_the_moving_average_forgets_what_the_steps_of_the_recipe_would(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    with prepare(small_order(tmp_path / "run", valid=False), Silence()) as run:
        model = run.learner.model
        once, twice = MovingAverage(model, 0.5), MovingAverage(model, 0.5)
        with torch.no_grad():
            model.target_embedding.weight.add_(1.0)
    once.update(1000, counts=2.0)
    for _ in range(2):
        twice.update(1000)
    name = "target_embedding.weight"
    torch.testing.assert_close(once.weights[name], twice.weights[name])


def test_a_step_counts_for_the_average_as_many_steps_as_it_stands_for(
    small_order: SmallOrder, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    update = MovingAverage.update

    def spy(self: MovingAverage, step: int, *, counts: float) -> None:
        seen.append(counts)
        update(self, step, counts=counts)

    monkeypatch.setattr(MovingAverage, "update", spy)
    world.step = 2.0
    sit(small_order(tmp_path / "run", **recipe(ema_decay=0.9)), world)
    assert sum(seen) == pytest.approx(40) and max(seen) > 1.5


# Phases


def phases_of(order: Order, world: World) -> tuple[list[str], Finished, Run]:
    """Train, and return the phase that each step belonged to."""
    names: list[str] = []
    watch = Finished()
    with prepare(replace(order, started=world.now), watch) as run:
        watch.after = lambda report: names.append(run.phase.name)
        train(run, watch)
    return names, watch, run


@pytest.mark.parametrize("step", [0.25, 2.0])
def test_phases_keep_their_shares_and_translating_is_inside_the_time(
    small_order: SmallOrder, world: World, tmp_path: Path, step: float
) -> None:
    world.step, world.validation = step, 0.5
    order = small_order(tmp_path / "run", **recipe(**PHASES))
    names, watch, run = phases_of(order, world)
    assert 0.9 * 60 <= world.now - 1000 <= 60
    assert list(dict.fromkeys(names)) == ["backward", "forward", "last"]
    for name, steps in (("backward", 10), ("forward", 15), ("last", 15)):
        assert names.count(name) / len(names) == pytest.approx(steps / 40, abs=0.12)
    assert all((tmp_path / "run" / name).is_file() for name in MADE)
    said = [note for note in watch.notes if note.startswith("--time: about ")]
    assert "to translate the corpus about 3 s" in said[0]
    for begin in (names.index("forward"), names.index("last")):
        before, first = watch.rates[begin - 1 : begin + 1]
        warm = watch.rates[begin : begin + len(names) // 20]
        assert before < max(watch.rates) / 2 and warm == sorted(warm), "each has its own schedule"
        assert first < max(watch.rates)


def test_a_phase_in_which_no_step_ends_makes_nothing(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    world.translation = 0.125
    order = small_order(tmp_path / "run", **recipe(time=1.0, backward_steps=10, forward_steps=5))
    names, _, run = phases_of(order, world)
    assert names == ["backward", "backward", "last"] and list(run.made) == ["back-translations"]


def test_where_translating_would_take_most_of_the_time_it_is_left_out(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    world.translation = 15.5  # twice, of a minute
    order = small_order(tmp_path / "run", **recipe(**PHASES))
    names, watch, run = phases_of(order, world)
    assert world.now - 1000 <= 60 and not run.made
    assert list(dict.fromkeys(names)) == ["backward", "forward", "last"]
    [said] = [note for note in watch.notes if note.startswith("--time: about ")]
    assert "no time to translate the corpus, which takes about 16 s" in said


def test_a_run_with_phases_keeps_its_time_and_what_that_is_a_share_of(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    """Otherwise it would go on in another phase than the one where it stopped."""

    def stop(report: StepReport) -> None:
        if report.step == 4:
            raise Interrupted(15)

    def order(**options: Any) -> Order:
        return small_order(tmp_path / "run", **recipe(**PHASES, **options))

    with pytest.raises(Interrupted):
        sit(order(), world, stop)
    for options in ({"time": 30.0}, {"time": 0.0}, {"steps": 80}):
        [key] = options
        with pytest.raises(CheckpointError, match=f"training.{key} must not change"):
            sit(order(**options), world)
    run, _, outcome = sit(order(), world)
    assert outcome is not None and run.complete


# Going on


@pytest.mark.parametrize("phases", [{}, PHASES], ids=["one phase", "three"])
def test_a_run_that_is_stopped_and_killed_ends_as_one_that_was_not(
    small_order: SmallOrder, world: World, tmp_path: Path, phases: dict[str, int]
) -> None:
    def order(name: str) -> Order:
        return small_order(tmp_path / name, **recipe(**phases))

    def at(step: int, error: Exception) -> Callable[[StepReport], None]:
        def after(report: StepReport) -> None:
            if report.step == step:
                raise error

        return after

    sit(order("whole"), world)
    power_cut = RuntimeError("power cut")
    for step, error in ((3, Interrupted(15)), (23, power_cut), (29, Interrupted(2))):
        with pytest.raises(type(error)):
            sit(order("parts"), world, at(step, error))
        world.now += 1e4  # between two sittings no time is counted
    sit(order("parts"), world)
    for name in ("model", "checkpoints/last", "checkpoints/best"):
        one, other = (
            read_tensors(tmp_path / f"{run}/{name}.safetensors") for run in ("whole", "parts")
        )
        assert one.tensors.keys() == other.tensors.keys()
        assert all(one.tensors[key].equal(other.tensors[key]) for key in one.tensors), name
        assert one.header["step"] == other.header["step"]


def test_a_sitting_on_a_slower_machine_goes_on_where_the_schedule_was_and_ends_on_time(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    def stop(report: StepReport) -> None:
        if report.step == 20:
            world.stopped = report.learning_rate
            raise Interrupted(15)

    order = small_order(tmp_path / "run", **recipe())
    with pytest.raises(Interrupted):
        sit(order, world, stop)
    spent, world.step, begin = world.now - 1000, 2.0, world.now
    run, watch, _ = sit(order, world)
    assert 0.85 * 60 <= spent + world.now - begin <= 60 + world.step
    assert 0.6 < watch.rates[0] / world.stopped < 1
    assert watch.rates[-1] < 0.02 * run.settings.training.learning_rate


def test_a_finished_run_is_finished_and_a_longer_time_goes_on(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    first, _, _ = sit(small_order(tmp_path / "run", **recipe()), world)
    end = world.now
    again, watch, outcome = sit(small_order(tmp_path / "run", **recipe()), world)
    assert outcome is None and world.now == end and not watch.reports
    longer, watch, _ = sit(small_order(tmp_path / "run", **recipe(time=120.0)), world)
    assert longer.progress.step > first.progress.step
    assert 0.93 * 120 <= world.now - 1000 <= 120
    assert watch.rates[0] > 0.3 * longer.settings.training.learning_rate, "half of the schedule"
    shorter, watch, _ = sit(small_order(tmp_path / "run", **recipe(time=30.0)), world)
    assert not watch.reports and shorter.complete


def test_steps_take_the_place_of_the_time(
    small_order: SmallOrder, world: World, tmp_path: Path
) -> None:
    first, _, _ = sit(small_order(tmp_path / "run", **recipe()), world)
    more = first.progress.step + 2
    run, _, _ = sit(small_order(tmp_path / "run", **recipe(time=0.0, steps=more)), world)
    assert run.progress.step == more


# From the command line


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1h1m1s", 3661)],
)
def test_lengths_of_time_are_read(text: str, seconds: int) -> None:
    assert _parse_time(text) == seconds


@pytest.mark.parametrize(
    "words",
    [
        ("--time", "30"),
        ("--time", "half an hour"),
        ("--time", "0m"),
        ("--time", "1m", "--steps", "5"),
    ],
)
def test_what_is_no_length_of_time_is_wrong_usage(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--train", "builtin:50", "-o", str(tmp_path / "run"), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--time" in line and not (tmp_path / "run").exists()


def test_wrong_settings_of_time_are_refused() -> None:
    with pytest.raises(SettingsError, match="`time` must be at least 0"):
        Settings.read(None, ["training.time=-1"])


def test_the_command_ends_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few real seconds, with settings that are chosen; how many of them is not tested."""
    small = ["model.d_model=16", "model.d_ff=32", "tokenizer.vocab_size=400"]
    small += ["training.validate_sentences=3", "decoding.max_length=8", "training.batch_tokens=200"]
    sets = [word for setting in small for word in ("--set", setting)]
    command = ["train", *sets, "--train", "builtin:90", "--valid", "builtin:4", "--time", "4s"]
    command += ["-o", str(tmp_path / "run"), "--precision", "fp32"]
    assert main(command) == 0
    err = capsys.readouterr().err
    assert "no --config: " in err and "finished at step " in err
    settings = load_model(tmp_path / "run").settings
    assert settings.training.time == 4 and settings.training.ema_decay > 0
    assert main(command) == 0
    assert "or a longer --time goes on" in capsys.readouterr().err
    assert main([*command[:-2], "--dry-run"]) == 0
    assert "time: 0:00:04, as asked; --time: about" in capsys.readouterr().out


def test_the_plan_says_how_many_steps_training_takes(
    small_order: SmallOrder, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial is not at the cost of the steps, neither of a new run nor of one that goes on."""
    monkeypatch.setattr(rehearsal, "train_step", world.taking(rehearsal.train_step, "step"))

    def planned() -> int:
        watch = Finished()
        plan(replace(small_order(tmp_path / "run", **recipe()), started=world.now), watch)
        [line] = [line for line in watch.notes if line.startswith("time: 0:01:00, as asked")]
        assert " steps fit, each for " in line and "a validation takes about 2.0 s" in line
        [steps] = [line for line in watch.notes if line.startswith("steps: ")]
        fit = line.split("about ")[1].split(" steps fit")[0]
        assert steps.startswith(f"steps: about {fit} of 2 batches each")
        return int(fit)

    def stop(report: StepReport) -> None:
        if report.step == 10:
            raise Interrupted(15)

    first = planned()
    with pytest.raises(Interrupted):
        sit(small_order(tmp_path / "run", **recipe()), world, stop)
    second = planned()
    run, _, _ = sit(small_order(tmp_path / "run", **recipe()), world)
    assert [first, second] == pytest.approx([run.progress.step] * 2, abs=1)
