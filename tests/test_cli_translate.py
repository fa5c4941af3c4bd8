"""`tfm translate` as a filter: the promises on lines, streams and exit codes."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfm.cli.main import main
from tfm.model import Translator

HARD = "😀 caf\u0065\u0301 \u2028 \x85 \x0b \x0c \x00 \x1c </s> <unk> <pad> ▁ \u202e \ufeff |||"
LINES = [
    "A dog runs.",
    "",
    "I do not see the house, and the woman reads a book in the garden.",
    " \t\u2028\x85\x0b\x0c",
    HARD,
    "A lone \r is text.",
    "x" * 100_000,
    "The cat sleeps. " * 60,
    "I",
]
Tfm = Callable[..., tuple[int, bytes, str]]
ReadUntil = Callable[..., bytes]


@pytest.fixture
def tfm(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> Tfm:
    """Run `tfm translate MODEL ...` in this process; return exit code, stdout and stderr."""

    def run(*arguments: object, stdin: bytes | str = b"") -> tuple[int, bytes, str]:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        flags = ["translate", str(tiny_model), "--device", "cpu", *map(str, arguments)]
        code = main(flags)
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[str]:
    """Return the translation of each of LINES, made by itself, with a beam of 2."""
    translator = Translator.load(tiny_model, device="cpu")
    translator.warn = str
    return [translator.translate([line], beam=2)[0] for line in LINES]


def test_every_line_gives_one_line_in_order(tfm: Tfm, expected: list[str]) -> None:
    code, out, err = tfm("--beam", 2, stdin="".join(f"{line}\n" for line in LINES))
    assert code == 0
    assert out.decode().split("\n") == [*expected, ""]
    assert b"\r" not in out
    assert [expected[i] for i, line in enumerate(LINES) if not line.strip()] == ["", ""]
    assert len(set(expected)) > 5  # the model of these tests has something to say
    # stderr: what runs, one warning for two long lines, and how fast it was
    assert err.count("longer than the model was trained on") == 1
    assert "device: cpu, fp32" in err and "attention" in err and "9 lines in" in err


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"A dog runs.", ["A dog runs."]),
        (b"A dog runs.\r\nI\r\n", ["A dog runs.", "I"]),
        (b"\xef\xbb\xbfA dog runs.\n\n", ["A dog runs.", ""]),
        (b"\r\n\xe2\x80\xa8\n", ["", ""]),
    ],
)
def test_lines_end_at_lf_and_crlf_only(
    tfm: Tfm, tiny_model: Path, tmp_path: Path, raw: bytes, lines: list[str]
) -> None:
    texts = Translator.load(tiny_model, device="cpu").translate(lines)
    wanted = "".join(f"{text}\n" for text in texts).encode()
    assert tfm(stdin=raw)[:2] == (0, wanted)
    (tmp_path / "in.en").write_bytes(raw)
    assert tfm("--input", tmp_path / "in.en", "-o", tmp_path / "out.de")[:2] == (0, b"")
    assert (tmp_path / "out.de").read_bytes() == wanted


def test_the_batch_size_changes_nothing(tfm: Tfm) -> None:
    text = "".join("The cat sleeps. A dog runs."[: 1 + 7 * i % 26] + "\n" for i in range(40))
    found = {
        tfm("--beam", 3, "--set", f"decoding.batch_tokens={n}", stdin=text)[1]
        for n in (1, 99, 9999)
    }
    assert len(found) == 1
    assert found.pop().count(b"\n") == 40


def test_windows_of_a_file_keep_the_order(
    tfm: Tfm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{'The cat sleeps. ' * (i % 3)}{i}" for i in range(10)]
    (tmp_path / "in").write_text("\n".join(lines), encoding="utf-8")
    whole = tfm("--input", tmp_path / "in")
    monkeypatch.setattr("tfm.cli.translation_job.FIRST_WINDOW", 2)
    monkeypatch.setattr("tfm.cli.translation_job.WINDOW", 3)
    assert tfm("--input", tmp_path / "in")[:2] == whole[:2]
    assert whole[1].count(b"\n") == 10


def test_the_first_lines_of_a_file_wait_for_few_others(
    tiny_model: Path, tmp_path: Path, read_until: ReadUntil
) -> None:
    """A pipe stands in for a file that is so long that its end does not come."""
    pipe = tmp_path / "endless"
    os.mkfifo(pipe)
    with start(tiny_model, "--beam", "1", "--max-length", "3", "--input", str(pipe)) as process:
        assert process.stdout
        with pipe.open("wb") as file:
            file.write(b"A dog runs.\n" * 100)
            file.flush()
            seen = b""
            while seen.count(b"\n") < 64:  # a pipe may hand over a part of what was written
                seen += read_until(process.stdout.fileno(), b"\n")
            assert seen.count(b"\n") == 64
        process.stdout.read()
        assert process.wait(60) == 0


def test_output_formats(tfm: Tfm, tiny_model: Path) -> None:
    source = f"A dog runs.\n\n{HARD}\n"
    lines = source.split("\n")[:3]
    translations = Translator.load(tiny_model, device="cpu").translate_all(lines, beam=3, n_best=3)

    scored = "".join(f"{each.score:.4f}\t{each.text}\n" for each in translations)
    assert tfm("--beam", 3, "--scores", stdin=source)[1].decode() == scored

    listed = tfm("--beam", 3, "--n-best", 3, stdin=source)[1].decode()
    assert listed == "".join(
        f"{i} ||| {candidate.text} ||| {candidate.score:.4f}\n"
        for i, each in enumerate(translations)
        for candidate in each.n_best
    )
    assert listed.count("\n") == 7  # three, one for the blank line, three

    out = tfm("--beam", 3, "--n-best", 3, "--json", stdin=source)[1].decode()
    objects = [json.loads(line) for line in out.removesuffix("\n").split("\n")]
    assert [each["source"] for each in objects] == lines
    for found, wanted in zip(objects, translations, strict=True):
        keys = ["source", "translation", "log_probability", "score", "tokens", "truncated"]
        assert list(found) == [*keys, "n_best"]
        assert found["n_best"][0] == {key: found[key] for key in keys[1:]}
        assert [each["translation"] for each in found["n_best"]] == [c.text for c in wanted.n_best]
        assert found["tokens"] == wanted.tokens


def test_bad_utf8_is_named_and_what_came_before_is_written(tfm: Tfm, tmp_path: Path) -> None:
    good, bad = b"A dog runs.\nI\n", b"caf\xe9\nI\n"
    translated = tfm(stdin=good)[1]
    code, out, err = tfm(stdin=good + bad)
    assert (code, out) == (1, translated)
    assert "stdin, line 3, byte 4: not UTF-8 (0xE9)" in err

    source, target = tmp_path / "in.en", tmp_path / "out.de"
    source.write_bytes(good + bad)
    assert tfm("--input", source)[:2] == (1, translated)
    target.write_text("old\n")
    code, out, err = tfm("--input", source, "--output", target)
    assert (code, out) == (1, b"")
    assert f"{source}, line 3, byte 4" in err
    assert target.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.en", "out.de"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--n-best", 9], 1, "at most `beam` (5), but is 9"),
        (["--set", "decoding.beam_size=3"], 2, "did you mean `beam`?"),
        (["--set", "model.dropout=0"], 1, "only [decoding] can be changed"),
        (["--beam", 0], 2, "--beam 0: `beam` must be at least 1, but is 0"),
        (["--beam", "abc"], 2, "--beam abc: must be a whole number; see tfm translate --help"),
        (["--n-best", 0], 2, "--n-best 0: must be at least 1; see tfm translate --help"),
        (["--temperature", 0], 2, "--temperature 0"),
        (["--temperature", "x"], 2, "--temperature x: must be a number; see tfm translate --help"),
        (["--mbr", "bleu"], 2, "--mbr bleu: must be one of none, chrf; see tfm translate --help"),
        (["--max-length", 0], 2, "--max-length 0"),
        (["--input", "no/such/file"], 1, "no/such/file: "),
        (["--output", "no/such/file"], 1, "no/such"),
        (["--attention", "flash", "--precision", "fp16"], 1, "fp16"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    tfm: Tfm, arguments: list[object], code: int, message: str
) -> None:
    """What settings do not allow is wrong usage, 2; else 1."""
    found, out, err = tfm(*arguments, stdin="I\n")
    assert (found, out) == (code, b"")
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-best", 9], "--n-best 9: must be at most `beam` (5)"),
        (["--sampling", "--mbr", "chrf", "--n-best", 9, "--beam", 4], "--n-best 9: must be"),
        (["--sampling", "--beam", 3], "--beam 3: does nothing with sampling"),
        (["--sampling-seed", 2], "--sampling-seed 2: `sampling_seed` must be 1 without sampling"),
        (["--diversity", 2], "--diversity 2.0: `diversity` must be 0.5 without groups"),
        (["--input", "no/such/file"], "no/such/file: cannot be read: no such file"),
        (["--prefix-file", "no/such/file"], "no/such/file: cannot be read: no such file"),
        (["--output", "no/such/file"], "no/such; make it or choose another -o"),
        (["--output", "/"], "/: cannot be written: it is a directory"),
    ],
)
def test_what_is_known_before_the_model_is_loaded_is_refused_then(
    tfm: Tfm, arguments: list[object], message: str
) -> None:
    code, out, err = tfm(*arguments, stdin="I\n")
    assert code and out == b""
    assert message in err and err.count("\n") == 1, "only the error: nothing was loaded"


@pytest.mark.parametrize("flags", [["--sampling-seed", 1], ["--diversity", 0.5], ["--top-k", 0]])
def test_a_value_that_is_the_default_is_no_error(tfm: Tfm, flags: list[object]) -> None:
    assert tfm(*flags, stdin="I\n")[0] == 0


@pytest.mark.parametrize("name", ["in.en", "linked.en", "./in.en"])
@pytest.mark.parametrize("read", ["--input", "--prefix-file"])
def test_what_is_read_is_not_replaced(
    tfm: Tfm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, read: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.en").write_text("A dog runs.\n")
    Path("linked.en").symlink_to("in.en")
    code, _, err = tfm(read, "in.en", "-o", name, stdin="I\n")
    assert code == 1 and f"{Path(name)}: is read, and would be replaced" in err.splitlines()[-1]
    assert Path("in.en").read_text() == "A dog runs.\n"


def test_missing_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["translate", str(tmp_path / "none")]) == 1
    assert "no such directory" in capsys.readouterr().err


def start(tiny_model: Path, *arguments: str, **pipes: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tfm.cli", "translate", str(tiny_model), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)  # type: ignore[call-overload]


def test_a_pipe_that_stays_open_is_answered_line_by_line(
    tiny_model: Path, read_until: ReadUntil
) -> None:
    with start(tiny_model) as process:
        assert process.stdin and process.stdout
        for line in (b"A dog runs.\n", b"\n", b"The cat sleeps.\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert read_until(process.stdout.fileno(), b"\n").count(b"\n") == 1
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_closed_pipe_ends_quietly(tiny_model: Path, read_until: ReadUntil) -> None:
    with start(tiny_model, "--beam", "1") as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"A dog runs.\n")
        process.stdin.flush()
        read_until(process.stdout.fileno(), b"\n")
        process.stdout.close()
        process.stdin.write(b"A dog runs.\n" * 50)
        process.stdin.close()
        assert process.wait(60) == 141
        assert b"rror" not in process.stderr.read()


def test_a_terminal_is_prompted(tiny_model: Path, read_until: ReadUntil) -> None:
    controller, terminal = os.openpty()
    with start(tiny_model, stdin=terminal) as process:
        os.close(terminal)
        assert process.stdout and process.stderr
        for _ in range(2):
            read_until(process.stderr.fileno(), b"en> ")
            os.write(controller, b"A dog runs.\n")
            assert len(read_until(process.stdout.fileno(), b"\n")) > 1
        read_until(process.stderr.fileno(), b"en> ")
        os.write(controller, b"\x04")  # Ctrl-D
        assert process.wait(60) == 0
    os.close(controller)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_stdout_can_be_named_as_the_output(
    tiny_model: Path, tmp_path: Path, name: str, read_until: ReadUntil
) -> None:
    with start(tiny_model, "-i", "-", "-o", name, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"A dog runs.\n")  # and stays open: the answer comes at once
        process.stdin.flush()
        wanted = Translator.load(tiny_model, device="cpu").translate(["A dog runs."])[0]
        assert read_until(process.stdout.fileno(), b"\n") == f"{wanted}\n".encode()
        process.stdin.close()
        assert process.wait(60) == 0


def test_devices_and_pipes_are_written_and_stay_what_they_are(tfm: Tfm, tmp_path: Path) -> None:
    wanted = tfm(stdin="A dog runs.\nI\n")[1]
    assert tfm("-o", "/dev/null", stdin="A dog runs.\nI\n")[:2] == (0, b"")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert tfm("-o", pipe, stdin="A dog runs.\nI\n")[:2] == (0, b"")
    assert os.read(reader, 1 << 16) == wanted
    os.close(reader)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_device_is_an_error_of_one_line(tfm: Tfm) -> None:
    code, out, err = tfm("-o", "/dev/full", stdin="A dog runs.\n")
    assert (code, out) == (1, b"")
    assert "/dev/full: cannot be written: no space left on device" in err.splitlines()[-1]
