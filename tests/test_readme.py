"""Every command of the README runs as written, and every path it names exists."""

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from tfm.data.corpus import read_pairs
from tfm.model.settings import Settings, presets

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")

COUNTS = {"train": 2000, "valid": 50, "test": 50}


def section(title: str) -> str:
    _, _, rest = README.partition(f"\n## {title}\n")
    assert rest, f"the README has no section {title!r}"
    return rest.partition("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)
    assert found, f"section {title!r} has no {language} block"
    return found


def run(*command: str, cwd: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def users_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a user: sentence pairs under the names that the README takes."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "data").mkdir()
    for split, count in COUNTS.items():
        pairs = read_pairs("builtin", source="en", target="de", split=split)
        source, target = zip(*islice(pairs, count), strict=True)
        for language, lines in (("en", source), ("de", target)):
            text = "".join(line + "\n" for line in lines)
            (folder / "data" / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def users_environment(users_folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Put a `tfm` on PATH that is the one under test, installed or not."""
    script = users_folder / "bin" / "tfm"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tfm.cli "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(script.parent), environment["PATH"]])
    return environment | {"PATH": path}


def test_the_tour_runs_as_written(users_folder: Path, users_environment: dict[str, str]) -> None:
    for toml in blocks("Five commands, on your own text", "toml"):
        name = toml.splitlines()[0].removeprefix("# ")
        (users_folder / name).write_text(toml, encoding="utf-8")
    for commands in blocks("Five commands, on your own text", "sh"):
        shell = ("bash", "-euo", "pipefail", "-c", commands)
        printed = run(*shell, cwd=users_folder, environment=users_environment)
        assert ("time: about" if "--dry-run" in commands else "BLEU") in printed
    translations = (users_folder / "test.de").read_bytes()
    assert translations.count(b"\n") == COUNTS["test"]
    assert any((users_folder / "report").iterdir())
    for table_row in re.findall(r"^\| (`.*?) \|", section("A model directory"), re.MULTILINE):
        for name in re.findall(r"`(.+?)`", table_row):
            assert (users_folder / "runs/mine" / name).exists(), name

    for code in blocks("From Python", "python"):
        printed = run(sys.executable, "-c", code, cwd=users_folder, environment=users_environment)
        assert printed.startswith("['")


def test_training_without_settings_runs_as_written_in_less_time(
    users_folder: Path, users_environment: dict[str, str]
) -> None:
    [command] = blocks("Without settings", "sh")
    assert " --time 30m " in command
    small = " --set model.d_model=32 --set model.d_ff=64 --set training.validate_sentences=3"
    shorter = command.replace("30m", "5s").rstrip() + small
    run("bash", "-c", shorter, cwd=users_folder, environment=users_environment)
    assert (users_folder / "runs/half-an-hour/model.safetensors").is_file()


MEASURED = {  # what the table of each `tfm bench` has
    "train": "share of peak",
    "translate": "one at a time, ms",
    "attention": "of bound",
}


def test_the_speed_of_this_machine_is_measured_as_written(
    users_folder: Path, users_environment: dict[str, str]
) -> None:
    for commands in blocks("How fast it is here", "sh"):
        printed = run("bash", "-c", commands, cwd=users_folder, environment=users_environment)
        (verb,) = (verb for verb in MEASURED if f"bench {verb}" in commands)
        assert MEASURED[verb] in printed


def test_the_samples_look_as_what_the_commands_print(
    users_folder: Path, users_environment: dict[str, str], tiny_model_directory: Path
) -> None:
    """A small model stands in for the demo's, so that numbers and translations are others."""
    shutil.copytree(tiny_model_directory, users_folder / "runs/demo")
    (block,) = blocks("Start", "console")
    samples = [sample.partition("\n") for sample in block.removeprefix("$ ").split("\n$ ")]
    assert [command.partition(" runs/demo")[0][-4:] for command, _, _ in samples] == [
        "late",
        "eval",
    ]
    for command, _, sample in samples:
        printed = run("bash", "-c", command, cwd=users_folder, environment=users_environment)
        assert len(printed.splitlines()) == len(sample.splitlines())
        if "tfm eval" in command:
            assert re.sub(r"[\d.]+", "0", printed) == re.sub(r"[\d.]+", "0", sample)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_learns_the_built_in_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "make demo\n" in blocks("Start", "sh")
    # As in a shell: a make inside `make test-slow` would say more, and keep to one thread.
    ours = {"OMP_NUM_THREADS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    started = time.monotonic()
    printed = run("make", "demo", f"DEMO={tmp_path / 'demo'}", cwd=ROOT, environment=environment)
    last = printed.splitlines()[-1]
    with capsys.disabled():  # for whoever reads the log: the time is no part of what is tested
        print(f"\nmake demo: {time.monotonic() - started:.0f} s, {last}")
    assert re.fullmatch(r"BLEU = \d+\.\d", last)
    assert float(last.removeprefix("BLEU = ")) >= 90
    assert (tmp_path / "demo/model.safetensors").exists()
    assert any((tmp_path / "demo/attention").iterdir())


def test_the_tree_names_what_exists() -> None:
    folders = [ROOT]  # one for each step of indentation
    for line in blocks("The tree", "")[0].splitlines():
        depth = (len(line) - len(line.lstrip())) // 4
        cells = re.split(r"  +", line.strip())  # names, and then what they are for
        names = [cell for cell in cells if re.fullmatch(r"[\w.-]+(/|\.py)", cell)]
        for name in names:
            assert (folders[depth] / name).exists(), folders[depth] / name
        folders[depth + 1 :] = [folders[depth] / name for name in names[:1]]


def test_links_point_to_what_exists() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_table_of_presets_is_complete() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", section("Presets"), re.MULTILINE)
    assert sorted(rows) == presets()


@pytest.mark.parametrize("preset", presets())
def test_the_table_of_presets_agrees_with_the_files(preset: str) -> None:
    settings = Settings.read(preset)
    model, data = settings.model, settings.data
    (row,) = re.findall(rf"^\| `{preset}` \|(.*)$", section("Presets"), re.MULTILINE)
    sizes, steps, corpus, *_ = (cell.strip() for cell in row.split("|"))
    layers = f"{model.encoder_layers}+{model.decoder_layers} layers"
    assert sizes == f"d {model.d_model}, ff {model.d_ff}, {model.heads} heads, {layers}"
    assert steps == f"{settings.training.steps:,}"
    assert corpus.endswith(f", {data.source}-{data.target}")
