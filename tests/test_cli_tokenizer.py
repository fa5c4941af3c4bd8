"""`tfm tokenizer train | encode | decode` as a user meets them: files, pipes and exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfm.data.tokenizer import Tokenizer

Run = Any  # conftest's: arguments of tfm and stdin to exit code, stdout, stderr


def pieces(model: Path, text: str) -> bytes:
    """Return the line that `encode` is to print for a source text."""
    tokenizer = Tokenizer.load(model)
    return (" ".join(tokenizer.source_pieces(tokenizer.encode_source(text))) + "\n").encode()


# One line of each kind in the line contract, as bytes; the last has no line end.
LINES = [
    b"A dog runs.",
    b"",
    b"   ",
    b" lead and trail ",
    "</s> <unk> \u2581 <0x0A> \U0010fffd".encode(),
    "u\u2028v\u0085w\vx\fy\0z\tt\rr \u00a0 n".encode(),
    "👩‍👩‍👧 e\u0301".encode(),
    "ä".encode() * 100_000,
    b"no end",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, run_tfm: Run) -> Path:
    """Train a separate tokenizer with the command itself."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "x.en").write_text("A dog runs.\nA cat sleeps.\n" * 20)
    (folder / "x.de").write_text("Ein Hund rennt.\nEine Katze schläft.\n" * 20, encoding="utf-8")
    settings = folder / "settings.toml"
    settings.write_text("[tokenizer]\nseparate = true\nkind = 'bpe'\nvocab_size = 285\n")
    arguments = ("--train", folder / "x", "--config", settings, "-o", folder / "m")
    done = run_tfm("tokenizer", "train", *arguments)
    assert (done.code, done.stderr) == (0, "")
    return folder / "m"


def test_train_prints_the_figures_and_notes_a_smaller_vocabulary(
    tiny_corpus: str, tmp_path: Path, run_tfm: Run
) -> None:
    path = tmp_path / "t.model"
    done = run_tfm("tokenizer", "train", "--train", tiny_corpus, "-o", path)
    assert done.code == 0
    size = Tokenizer.load(path).source_size
    assert f"too small for 8000 pieces; took the most that work, {size}" in done.stderr
    assert done.stderr.count("\n") == 1
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.decode().splitlines()}
    assert rows["vocabulary (joint)"] == [str(size)] * 2
    assert rows["round trip"] == ["100.00%"] * 2
    assert rows["unknown pieces"] == rows["byte pieces"] == ["0.00%"] * 2
    assert float(rows["pieces per word"][0]) >= 1


def test_train_as_json(tiny_corpus: str, tmp_path: Path, run_tfm: Run) -> None:
    arguments = ("--train", tiny_corpus, "-o", tmp_path / "t.model", "--json")
    done = run_tfm("tokenizer", "train", *arguments, "--source", "de", "--target", "en")
    report = json.loads(done.stdout)
    assert report["joint"] is True and report["pairs"] == 6
    assert report["source"]["round_trip_rate"] == report["target"]["round_trip_rate"] == 1
    assert report["note"] in done.stderr


def test_train_takes_a_preset(tiny_corpus: str, tmp_path: Path, run_tfm: Run) -> None:
    arguments = ("--train", tiny_corpus, "-o", tmp_path / "t.model", "--config", "multi30k")
    assert "too small for 8000 pieces" in run_tfm("tokenizer", "train", *arguments).stderr


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("ids", [[], ["--ids"]])
def test_decode_gives_back_what_encode_was_given(
    side: str, ids: list[str], model: Path, run_tfm: Run
) -> None:
    encoded = run_tfm("tokenizer", "encode", model, "--side", side, *ids, stdin=b"\n".join(LINES))
    assert encoded.code == 0 and encoded.stderr == ""
    assert len(encoded.stdout.decode().splitlines()) == len(LINES)  # no piece breaks a line
    decoded = run_tfm("tokenizer", "decode", model, "--side", side, *ids, stdin=encoded.stdout)
    assert decoded.stdout == b"".join(line + b"\n" for line in LINES)


def test_crlf_and_byte_order_mark_go(model: Path, run_tfm: Run) -> None:
    plain = run_tfm("tokenizer", "encode", model, stdin=b"A dog\n\nruns\n").stdout
    assert (
        run_tfm("tokenizer", "encode", model, stdin=b"\xef\xbb\xbfA dog\r\n\r\nruns").stdout
        == plain
    )
    assert plain == pieces(model, "A dog") + b"\n" + pieces(model, "runs")


def test_sides_are_two_vocabularies(model: Path, run_tfm: Run) -> None:
    sides = [
        run_tfm("tokenizer", "encode", model, "--side", side, stdin=b"Hund\n").stdout
        for side in ("source", "target")
    ]
    assert sides[0] == pieces(model, "Hund") != sides[1]
    assert len(sides[1].split()) < len(sides[0].split())


def test_a_model_directory_will_do(model: Path, tmp_path: Path, run_tfm: Run) -> None:
    for side in ("source", "target"):
        data = model.with_name(f"m.{side}").read_bytes()
        (tmp_path / f"tokenizer.{side}.model").write_bytes(data)
    done = run_tfm("tokenizer", "encode", tmp_path, stdin=b"A dog\n")
    assert done.stdout == pieces(model, "A dog")


def test_a_filter_answers_each_line_while_the_pipe_is_open(
    model: Path, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tfm.cli", "tokenizer", "encode", str(model)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdin and process.stdout
        for _ in range(2):
            process.stdin.write(b"A dog\n")
            process.stdin.flush()
            assert process.stdout.readline() == pieces(model, "A dog")
        process.stdin.close()
        assert process.wait(30) == 0


def test_bad_input_is_one_line_after_the_good_lines(model: Path, run_tfm: Run) -> None:
    done = run_tfm("tokenizer", "encode", model, stdin=b"A dog\n\xff\n")
    assert (done.code, done.stdout) == (1, pieces(model, "A dog"))
    assert "stdin, line 2, byte 1: not UTF-8 (0xFF)" in done.stderr
    done = run_tfm("tokenizer", "decode", model, stdin=pieces(model, "A dog") + b"A nonsense\n")
    assert (done.code, done.stdout) == (1, b"A dog\n")
    assert "stdin, line 2: 'nonsense' is not a piece of this vocabulary" in done.stderr
    for ids in ("9999", "-1", "x", "²", "1" * 5000):
        done = run_tfm("tokenizer", "decode", model, "--ids", stdin=ids.encode() + b"\n")
        assert done.code == 1 and "is not an id; ids go from 0 to 284" in done.stderr
    done = run_tfm("tokenizer", "decode", model, stdin=b"<0x0A>\n")
    assert done.code == 1 and "line 1: decodes to more than one line" in done.stderr


def test_wrong_paths_and_settings_are_one_line(
    tiny_corpus: str, tmp_path: Path, run_tfm: Run
) -> None:
    out = tmp_path / "t.model"
    (tmp_path / "damaged.model").write_bytes(b"x" * 100)
    for message, arguments in {
        "no file none.en": ("train", "--train", "none", "-o", out),
        "cannot be written": ("train", "--train", tiny_corpus, "-o", tmp_path / "none/x"),
        "at least": ("train", "--train", tiny_corpus, "-o", out, "--set", "tokenizer.vocab_size=9"),
        "did you mean `kind`": (
            "train",
            "--train",
            tiny_corpus,
            "-o",
            out,
            "--set",
            "tokenizer.kin=1",
        ),
        "no such file": ("encode", tmp_path / "none.model"),
        "damaged.model: not a SentencePiece": ("decode", tmp_path / "damaged.model"),
    }.items():
        done = run_tfm("tokenizer", *arguments)
        code = 2 if "tokenizer.kin=1" in arguments else 1
        assert (done.code, done.stdout) == (code, b""), message
        assert message in done.stderr and done.stderr.count("\n") == 1
    assert not out.exists()


def test_nothing_here_imports_torch(model: Path, environment: dict[str, str]) -> None:
    script = (
        "import sys, tfm.cli.tokenizer, tfm.data.batching, tfm.data.tables\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
