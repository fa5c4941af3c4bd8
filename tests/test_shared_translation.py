"""Several processes translate one file: the bytes of one, and nothing is lost with a rank."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tfm.cli.layouts import layout_of
from tfm.cli.main import main
from tfm.cli.records import Record, json_record
from tfm.cli.shared_job import _identity, _join, _translate_parts
from tfm.cli.translation_job import Job, Tally
from tfm.data.errors import DataError
from tfm.data.lines import TEMPORARY
from tfm.data.parts import Parts
from tfm.model import Translator
from tfm.model.training.distributed import Ranks

SENTENCES = ["A dog runs.", "", "The woman reads a book.", "I do not see the house."]
FLAGS = ["--device", "cpu", "--beam", "2", "--max-length", "10"]


def write(path: Path, number: int) -> Path:
    lines = [f"{SENTENCES[i % 4]} {i}" if i % 4 != 1 else "" for i in range(number)]
    lines[70] = "The cat sleeps. " * 40
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def launch(model: Path, source: Path, target: Path, *flags: str) -> "subprocess.Popen[str]":
    """Start two ranks of `tfm translate` in a session of their own."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    files = ["--input", str(source), "--output", str(target)]
    command = [*launcher, "-m", "tfm.cli", "translate", str(model), *files, *FLAGS, *flags]
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", *, seconds: float = 180) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def alone(model: Path, source: Path, target: Path) -> bytes:
    """Return what one process writes."""
    command = ["translate", str(model), "--input", str(source), "-o", str(target)]
    assert main([*command, *FLAGS]) == 0
    return target.read_bytes()


def test_two_processes_write_the_file_of_one(tiny_model: Path, tmp_path: Path) -> None:
    """Scores in JSON show each bit, and that the same sentences were translated side by side."""
    source = write(tmp_path / "in.en", 300)
    together = launch(tiny_model, source, tmp_path / "two.jsonl")
    wanted = alone(tiny_model, source, tmp_path / "one.jsonl")
    output = finish(together)
    assert together.returncode == 0, output
    assert (tmp_path / "two.jsonl").read_bytes() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.en", "one.jsonl", "two.jsonl"]
    for said in ("300 lines in", "longer than the model was trained on", "device: cpu"):
        assert output.count(said) == 1, said


@dataclass(frozen=True)
class All(Ranks):
    """Ranks of which this one gets all the parts."""

    numbers: Iterator[int] = field(default_factory=count)

    def take(self) -> int:
        return next(self.numbers)


def make(job: Job, source: Path, target: Path, *options: object) -> tuple[int, list[Path], Parts]:
    """Make the parts that are not there; return how many records that took, and the parts."""
    counted: list[int] = []

    class Counting(Job):
        def write(self, records: list[Record], file: io.StringIO, tally: Tally) -> None:  # type: ignore[override]
            counted.append(len(records))
            super().write(records, file, tally)

    counting = Counting(**vars(job))
    parts = Parts(target, _identity(job, [], options))
    paths = _translate_parts(counting, source, parts, All(), [])
    return sum(counted), paths, parts


def parse(raw: bytes, number: int) -> Record:
    return json_record(
        b'{"source": "%s"}' % raw, number, language="en", require_possible=lambda request: None
    )


def test_parts_that_are_there_are_not_made_again(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", 250)
    translator = Translator.load(tiny_model, device="cpu")
    translator.warn = str
    translator.decoding = replace(translator.decoding, beam=1, max_length=3)
    job = Job(translator, parse, layout_of(as_json=False, n_best=1, scores=False))
    assert make(job, source, tmp_path / "out")[0] == 250
    made, paths, parts = make(job, source, tmp_path / "out")
    assert made == 0 and [path.exists() for path in paths] == [True] * 3

    lines = source.read_text().splitlines()
    source.write_text("\n".join([*lines[:100], "A dog runs.", *lines[101:], ""]))
    assert make(job, source, tmp_path / "out")[0] == 128  # the second window
    assert make(job, source, tmp_path / "out", "scores")[0] == 250
    assert make(replace(job, n_best=1, alignment=True), source, tmp_path / "out")[0] == 250
    assert make(replace(job, strict=True), source, tmp_path / "out")[0] == 250
    translator.decoding = replace(translator.decoding, max_length=4)
    assert make(job, source, tmp_path / "out")[0] == 250

    tally = _join(parts, paths)  # of the first input, whose parts are there still
    assert tally.records == 250 and tally.truncated > 0 and tally.bad == 0
    assert (tmp_path / "out").read_text().count("\n") == 250
    assert not parts.directory.exists()


def test_a_part_that_is_gone_is_told_and_the_old_file_stays(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    parts = Parts(tmp_path / "out", {})
    there = parts.path(0, [b"a"])
    parts.write(there, {"records": 1, "truncated": 0, "bad": 0, "said": []}, "A\n")
    with pytest.raises(DataError, match="Repeat the command"):
        _join(parts, [there, parts.path(1, [b"b"])])
    assert (tmp_path / "out").read_text() == "old" and there.exists()


def test_each_kind_of_warning_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever process gave it: of two that met long lines one also left out required words."""
    parts = Parts(tmp_path / "out", {})
    paths = [parts.path(number, [b"a"]) for number in range(3)]
    for path, said in zip(paths, ([], ["200 pieces"], ["300 pieces", "left out"]), strict=True):
        parts.write(path, {"records": 1, "truncated": 0, "bad": 0, "said": said}, "A\n")
    _join(parts, paths)
    err = capsys.readouterr().err
    assert "300 pieces" in err and "left out" in err and "200 pieces" not in err


def test_only_parts_are_removed(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out", {})
    for number in (0, 1234567):
        parts.write(parts.path(number, [b"a"]), {}, "A\n")
    (parts.directory / TEMPORARY.replace("*", "1-2")).touch()  # what a kill has left
    (parts.directory / "000000-mine").write_text("mine")
    parts.remove()
    assert [path.name for path in parts.directory.iterdir()] == ["000000-mine"]
    (parts.directory / "000000-mine").unlink()
    parts.remove()
    assert not parts.directory.exists()


def test_lines_cannot_be_moved_between_parts_unseen(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out", {})
    paths = {parts.path(0, lines) for lines in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"ab"])}
    assert len(paths | {parts.path(1, [b"ab"])}) == 5


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--input", "in"], 2, "--output FILE"),
        (["--output", "out"], 2, "--input FILE"),
        (["--input", "-", "--output", "out"], 2, "--input FILE"),
        (["--input", "in", "--output", "/dev/null"], 1, "/dev/null: not a regular file"),
        (["--interactive"], 2, "--input FILE"),
    ],
)
def test_several_processes_need_two_files(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_model: Path,
    flags: list[str],
    code: int,
    message: str,
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert main(["translate", str(tiny_model), *flags]) == code
    assert message in capsys.readouterr().err


def ranks_of(process: "subprocess.Popen[str]") -> dict[int, int]:
    """Return the process number of each rank under the launcher."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "stat").exists():
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                environment = (entry / "environ").read_bytes().split(b"\0")
                ranks = [word for word in environment if word.startswith(b"RANK=")]
                found |= {int(word[5:]): int(entry.name) for word in ranks}
    return found


def wait_for_parts(process: "subprocess.Popen[str]", directory: Path, count: int) -> set[str]:
    while True:
        assert process.poll() is None, process.communicate()[0]
        names = {path.name for path in directory.glob("0*")} if directory.exists() else set()
        if len(names) >= count:
            return names
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, None])
def test_after_a_kill_the_same_command_goes_on(
    tiny_model: Path, tmp_path: Path, victim: int | None
) -> None:
    """Of one rank, which ends all soon; or of all processes at once."""
    source, target = write(tmp_path / "in.en", 2500), tmp_path / "two.jsonl"
    directory = tmp_path / "two.jsonl.parts"
    first = launch(tiny_model, source, target)
    made = wait_for_parts(first, directory, 2)
    if victim is None:
        for number in [*ranks_of(first).values(), first.pid]:
            os.kill(number, signal.SIGKILL)
        first.communicate()
    else:
        os.kill(ranks_of(first)[victim], signal.SIGKILL)
        output = finish(first, seconds=60)
        assert first.returncode == 1 and "Root Cause" in output
    assert not target.exists()

    marked = directory / sorted(made)[0]  # a part is taken as it stands, so a mark comes out
    header, text = marked.read_text().split("\n", 1)
    marked.write_text(header + "\n" + text.replace('{"source"', '{"mark": 1, "source"'))
    assert {path.name for path in directory.glob("0*")} >= made
    again = launch(tiny_model, source, target)
    output = finish(again)
    assert again.returncode == 0, output
    wanted = alone(tiny_model, source, tmp_path / "one.jsonl")
    found = target.read_bytes()
    assert found != wanted and found.replace(b'"mark": 1, ', b"") == wanted
    assert not directory.exists() and not list(tmp_path.glob(TEMPORARY))


def test_bad_records_are_counted_over_all_parts(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good, bad = json.dumps({"source": "A dog runs."}), "no JSON"
    source.write_text("\n".join([bad, *[good] * 70, bad]))
    layout = layout_of(as_json=True, n_best=1, scores=False)
    record = partial(json_record, language="en", require_possible=lambda request: None)
    job = Job(Translator.load(tiny_model, device="cpu"), record, layout)
    parts = Parts(target, {})
    paths = _translate_parts(job, source, parts, All(), [])
    tally = _join(parts, paths)
    assert (tally.records, tally.bad) == (72, 2)
    written = [json.loads(line) for line in target.read_text().splitlines()]
    assert [i for i, each in enumerate(written) if "error" in each] == [0, 71]
    assert "record 72" in written[71]["error"]
    with pytest.raises(DataError, match="could not be translated: 2"):
        tally.require_good(blank=False)


def test_what_is_wrong_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("A dog runs.\n")
    process = launch(tmp_path / "no-model", tmp_path / "in", tmp_path / "out")
    output = finish(process)
    assert process.returncode == 1
    errors = [line for line in output.splitlines() if "tfm: error:" in line]
    assert len(errors) == 1 and "no such directory" in errors[0]
