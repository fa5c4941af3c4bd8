"""`tfm train --dry-run`: what it says is what training does, and nothing is written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.cli.main import main
from tfm.data.counts import counted
from tfm.model.training.loop import train
from tfm.model.training.material import Order
from tfm.model.training.plan import parameters_by_part, plan
from tfm.model.training.recipe import prepare
from tfm.model.training.rehearsal import measure_memory, saved_bytes
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run

SmallOrder = Callable[..., Order]
TrainSmall = Callable[..., Run]
DEFAULTS = str(Path(__file__).with_name("defaults.toml"))  # without it, settings are chosen

EPOCHS = r"each: ([\d.]+) epochs"


class Notes(Silence):
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_note(self, text: str) -> None:
        self.lines.append(text)

    def about(self, name: str) -> str:
        """Return the one line that begins with `name`."""
        [line] = [line for line in self.lines if line.startswith(f"{name}: ")]
        return line


def all_files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return every file below `folder` with its content and the time of its last change."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def planned(order: Order) -> Notes:
    notes = Notes()
    plan(order, notes)
    return notes


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return float(found[1].replace(",", ""))


def test_the_command_prints_the_plan_to_stdout_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, lines in (("en", ["a dog", "", "x " * 300]), ("de", ["ein Hund", "y", "z"])):
        Path(f"text.{language}").write_text("".join(line + "\n" for line in lines * 10))
    sets = ["tokenizer.vocab_size=320", "model.size=tiny", "training.validate_sentences=3"]
    arguments = [
        "train",
        "--config",
        DEFAULTS,
        *(word for item in sets for word in ("--set", item)),
        "--dry-run",
    ]
    before = all_files(tmp_path)
    code = main([*arguments, "--train", "text", "--valid", "text", "-o", "deep/run"])
    captured = capsys.readouterr()
    assert code == 0 and all_files(tmp_path) == before and not Path("deep").exists()
    assert "training: 10 pairs of text; left out: 10 empty, 10 too long\n" in captured.out
    for expected in (
        r"an epoch: 1 batch, 0\.0% padding\n",
        r"model: [\d,]+ parameters, on \w+ in (fp32|bf16)\n",
        r"encoder.* cross attention: ",
        r"parameters: ",
        r"steps: 10,000 of one batch each: 10000.0 epochs\n",
        r"memory: about [\d.]+ MiB: ",
        r"time: about \d+:\d\d:\d\d: 10,000 steps of \d+ ms, 20 validations of about [\d.]+ s and "
        r"one at the end; [\d,]+ tokens/s in 10 trial steps\n",
    ):
        assert re.search(expected, captured.out), (expected, captured.out)


def test_of_one_thing_there_is_no_plural(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in (("en", "The dog sees a cat."), ("de", "Der Hund sieht eine Katze.")):
        Path(f"text.{language}").write_text(text + "\n")
    ones = ["training.steps", "training.warmup_steps", "training.validate_every", "model.heads"]
    sets = [word for name in ones for word in ("--set", f"{name}=1")]
    assert (
        main(["train", *sets, "--train", "text", "--valid", "text", "-o", "run", "--dry-run"]) == 0
    )
    out = capsys.readouterr().out
    for said in (
        "1 pair of",
        "1 head,",
        "after 1 step,",
        "1 batch,",
        ": 1 step of",
        "1 validation",
    ):
        assert said in out
    assert not re.findall(r"(?<![\d.,+])1 (?:[a-z]+ )?[a-z]{2,}s\b", out)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "line", "0 lines"), (1, "batch", "1 batch"), (2, "batch", "2 batches")],
)
def test_numbers_of_things(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_a_run_that_is_there_is_not_touched_and_what_is_left_is_planned(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path / "run")
    before = all_files(tmp_path)
    notes = planned(small_order(tmp_path / "run", steps=30))
    assert all_files(tmp_path) == before
    assert "30 of 2 batches each, 12 of them done" in notes.about("steps")
    assert ": 18 steps of" in notes.about("time")


def test_what_training_would_be_refused_with_is_found(
    small_order: SmallOrder, train_small: TrainSmall, tmp_path: Path
) -> None:
    train_small(tmp_path / "run")
    with pytest.raises(Exception, match=r"training.seed must not change"):
        planned(small_order(tmp_path / "run", seed=2))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("two years of work")
    with pytest.raises(Exception, match="is no training run"):
        planned(small_order(tmp_path / "other"))


@pytest.mark.parametrize("separate", [False, True])
def test_parts_memory_and_steps_are_those_of_the_run(
    small_order: SmallOrder, tmp_path: Path, separate: bool
) -> None:
    """Bytes are compared with those of the tensors that a real run has made."""
    options = {"separate": separate, "ema_decay": 0.9, "valid": False}
    notes = planned(small_order(tmp_path / "run", **options))
    with prepare(small_order(tmp_path / "run", **options), Silence()) as run:
        train(run, Silence())
    learner = run.learner
    parts = dict(parameters_by_part(learner.model))
    assert sum(parts.values()) == learner.model.num_parameters
    assert len(parts) == (4 if separate else 3) and min(parts.values()) > 0
    for name, count in parts.items():
        assert f"{count:,} {name}" in notes.about("parameters")

    states = learner.optimizer.state.values()
    optimizer = sum(tensor.nbytes for state in states for tensor in state.values())
    assert learner.average is not None
    line = notes.about("memory")
    for name, count in {
        "weights": sum(p.nbytes for p in learner.model.parameters()),
        "gradients": sum(p.nbytes for p in learner.model.parameters()),
        "optimizer": optimizer,
        "moving average": sum(mean.nbytes for mean in learner.average.weights.values()),
    }.items():
        assert f"{count / 2**20:,.1f} MiB {name}" in line, name
    epochs = number(notes.about("steps"), EPOCHS)
    assert epochs == pytest.approx(run.stream().epochs, abs=0.5)


def test_what_is_saved_for_the_backward_pass_is_counted(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    with prepare(small_order(tmp_path / "run", valid=False), Silence()) as run:
        w = run.learner.model.target_embedding.weight
        a = torch.ones(1000, requires_grad=True)

        def forward() -> torch.Tensor:
            b = a.exp()  # exp keeps its result, and so do the square and the product: counted once
            return (b * b).sum() + (b.view(10, 100) ** 2).sum() + (w * w).sum()

        assert saved_bytes(run.learner, forward) == 4 * 1000
        stream = run.stream()
        whole = stream.take(1)[0]
        half = whole.rows(slice(0, len(whole.indices) // 2))
        sizes = [measure_memory(run.learner, batch).saved for batch in (half, whole)]
        assert 1.3 < sizes[1] / sizes[0] < 2.7


def test_the_two_phases_are_counted_by_their_own_epochs(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    """An epoch of both directions has twice the batches, about."""
    one, two = (
        number(
            planned(small_order(tmp_path / "run", valid=False, both_directions_steps=steps)).about(
                "steps"
            ),
            EPOCHS,
        )
        for steps in (0, 11)
    )
    assert 0.45 < two / one < 0.65


def test_pairs_that_training_will_make_are_counted(small_order: SmallOrder, tmp_path: Path) -> None:
    """An epoch of the second phase has three times the pairs; steps are few in the first."""

    def epochs(**options: Any) -> float:
        order = small_order(tmp_path / "run", valid=False, steps=100, **options)
        return number(planned(order).about("steps"), EPOCHS)

    assert 2.5 < epochs() / epochs(backward_steps=1, forward_steps=1) < 3.2


@pytest.mark.parametrize(("rank", "speaks"), [("0", True), ("1", False)])
def test_of_several_processes_the_first_one_plans(
    rank: str,
    speaks: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    sets = ["tokenizer.vocab_size=400", "model.size=tiny", "training.batch_tokens=400"]
    arguments = [
        "train",
        "--config",
        DEFAULTS,
        *(word for item in sets for word in ("--set", item)),
        "--dry-run",
    ]
    assert main([*arguments, "--train", "builtin:50", "-o", str(tmp_path / "run")]) == 0
    assert ("of 2 batches each" in capsys.readouterr().out) == speaks
