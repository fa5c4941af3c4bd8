"""`tfm translate --jsonl`: one record out for each one in, with all that it had."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from tfm.cli.main import main
from tfm.model import Translator

RECORDS: list[str | bytes] = [
    '{"id": 7, "source": "A dog runs.", "tags": ["x", null]}',
    "not JSON",
    '{"en": "The cat sleeps.", "de": "kept"}',
    '["A dog runs."]',
    '{"text": "I"}',
    '{"source": 3, "id": "8"}',
    '{"source": "\\ud800"}',
    '{"source": " ", "note": "\\ud800"}',
    b'{"source": "caf\xe9"}',
]


def run(
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    model: Path,
    *flags: str,
) -> tuple[int, list[str], str]:
    lines = [line if isinstance(line, bytes) else line.encode() for line in RECORDS]
    raw = b"".join(line + b"\n" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code = main(["translate", str(model), "--device", "cpu", *flags])
    out, err = capsysbinary.readouterr()
    return code, out.decode().removesuffix("\n").split("\n"), err.decode()


def test_each_record_gives_one_with_its_fields_or_an_error(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    code, lines, err = run(monkeypatch, capsysbinary, tiny_model, "--jsonl")
    found = [json.loads(line) for line in lines]
    first, second = Translator.load(tiny_model).translate(["A dog runs.", "The cat sleeps."])
    assert len(found) == len(RECORDS)
    bad = [i for i, each in enumerate(found) if "error" in each]
    assert bad == [1, 3, 4, 5, 6, 8]
    assert (found[0]["id"], found[0]["tags"]) == (7, ["x", None])
    assert (found[0]["translation"], found[2]["translation"]) == (first, second)
    assert found[2]["de"] == "kept" and found[5]["id"] == "8"
    assert found[7]["translation"] == "" and found[7]["note"] == "\ud800"
    assert "record 2: not JSON" in found[1]["error"]
    assert found[8] == {"error": "record 9: not UTF-8 at byte 16 (0xE9)"}
    assert code == 1 and "could not be translated: 6" in err.splitlines()[-1]


ODD: list[tuple[bytes, dict[str, object]]] = [  # a line, and what comes out of it again
    (b'\xef\xbb\xbf{"source": "A dog runs.", "id": 1}', {"id": 1}),
    (b'{"source": "I", "big": %s}' % (b"9" * 4000), {"big": int("9" * 4000)}),
    (b'{"source": "I", "x": null, "y": [1.5, true, {"a": {"b": []}}]}\r', {"x": None}),
    (b'{"source": "I", "id": 1, "id": 2}', {"id": 2}),
    (b'{"de": "x", "": "", "en": "I", "n\\u0000": "\\u2028"}', {"": "", "n\0": "\u2028"}),
    (b'{"source": "I", "score": "old", "error": "record 9: old"}', {}),
    (b' {"source": "a\\nb", "t": "\t"} ', {}),
    (b'{"source": "I", "prefix": null, "required": null, "forbidden": null}', {"prefix": None}),
]
REFUSED: list[tuple[bytes, str]] = [
    (b"", "not JSON: "),
    (b"  ", "not JSON: "),
    (b"null", "not a JSON object"),
    (b"3", "not a JSON object"),
    (b'{"source": null}', "`source` must be a string, but is null"),
    (b'{"source": ["I"]}', '`source` must be a string, but is ["I"]'),
    (b'{"source": "I", "x": NaN}', "not JSON: NaN"),
    (b'{"source": "I", "x": [-Infinity]}', "not JSON: -Infinity"),
    (b'{"source": "I", "x": 1e999}', "not JSON: 1e999"),
    (b'{"source": "I", "x": %s}' % (b"9" * 5000), "not JSON: "),
    (b'{"source": "I", "x": %s}' % (b"[" * 99_999), "not JSON: "),
    (b'{"source": "I"} {}', "not JSON: "),
    (b'{"source": "I", "required": "car"}', "`required` must be a list of strings"),
]


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} was written, which is no JSON")


def test_whatever_a_record_holds_one_comes_out_that_is_json(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    lines = [line.replace(b"\t", rb"\t") for line, _ in ODD] + [line for line, _ in REFUSED]
    monkeypatch.setattr(f"{__name__}.RECORDS", lines)
    code, out, err = run(monkeypatch, capsysbinary, tiny_model, "--jsonl", "--beam", "1")
    found = [json.loads(line, parse_constant=no_constant) for line in out]
    assert code == 1 and len(found) == len(lines)
    assert f"could not be translated: {len(REFUSED)}" in err
    for each, (_, carried) in zip(found, ODD, strict=False):
        assert "error" not in each and each["score"] != "old"
        assert carried.items() <= each.items()
    assert found[2]["y"] == [1.5, True, {"a": {"b": []}}]
    for number, each, (_, message) in zip(
        range(len(ODD) + 1, len(lines) + 1), found[len(ODD) :], REFUSED, strict=True
    ):
        assert each["error"].startswith(f"record {number}: {message}")


def test_strict_stops_at_the_first_bad_record(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    code, lines, err = run(monkeypatch, capsysbinary, tiny_model, "--jsonl", "--strict")
    assert code == 1 and len(lines) == 1
    assert "record 2: not JSON" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "flags",
    [
        ["--strict"],
        ["--text"],
        ["--jsonl", "--text", "--json"],
        ["--jsonl", "--text", "-o", "x.jsonl"],
        ["--jsonl", "--scores"],
        ["--json", "--scores"],
        ["--n-best", "2", "--scores"],
    ],
)
def test_options_that_would_do_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, flags: list[str]
) -> None:
    assert main(["translate", str(tiny_model), *flags]) == 2
    assert flags[-1].removeprefix("x") in capsys.readouterr().err


def test_records_can_be_written_as_lines_of_text(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    code, lines, err = run(monkeypatch, capsysbinary, tiny_model, "--jsonl", "--text")
    first, second = Translator.load(tiny_model).translate(["A dog runs.", "The cat sleeps."])
    assert lines == [first, "", second, "", "", "", "", "", ""]
    assert code == 1 and "a blank line stands for each" in err.splitlines()[-1]


def test_files_are_known_by_their_suffixes(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(str(RECORDS[0]) + "\n", encoding="utf-8")
    assert main(["translate", str(tiny_model), "--input", str(tmp_path / "in.jsonl")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["id"] == 7
    (tmp_path / "in.en").write_text("A dog runs.\n", encoding="utf-8")
    text_to_json = ["--input", str(tmp_path / "in.en"), "-o", str(tmp_path / "out.jsonl")]
    assert main(["translate", str(tiny_model), *text_to_json]) == 0
    written = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert written == {key: value for key, value in found.items() if key not in ("id", "tags")}


def test_the_page_on_translating_has_the_fields_of_a_record(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tiny_model: Path
) -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "translating.md"
    rows = re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    _, lines, _ = run(monkeypatch, capsysbinary, tiny_model, "--jsonl", "--alignment")
    assert list(json.loads(lines[2])) == ["en", "de", *rows]
    (alternative,) = json.loads(lines[2])["n_best"]
    assert list(alternative) == rows[:-2]
