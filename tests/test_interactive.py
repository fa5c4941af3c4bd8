"""`tfm translate --interactive`: a line in, its translation while it grows; and `tail -f`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.interactive import last_cells
from tfm.cli.main import main
from tfm.model import Translator
from tfm.model.settings import DecodingSettings

ReadUntil = Callable[..., bytes]

TEXT = "I do not see the house."


@pytest.fixture(scope="module")
def translator(tiny_model: Path) -> Translator:
    return Translator.load(tiny_model, device="cpu")


def start(model: Path, *flags: str, **streams: Any) -> subprocess.Popen[bytes]:
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    shown = {"NO_COLOR": "", "CI": "", "TERM": "xterm", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tfm.cli", "translate", str(model), "--device", "cpu", *flags]
    return subprocess.Popen(command, env=os.environ | shown, bufsize=0, **pipes | streams)


def test_a_translation_grows_to_what_it_is_at_last(translator: Translator) -> None:
    shown: list[str] = []
    for beam in (1, 3):
        translator.decoding = DecodingSettings(beam=beam, max_length=12)
        shown.clear()
        found = translator.translate_growing(TEXT, shown.append)
        wanted = translator.translate_all([TEXT])[0]
        assert (found.text, found.ids) == (wanted.text, wanted.ids)
        assert found.score == pytest.approx(wanted.score, rel=1e-4)
        assert len(shown) >= len(found.ids)
        if beam == 1:  # each step adds a piece to the one before
            decode = translator.tokenizer.decode_target
            assert shown == [decode(found.ids[:n]) for n in range(len(shown))]
    translator.decoding = DecodingSettings(sampling=True, max_length=12)
    assert translator.translate_growing(TEXT, shown.append).text == translator.translate([TEXT])[0]
    translator.decoding = translator.settings.decoding
    assert translator.translate_growing(" ", shown.append).text == ""


def test_a_long_text_grows_part_by_part(translator: Translator) -> None:
    translator.warn = str
    long = f"{TEXT} " * 40
    shown: list[str] = []
    found = translator.translate_growing(long, shown.append)
    assert found.parts == translator.translate_all([long])[0].parts and len(found.parts) > 2
    assert found.text == translator.translate([long])[0]
    first = translator.translate([found.parts[0].text])[0]
    assert shown[0] == "" and any(text.startswith(first) for text in shown[1:])


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)


def test_a_terminal_shows_it_in_place_and_ctrl_d_ends_well(
    tiny_model: Path, translator: Translator, terminal: tuple[int, int], read_until: ReadUntil
) -> None:
    ours, theirs = terminal
    with start(tiny_model, "--interactive", stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout
        read_until(ours, b"en> ")
        os.write(ours, TEXT.encode() + b"\n")
        seen = read_until(ours, b"en> ").decode()
        steps = seen.split("\r\x1b[K")
        assert len(steps) > 4 and steps[-1] == "en> "  # nothing is left of what has grown
        assert len(set(steps[1:-1])) > 3
        wanted = translator.translate([TEXT])[0]
        assert read_until(process.stdout.fileno(), b"\n").decode() == f"{wanted}\n"
        os.write(ours, b"\x04")
        assert process.wait(60) == 0


def test_without_a_terminal_lines_come_out_plain_one_by_one(
    tiny_model: Path, translator: Translator, read_until: ReadUntil
) -> None:
    with start(tiny_model, "--interactive") as process:
        assert process.stdin and process.stdout and process.stderr
        for text in (TEXT, "", "A dog runs."):
            process.stdin.write(text.encode() + b"\n")
            found = read_until(process.stdout.fileno(), b"\n").decode()
            assert found == translator.translate([text])[0] + "\n"
        process.stdin.close()
        assert process.wait(60) == 0
        said = process.stderr.read()
        assert b"\x1b" not in said and b"en> " not in said


def test_ctrl_c_interrupts(tiny_model: Path, read_until: ReadUntil) -> None:
    with start(tiny_model, "--interactive") as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"A dog runs.\n")
        read_until(process.stdout.fileno(), b"\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().endswith(b"tfm: error: interrupted\n")


def test_a_growing_file_is_translated_as_it_grows(
    tiny_model: Path, translator: Translator, tmp_path: Path, read_until: ReadUntil
) -> None:
    """`tail -f FILE | tfm translate`: a line is answered though no other one follows."""
    file = tmp_path / "growing"
    file.write_text("A dog runs.\n")
    with subprocess.Popen(["tail", "-f", str(file)], stdout=subprocess.PIPE) as tail:
        with start(tiny_model, stdin=tail.stdout) as process:
            assert process.stdout and tail.stdout
            tail.stdout.close()
            for text in ("A dog runs.", TEXT):
                found = read_until(process.stdout.fileno(), b"\n").decode()
                assert found == translator.translate([text])[0] + "\n"
                with file.open("a") as more:
                    more.write(f"{TEXT}\n")
            read_until(process.stdout.fileno(), b"\n")
            tail.kill()
            assert process.wait(60) == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--input", "x"],
        ["--output", "x.jsonl"],
        ["--json"],
        ["--jsonl"],
        ["--text"],
        ["--strict"],
        ["--scores"],
        ["--n-best", "2"],
        ["--alignment"],
        ["--prefix-file", "x"],
    ],
)
def test_what_does_not_fit_an_interactive_session_is_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, flags: list[str]
) -> None:
    assert main(["translate", str(tiny_model), "--interactive", *flags]) == 2
    assert f"--interactive and {flags[0]} do not go together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "width", "cut"), [("abc", 3, "abc"), ("abcd", 3, "…cd"), ("日本語", 4, "…語")]
)
def test_what_is_too_wide_shows_its_end(text: str, width: int, cut: str) -> None:
    assert last_cells(text, width) == cut
