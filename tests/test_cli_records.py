"""`tfm translate --jsonl`: one record out for each one in, with all that it had."""

import io
import json
import sys
from pathlib import Path

import pytest

from tfm.cli.main import main
from tfm.model import Translator

RECORDS = [
    '{"id": 7, "source": "A dog runs.", "tags": ["x", null]}',
    "not JSON",
    '{"en": "The cat sleeps.", "de": "kept"}',
    '["A dog runs."]',
    '{"text": "I"}',
    '{"source": 3, "id": "8"}',
    '{"source": "\\ud800"}',
    '{"source": " ", "note": "\\ud800"}',
]


def run(
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    model: Path,
    *flags: str,
) -> tuple[int, list[str], str]:
    text = "".join(line + "\n" for line in RECORDS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = main(["translate", str(model), "--device", "cpu", *flags])
    out, err = capsysbinary.readouterr()
    return code, out.decode().splitlines(), err.decode()


def test_each_record_gives_one_with_its_fields_or_an_error(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    code, lines, err = run(monkeypatch, capsysbinary, tiny_model, "--jsonl")
    found = [json.loads(line) for line in lines]
    first, second = Translator.load(tiny_model).translate(["A dog runs.", "The cat sleeps."])
    assert len(found) == len(RECORDS)
    bad = [i for i, each in enumerate(found) if "error" in each]
    assert bad == [1, 3, 4, 5, 6]
    assert (found[0]["id"], found[0]["tags"]) == (7, ["x", None])
    assert (found[0]["translation"], found[2]["translation"]) == (first, second)
    assert found[2]["de"] == "kept" and found[5]["id"] == "8"
    assert found[7]["translation"] == "" and found[7]["note"] == "\ud800"
    assert "record 2: not JSON" in found[1]["error"]
    assert code == 1 and "could not be translated: 5" in err.splitlines()[-1]


def test_strict_stops_at_the_first_bad_record(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    code, lines, err = run(monkeypatch, capsysbinary, tiny_model, "--jsonl", "--strict")
    assert code == 1 and len(lines) == 1
    assert "record 2: not JSON" in err.splitlines()[-1]


@pytest.mark.parametrize("flags", [["--strict"], ["--jsonl", "--scores"]])
def test_options_that_would_do_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, flags: list[str]
) -> None:
    assert main(["translate", str(tiny_model), *flags]) == 2
    assert flags[-1] in capsys.readouterr().err


def test_a_file_is_known_by_its_suffix(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(RECORDS[0] + "\n", encoding="utf-8")
    assert main(["translate", str(tiny_model), "--input", str(tmp_path / "in.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == 7
