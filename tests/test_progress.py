"""What can be seen of training: the live view, plain lines, metrics, sample translations."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tfm.cli.dashboard import Dashboard, clock, sparkline
from tfm.model.settings import Settings, TrainingSettings
from tfm.model.training.loop import train
from tfm.model.training.pace import Pace, times_due, validations_due
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence, StepReport
from tfm.model.training.run import Run
from tfm.model.training.validation import Sample, ValidationScores, translate_greedily

TrainSmall = Callable[..., Run]

REPORT = StepReport(
    step=1250,
    steps=5000,
    epoch=5.25,
    loss=3.5,
    nats_per_token=3.214,
    learning_rate=4.2e-3,
    gradient_norm=0.834,
    tokens_per_s=14231.4,
    padding=0.0421,
    best=ValidationScores(2.0, 1.5, 32.14),
    best_step=1000,
    seconds_left=12 * 60 + 34,
    logged=True,
)


def drawn(view: Dashboard, width: int) -> list[str]:
    """Return the lines of the view on a terminal of `width` columns."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get().splitlines()


def records(directory: Path, kind: str) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


# The live view


@pytest.mark.parametrize("width", [140, 100, 80, 60, 40])
def test_the_view_shows_every_figure_in_any_width(width: int) -> None:
    view = Dashboard("en to de", "runs/m30k")
    view.tell(replace(REPORT, step=1249, nats_per_token=4.214))
    view.tell(REPORT)
    view.scores = [10.0, 32.14]
    lines = drawn(view, width)
    assert {len(line) for line in lines} == {min(width, 100)}, "a frame without gaps"
    text = "\n".join(lines)
    for figure in (
        r"step 1,250/5,000 .* 25% ETA 0:12:3\d",
        r"loss +3\.214\b",
        r"smoothed +3\.\d\d\d\b",
        r"learning rate +4\.20e-03",
        r"gradient norm +0\.83",
        r"tokens/s +14,231",
        r"padding +4\.2%",
        r"best BLEU +32\.14",
        r"at step +1,000",
        r"epoch +5\.25",
        r"BLEU ▁█",
        "en to de",
        "runs/m30k",
    ):
        assert re.search(figure, text), (figure, text)


def test_the_smoothed_loss_is_a_mean_of_the_losses() -> None:
    view = Dashboard("", "")
    for _ in range(3):
        view.tell(REPORT)
    assert view.smoothed.value == pytest.approx(3.214), "unbiased from the first step on"
    view.tell(replace(REPORT, nats_per_token=5.214))
    assert 3.214 < view.smoothed.value < 4.214


def test_the_view_says_what_goes_on_between_steps_and_how_long_it_took() -> None:
    view = Dashboard("", "")
    assert "ETA -:--:--" in "".join(drawn(view, 80)), "no guess before the first step"
    view.tell(REPORT)
    view.status = "validating"
    assert "validating ..." in "".join(drawn(view, 80))
    view.tell(REPORT)
    assert "ETA 0:12:3" in "".join(drawn(view, 80))
    view.ended = view.started + 65
    assert "in 0:01:05" in "".join(drawn(view, 80))


def test_without_bleu_the_best_is_a_loss() -> None:
    view = Dashboard("", "")
    view.tell(replace(REPORT, best=ValidationScores(2.0, 1.5)))
    assert re.search(r"best loss +1\.500", "".join(drawn(view, 80)))


def test_a_sparkline_falls_with_the_values_and_keeps_to_its_width() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert sparkline([1.0] * 4, 8) == "▁▁▁▁"
    many = sparkline([float(i) for i in range(1000)], 8)
    assert many == "▁▂▃▄▅▆▇█"


def test_a_clock_shows_hours() -> None:
    assert [clock(s) for s in (-1, 59.6, 3 * 3600)] == ["0:00:00", "0:01:00", "3:00:00"]


def test_a_terminal_gets_the_view_with_all_that_the_lines_say(
    on_a_terminal: Callable[..., bytes], tmp_path: Path
) -> None:
    sets = ["tokenizer.vocab_size=320", "training.batch_tokens=200", "training.validate_every=2"]
    sets += ["model.size=tiny", "model.d_model=16", "decoding.max_length=10"]
    words = [word for setting in sets for word in ("--set", setting)]
    fixed = ["-m", "tfm.cli", "train", "--train", "builtin:60", "--valid", "builtin:4", *words]
    fixed += ["--config", str(Path(__file__).with_name("defaults.toml"))]
    shown = on_a_terminal(*fixed, "--steps", "3", "-o", tmp_path / "a").decode()
    assert "\x1b" in shown and "╭─" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"step 3/3 .*100% in 0:", plain)
    assert re.search(r"best BLEU +\d+\.\d\d +at step +[23] ", plain)
    assert "    translation  " in plain
    lines = on_a_terminal(*fixed, "--steps", "3", "-o", tmp_path / "b", NO_COLOR="1").decode()
    assert "╭" not in lines and "step 3/3  epoch" in lines


# metrics.jsonl


def test_padding_is_the_share_of_positions_without_a_token(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path)
    real = padded = 0
    stream = replace(run, progress=type(run.progress)()).stream()
    for batch in stream.take(10 * run.settings.training.accumulate):
        for side in (batch.source, batch.target_in):
            padded += side.size
            real += int(np.count_nonzero(side))  # PAD is 0
    first, last = records(tmp_path, "train")
    assert first["padding"] == pytest.approx(1 - real / padded, abs=1e-4)
    assert 0 < last["padding"] < 1 and last["step"] == 12


def test_epochs_count_how_often_all_pairs_were_seen(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path)
    batches = len(replace(run, progress=type(run.progress)()).stream().epoch_order)
    expected = 10 * run.settings.training.accumulate / batches
    assert records(tmp_path, "train")[0]["epoch"] == pytest.approx(expected, rel=0.1)


# Samples


def test_samples_are_the_same_sentences_at_each_validation_as_the_model_translates_them(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path, checkpoint_every=4)
    assert run.valid is not None
    found = records(tmp_path, "sample")
    assert [record["step"] for record in found] == [4, 4, 8, 8, 12, 12]
    sentences = [(record["source"], record["reference"]) for record in found]
    assert sentences[:2] * 3 == sentences and len(set(sentences)) == 2
    assert set(sentences) <= set(map(tuple, run.valid.pairs))
    # The state of step 12 is still there: these are its own translations.
    run.learner.model.eval()
    texts = translate_greedily(
        run.learner, run.valid.pairs, run.tokenizer, run.settings.decoding, lambda: None
    )
    own = {pair.source: text for pair, text in zip(run.valid.pairs, texts, strict=True)}
    assert [own[record["source"]] for record in found[-2:]] == [
        record["translation"] for record in found[-2:]
    ]


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (3, 3), (100, 4)])
def test_so_many_samples_are_shown_as_the_settings_say(
    train_small: TrainSmall, tmp_path: Path, count: int, shown: int
) -> None:
    train_small(tmp_path, steps=4, validate_samples=count)
    assert len(records(tmp_path, "sample")) == shown


def test_a_reporter_hears_of_samples_after_the_scores(
    small_order: Callable[..., Any], tmp_path: Path
) -> None:
    heard: list[str] = []

    class Ear(Silence):
        def on_pause(self, what: str) -> None:
            heard.append(what)

        def on_validation(self, step: int, scores: ValidationScores, *, best: bool) -> None:
            heard.append(f"scores {step}")

        def on_samples(self, step: int, samples: Any) -> None:
            heard.append(f"{len(samples)} samples {step}")
            assert all(isinstance(sample, Sample) for sample in samples)

    with prepare(small_order(tmp_path, steps=4), Silence()) as run:
        train(run, Ear())
    assert heard == ["validating", "scores 4", "2 samples 4", "choosing the final weights"]


# The time that is left


@pytest.mark.parametrize("every", [1, 4, 5, 30])
def test_what_is_due_is_counted_as_it_happens(every: int) -> None:
    for steps in range(1, 25):
        for step in range(steps + 2):
            happens = [s for s in range(step + 1, steps + 1) if s % every == 0 or s == steps]
            assert times_due(step, steps, every) == len(happens)


def test_validations_of_the_way_back_are_not_waited_for() -> None:
    phases = {"both_directions_steps": 5, "backward_steps": 9, "forward_steps": 3}
    settings = TrainingSettings(steps=20, validate_every=2, **phases)
    for step in range(21):
        measured = [*range(1, 6), *range(15, 21)]
        left = [s for s in measured if s > step and s % 2 == 0]
        assert validations_due(step, settings) == len(left)


def test_the_time_left_counts_steps_validations_checkpoints_and_the_choice() -> None:
    settings = TrainingSettings(steps=20, validate_every=6, checkpoint_every=10)
    pace = Pace()
    for seconds in (99.0, 1.0, 3.0):
        pace.add_step(seconds)
    assert pace.step == 2.0, "the first step of a sitting is slow and does not count"
    pace.validation, pace.checkpoint = 100.0, 1000.0
    assert pace.seconds_left(10, settings) == 10 * 2.0 + (3 + 1) * 100.0 + (1 + 1) * 1000.0


def test_the_number_of_samples_is_checked() -> None:
    with pytest.raises(Exception, match="validate_samples.*at least 0"):
        Settings.read(None, ["training.validate_samples=-1"])
