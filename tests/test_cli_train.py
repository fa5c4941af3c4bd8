"""`tfm train`, from the command line to the model directory, and what it refuses."""

import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.cli.main import main
from tfm.model.checkpoint import load_model
from tfm.model.settings import Settings
from tfm.model.tensor_file import read_tensors
from tfm.model.training.directory import RunDirectory
from tfm.model.training.material import Order

SIZE = [
    "tokenizer.vocab_size=320",
    "model.d_model=16",
    "model.d_ff=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.batch_tokens=200",
    "training.warmup_steps=5",
    "training.validate_every=10",
    "training.validate_sentences=3",
    "training.checkpoint_every=15",
    "training.average_last=2",
    "decoding.max_length=10",
]
DEFAULTS = str(Path(__file__).with_name("defaults.toml"))  # without it, settings are chosen
FILES = ["config.toml", "learning_curve.svg", "metrics.jsonl", "model.safetensors"]


def command(output: Path, *more: str | Path, train: str | Path = "builtin:200") -> list[str]:
    sets = [word for setting in SIZE for word in ("--set", setting)]
    fixed = ["--steps", "20", "--precision", "fp32"]  # `auto` depends on the machine's CPU
    arguments = ["train", "--config", DEFAULTS, *sets, *fixed, "--train", train]
    arguments += ["-o", output, *more]
    return [str(argument) for argument in arguments]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Write a corpus of two files."""
    prefix = tmp_path / "text"
    Path(f"{prefix}.en").write_text("a dog runs\nthe cat sleeps\n\nI see a house\n" * 12)
    Path(f"{prefix}.de").write_text(
        "ein Hund rennt\ndie Katze schläft\nx\nich sehe ein Haus\n" * 12
    )
    return prefix


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once, with all that the command writes; tests that change it copy it."""
    output = tmp_path_factory.mktemp("finished") / "deep" / "run"
    assert main(command(output, "--valid", "builtin:10")) == 0
    return output


def error_of(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run a command that must fail by the user's fault; return its one line."""
    assert main(arguments) == 1
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("tfm: error: ")]
    assert captured.out == "" and len(errors) == 1
    assert captured.err.splitlines()[-1] == errors[0], "nothing comes after the error"
    return errors[0]


# What a run leaves


def test_a_run_leaves_a_whole_model_directory(finished: Path) -> None:
    names = sorted(path.name for path in finished.iterdir())
    assert names == sorted([*FILES, "checkpoints", "provenance.json", "tokenizer.model"])
    checkpoints = sorted(path.name for path in (finished / "checkpoints").iterdir())
    assert checkpoints == [
        "best.safetensors",
        "last.safetensors",
        "lock",
        "step-00000015.safetensors",
        "step-00000020.safetensors",
    ]
    loaded = load_model(finished)
    assert loaded.settings == Settings.read(None, [*SIZE, "training.steps=20"])
    assert not any(path.name.startswith(".") for path in finished.rglob("*"))


def test_provenance_tells_versions_data_and_seed_but_no_places(finished: Path) -> None:
    text = (finished / "provenance.json").read_text("utf-8")
    record = json.loads(text)
    assert record["seed"] == 1
    assert record["train"]["corpus"] == "builtin:200" and record["train"]["pairs"] == 200
    assert re.fullmatch("[0-9a-f]{64}", record["train"]["fingerprint"])
    assert record["valid"]["fingerprint"] != record["train"]["fingerprint"]
    [sitting] = record["sittings"]
    assert sitting["libraries"]["torch"] == torch.__version__
    assert sitting["from_step"] == 0 and sitting["precision"] == "fp32"
    for secret in (str(finished), os.uname().nodename, os.environ.get("USER") or "no user name"):
        assert secret not in text


def test_it_says_what_it_does_on_stderr_and_nothing_on_stdout(
    prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path / "run", "--valid", prefix, train=prefix)) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    for expected in (
        r"tokenizer: .*too small for .*320.* 2\d\d\b",
        r"training: 36 pairs of /.*/text; left out: 12 empty",
        r"validation: 36 pairs",
        r"vocabulary: \d+ pieces, joint",
        r"an epoch: \d+ batches, \d+\.\d% padding",
        r"model: [\d,]+ parameters, on cpu in fp32",
        r"encoder.* cross attention: ",
        r"step 20/20  epoch \d+\.\d+  loss \d+\.\d+  learning rate \S+  gradient norm \d+\.\d+  "
        r"[\d,]+ tokens/s  padding \d+\.\d%  ETA \d:\d\d:\d\d\n",
        r"step 10: validation loss \d+\.\d+ nats per token, BLEU \d+\.\d+ \(greedy\)",
        r"    source       (a dog runs|the cat sleeps)\n    reference    .+\n    translation  .*\n",
        r"finished at step 20: .*/run holds the ",
    ):
        assert re.search(expected, captured.err), expected


def test_without_validation_it_says_so_and_averages(
    prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    assert main(command(output, train=prefix)) == 0
    err = capsys.readouterr().err
    assert err.count("no --valid corpus") == 1
    assert "holds the mean of the last 2 checkpoints" in err
    assert load_model(output).model is not None
    kinds = [json.loads(line)["kind"] for line in (output / "metrics.jsonl").open()]
    assert kinds == ["train", "train", "final"]


def test_a_given_tokenizer_is_used_and_separate_vocabularies_work(
    prefix: Path, tmp_path: Path, finished: Path
) -> None:
    given = finished / "tokenizer.model"
    assert main(command(tmp_path / "a", "--tokenizer", given, train=prefix)) == 0
    assert (tmp_path / "a" / "tokenizer.model").read_bytes() == given.read_bytes()
    separate = ("--set", "tokenizer.separate=true", "--set", "tokenizer.vocab_size=280")
    assert main(command(tmp_path / "b", *separate, train=prefix)) == 0
    loaded = load_model(tmp_path / "b")
    assert not loaded.model.joint and not (tmp_path / "b" / "tokenizer.model").exists()


def test_dump_config_prints_the_settings_and_needs_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--dump-config", "--steps", "7", "--set", "model.size=tiny"]) == 0
    tables = tomllib.loads(capsys.readouterr().out)
    assert tables["training"]["steps"] == 7 and tables["model"]["d_model"] == 128


@pytest.mark.parametrize("missing", ["--train", "-o"])
def test_corpus_and_output_are_required(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--train": "builtin:200", "-o": str(tmp_path / "run")}
    del given[missing]
    assert main(["train", *(word for item in given.items() for word in item)]) == 2
    err = capsys.readouterr().err
    assert missing in err and not any(option in err for option in given), "only what is missing"
    assert not (tmp_path / "run").exists()


# The same command again


def test_a_finished_run_says_so_and_how_to_go_on(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert main(command(finished, "--valid", "builtin:10")) == 0
    assert re.search(r"finished, 20 steps; --steps \+N goes on", capsys.readouterr().err)
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_what_may_change_changes_and_is_said(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "moved"
    shutil.copytree(finished, output)
    more = ("--valid", "builtin:10", "--steps", "30", "--attention", "math")
    assert main(command(output, *more, "--set", "training.clip=2.0")) == 0
    err = capsys.readouterr().err
    assert "changed from here on: training.steps 20 -> 30\n" in err
    assert "changed from here on: training.clip 1.0 -> 2.0\n" in err
    assert "continues after step 20 of 30; " in err
    assert load_model(output).settings.training.steps == 30
    sittings = json.loads((output / "provenance.json").read_text())["sittings"]
    assert [sitting["from_step"] for sitting in sittings] == [0, 20]


def test_plus_steps_add_to_those_done_and_to_none_in_a_new_directory(
    finished: Path, prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "moved"
    shutil.copytree(finished, output)
    assert main(command(output, "--valid", "builtin:10", "--steps", "+5")) == 0
    assert "continues after step 20 of 25; " in capsys.readouterr().err
    assert main(command(tmp_path / "new", "--steps", "+3", train=prefix)) == 0
    assert "finished at step 3: " in capsys.readouterr().err
    phases = ("--set", "training.both_directions_steps=4", "--set", "tokenizer.separate=false")
    assert main(command(tmp_path / "phases", "--steps", "6", *phases, train=prefix)) == 0
    assert main(command(tmp_path / "phases", "--steps", "+2", *phases, train=prefix)) == 0
    assert "continues after step 6 of 8; " in capsys.readouterr().err, "fewer than in its phases"
    assert main(["train", "--dump-config", "--steps", "+7"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["training"]["steps"] == 7


@pytest.mark.parametrize("steps", ["many", "+", "+0", "-3"])
def test_a_number_of_steps_that_is_none_is_refused(
    steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path / "run", f"--steps={steps}")) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--steps" in line and not (tmp_path / "run").exists()


def test_another_run_is_refused_with_what_differs(
    finished: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    valid = ("--valid", "builtin:10")
    assert main(command(finished, *valid, "--seed", "2", "--set", "model.d_model=32")) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "training.seed: 1 -> 2",
        "model.d_model: 16 -> 32",
        f"tfm: error: {finished}: holds a run in which training.seed, model.d_model must not "
        "change; repeat its command or choose another -o",
    ]
    line = error_of(capsys, command(finished, *valid, train="builtin:150"))
    assert "in which training corpus must not change" in line
    line = error_of(capsys, command(finished))
    assert "in which validation corpus must not change" in line
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_damaged_checkpoint_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "damaged"
    shutil.copytree(finished, output)
    last = output / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    line = error_of(capsys, command(output, "--valid", "builtin:10"))
    assert str(last) in line and "damaged" in line


@pytest.mark.parametrize("damage", ["truncated", "other settings"])
def test_what_forbids_to_go_on_is_found_before_any_corpus_is_read(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """Corpora may take minutes to read. Here they do not exist, which would be another error."""
    output = tmp_path / "run"
    shutil.copytree(finished, output)
    last = output / "checkpoints" / "last.safetensors"
    more = ["--valid", tmp_path / "nowhere"]
    if damage == "truncated":
        last.write_bytes(last.read_bytes()[:-100])
    else:
        more += ["--seed", "2", "--set", "tokenizer.kind=bpe"]
    line = error_of(capsys, command(output, *more, train=tmp_path / "nowhere"))
    if damage == "truncated":
        assert str(last) in line and "damaged" in line
    else:
        assert "tokenizer.kind, training.seed must not change" in line


def test_another_number_of_threads_than_in_the_last_sitting_is_said(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    shutil.copytree(finished, output)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert main(command(output, "--valid", "builtin:10", "--steps", "21")) == 0
    finally:
        torch.set_num_threads(threads)
    note = f"computed otherwise from here on: threads {threads} -> {threads + 1}"
    assert note in capsys.readouterr().err


def test_another_precision_than_in_the_last_sitting_is_said_once(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    shutil.copytree(finished, output)
    more = ("--valid", "builtin:10", "--attention", "math")
    assert main(command(output, *more, "--steps", "21", "--precision", "bf16")) == 0
    notes = re.findall("computed otherwise from here on: .*", capsys.readouterr().err)
    assert len(notes) == 1
    assert "precision fp32 -> bf16" in notes[0] and "attention" in notes[0]
    assert "device" not in notes[0] and "threads" not in notes[0]
    assert main(command(output, *more, "--steps", "22", "--precision", "bf16")) == 0
    assert "computed otherwise" not in capsys.readouterr().err


# Two commands at once


def test_a_second_command_cannot_train_in_the_same_directory(
    finished: Path, prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new"
    shutil.copytree(finished, copy)
    leftover = new / "checkpoints" / ".tfm-1-0.tmp"
    for output in (copy, new):
        with RunDirectory(output).locked():
            leftover.parent.mkdir(parents=True, exist_ok=True)
            leftover.write_text("what the other command is just writing")
            before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
            line = error_of(capsys, command(output, "--valid", "builtin:10"))
            assert f"{output}: another `tfm train` is at work there; wait" in line
            after = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
            assert before == after
    assert main(command(new, train=prefix)) == 0, "the lock is gone, and one that a kill left too"


def test_a_run_that_began_and_ended_meanwhile_is_not_begun_again(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output, answers = tmp_path / "run", [False, True]
    shutil.copytree(finished, output)
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    monkeypatch.setattr("tfm.model.training.recipe.holds_run", lambda _: answers.pop(0))
    assert "meanwhile another" in error_of(capsys, command(output))
    assert before == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}


# What is refused, with nothing written


def test_foreign_directories_and_files_are_left_alone(
    prefix: Path, tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("two years of work")
    line = error_of(capsys, command(foreign, train=prefix))
    assert f"{foreign}: exists and is no training run" in line
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
    line = error_of(capsys, command(foreign / "thesis.txt", train=prefix))
    assert "thesis.txt: a file, not a directory" in line
    line = error_of(capsys, command(foreign / "thesis.txt" / "run", train=prefix))
    assert "thesis.txt: a file, not a directory" in line
    model = tmp_path / "model"
    shutil.copytree(finished, model, ignore=shutil.ignore_patterns("checkpoints"))
    line = error_of(capsys, command(model, "--valid", "builtin:10"))
    assert "no checkpoints/last.safetensors" in line


def test_a_place_without_the_right_to_write_is_found_before_any_work(
    prefix: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The right itself is simulated: tests may run as root, who may write anywhere."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(path))
    line = error_of(capsys, command(tmp_path / "new" / "run", train=prefix))
    assert f"{tmp_path}: no right to write there; choose another -o" in line
    assert tmp_path in asked and not (tmp_path / "new").exists()


def test_a_place_where_nothing_can_be_made_is_found_before_any_work(
    prefix: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as /proc, where root has all rights and can make nothing."""
    make, asked = Path.mkdir, []

    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        asked.append(path)
        if path.name == "run":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Order, "pairs", lambda *arguments: pytest.fail("a corpus was read"))
    run = tmp_path / "new" / "run"
    for extra in ((), ("--dry-run",)):
        line = error_of(capsys, command(run, *extra, train=prefix))
        assert f"{run}: cannot be made (No such file or directory); choose another -o" in line
    assert run in asked and not (tmp_path / "new").exists()


def test_an_empty_directory_will_do(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert main(command(tmp_path / "empty", "--steps", "1", train=prefix)) == 0


def broken_corpora(prefix: Path) -> Iterator[tuple[str, str]]:
    """Yield corpus strings with what the error must say."""
    yield str(prefix.parent / "nowhere"), "nowhere"
    uneven = prefix.parent / "uneven"
    Path(f"{uneven}.en").write_text("one\ntwo\n")
    Path(f"{uneven}.de").write_text("eins\n")
    yield str(uneven), "uneven.en has 2 lines but .*uneven.de has 1"
    latin = prefix.parent / "latin"
    Path(f"{latin}.en").write_text("one\ntwo\n")
    Path(f"{latin}.de").write_bytes(b"eins\nzw\xe4i\n")
    yield str(latin), "latin.de.*2"
    blank = prefix.parent / "blank"
    for language in ("en", "de"):
        Path(f"{blank}.{language}").write_text("\n\n")
    yield str(blank), "ROLE corpus .*blank: "
    empty = prefix.parent / "empty"
    for language in ("en", "de"):
        Path(f"{empty}.{language}").touch()
    yield str(empty), "ROLE corpus .*empty: is empty"


@pytest.mark.parametrize("role", ["train", "valid"])
def test_broken_corpora_fail_before_anything_is_written(
    role: str, prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, roles = tmp_path / "run", {"train": "training", "valid": "validation"}
    for corpus, expected in broken_corpora(prefix):
        good_and_bad = (prefix, corpus) if role == "valid" else (corpus, prefix)
        line = error_of(capsys, command(output, "--valid", good_and_bad[1], train=good_and_bad[0]))
        assert re.search(expected.replace("ROLE", roles[role]), line), line
        assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--precision", "fp16"), "fp16.*GPU"),
        (("--attention", "flash", "--set", "model.attention_dropout=0.1"), "flash.*dropout"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
        (("--tokenizer", "nowhere.model"), "nowhere.model"),
        (("--set", "training.validate_sentences=0", "--valid", "builtin:10"), "metric"),
    ],
)
def test_bad_settings_fail_before_anything_is_written(
    arguments: tuple[str, ...],
    expected: str,
    prefix: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = error_of(capsys, command(tmp_path / "run", *arguments, train=prefix))
    assert re.search(expected, line), line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "training.step=3"), "--set training.step=3: unknown key `step`; did you mean"),
        (("--set", "trainings.steps=3"), "--set trainings.steps=3: unknown section"),
        (("--set", "model.size=huge"), "--set model.size=huge: `size` must be one of"),
        (("--set", "decoding.beam=0"), "--set decoding.beam=0: `beam` must be at least 1"),
        (("--set", "beam"), "--set beam: must look like section.key=value"),
        (("--steps", "0"), "--steps 0: `steps` must be at least 1"),
        (("--steps", "abc"), "--steps abc: must be a whole number, or +N for N more; see tfm"),
        (("--seed", "x"), "--seed x: must be a whole number; see tfm train --help"),
        (("--time", "0"), "--time 0: must look like 90s, 30m or 1h30m, and be at least 1s; see"),
        (("--time=-5s",), "--time -5s: must look like 90s, 30m or 1h30m"),
        (("--device", "quantum"), "--device quantum: must be auto, cpu, cuda or cuda:N; see tfm"),
        (("--precision", "int3"), "--precision int3: must be one of auto, fp32, bf16, fp16; see"),
    ],
)
def test_a_value_that_no_option_can_have_is_wrong_usage(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever finds it, Typer or the settings, it is named as it was given, and the code is 2."""
    assert main(["train", "--train", "builtin:9", "-o", str(tmp_path / "run"), *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tfm: error: {said}"), line
    assert not (tmp_path / "run").exists()


# Signals, in a process of its own


def start(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tfm.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def kill_after(process: "subprocess.Popen[str]", line: str, number: int) -> tuple[int, str]:
    """Send a signal once a line of stderr starts with `line`; return exit code and the rest."""
    assert process.stderr is not None
    while not (found := process.stderr.readline()).startswith(line):
        assert found, "the run ended before the line came"
    process.send_signal(number)
    rest = process.stderr.read()
    return process.wait(timeout=60), rest


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_and_terminated_runs_end_as_one_that_was_left_alone(
    prefix: Path, tmp_path: Path, environment: dict[str, str], precision: str
) -> None:
    more = ("--valid", prefix, "--steps", "150", "--set", "training.validate_every=25")
    more += ("--precision", precision)
    whole, stopped = (command(tmp_path / n, *more, train=prefix) for n in ("whole", "stopped"))
    environment |= {"OMP_NUM_THREADS": "2"}  # as many as sums are split among, in all sittings
    assert start(whole, environment).wait() == 0
    code, _ = kill_after(start(stopped, environment), "step 50: validation", signal.SIGKILL)
    assert code == -signal.SIGKILL
    leftover = tmp_path / "stopped" / "checkpoints" / ".tfm-1-0.tmp"
    leftover.write_bytes(b"what a kill in the midst of writing leaves")
    code, rest = kill_after(start(stopped, environment), "step 75: validation", signal.SIGTERM)
    assert code == 143 and re.search(r"stopped by SIGTERM after step \d+; .*repeat", rest)
    assert start(stopped, environment).wait() == 0
    for name in ("model.safetensors", "checkpoints/last.safetensors"):
        one, other = (read_tensors(tmp_path / run / name) for run in ("whole", "stopped"))
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors), name
    assert not leftover.exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_ctrl_c_and_a_closed_terminal_save_and_end(
    prefix: Path, tmp_path: Path, environment: dict[str, str], name: str
) -> None:
    more = ("--valid", prefix, "--steps", "100000", "--set", "training.validate_every=25")
    process = start(command(tmp_path / "run", *more, train=prefix), environment)
    number = signal.Signals[name]
    code, rest = kill_after(process, "step 25: validation", number)
    assert code == 128 + number and "Traceback" not in rest
    assert re.search(rf"stopped by {name} after step \d+; .*repeat", rest)
    assert rest.endswith("tfm: error: interrupted\n") == (name == "SIGINT")
    step = re.search(r"after step (\d+)", rest)
    header = read_tensors(tmp_path / "run" / "checkpoints" / "last.safetensors").header
    assert step and header["progress"]["step"] == int(step[1])


def test_a_terminal_that_is_closed_costs_no_step(prefix: Path, tmp_path: Path) -> None:
    """Nothing can be printed then: that must neither keep the state from being saved nor show."""
    more = ("--valid", prefix, "--steps", "100000", "--set", "training.checkpoint_every=100000")
    arguments = [sys.executable, "-m", "tfm.cli", *command(tmp_path / "run", *more, train=prefix)]
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, arguments)
    seen = b""
    while b"step 20: validation" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGHUP
    header = read_tensors(tmp_path / "run" / "checkpoints" / "last.safetensors").header
    assert header["progress"]["step"] >= 20
