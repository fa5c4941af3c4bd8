"""`tfm inspect-attention`: a map to read on stdout, all of it in files, and nothing half done."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tfm.cli.main import main
from tfm.model.attention import choice
from tfm.model.translator import Translator

Tfm = Callable[..., tuple[int, str, str]]
TEXT = "A man rides a red bike."


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> Tfm:
    """Run `tfm inspect-attention MODEL ...` in this process; return exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        flags = ["--device", "cpu", *map(str, arguments)]
        code = main(["inspect-attention", str(tiny_model), *flags])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_translation_map_alignment_and_check_are_printed(inspect: Tfm, tiny_model: Path) -> None:
    code, out, err = inspect(TEXT)
    assert code == 0, err
    blocks = out.rstrip("\n").split("\n\n")
    assert blocks[0] == Translator.load(tiny_model, device="cpu").translate([TEXT])[0]
    assert blocks[1].startswith("cross-attention, decoder layer 1 of 1, mean of 4 heads")
    assert blocks[-2].startswith("alignment (source-target): ")
    assert re.search(r"checked against .+: largest difference \de-\d\d in attention", blocks[-1])
    for word in ("man", "rides", "bike", "</s>"):
        assert word in blocks[2]


def test_a_translation_that_was_cut_is_said_to_be(inspect: Tfm) -> None:
    code, _, err = inspect(TEXT, "--set", "decoding.max_length=2")
    assert code == 0 and "cut at decoding.max_length" in err


def test_files_are_written_and_named(inspect: Tfm, tiny_model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "report"
    code, out, err = inspect(TEXT, "-o", directory)
    assert code == 0, err
    names = sorted(path.name for path in directory.iterdir())
    assert names == sorted(
        ["attention.npz", "attention.json", "cross.svg", "cross-heads.svg"]
        + ["encoder.svg", "decoder.svg"]
    )
    assert all(name in err for name in names) and str(directory) in err
    document = json.loads((directory / "attention.json").read_text(encoding="utf-8"))
    assert document["target"]["text"] == out.splitlines()[0]
    weights = (tiny_model / "model.safetensors").read_bytes()
    origin = {"name": tiny_model.name, "sha256": hashlib.sha256(weights).hexdigest()}
    assert document["model"] == origin
    maps = np.load(directory / "attention.npz")
    assert maps["cross"].shape[2:] == (len(maps["tgt_ids"]), len(maps["src_ids"]))


def test_twice_the_same_is_twice_the_same_bytes(inspect: Tfm, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        code, _, err = inspect(TEXT, "-o", tmp_path / "report")
        assert code == 0, err
        found.append({path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()})
    assert found[0] == found[1]


def test_a_given_translation_is_the_one_looked_at(inspect: Tfm) -> None:
    code, out, err = inspect(TEXT, "--target", "Ein rotes Fahrrad.", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["target"]["text"] == "Ein rotes Fahrrad."
    assert document["target"]["words"] == ["Ein", "rotes", "Fahrrad", "."]
    assert document["verification"]["passed"]


def test_layer_and_head_are_chosen_and_told(inspect: Tfm, tmp_path: Path) -> None:
    code, out, err = inspect(TEXT, "--layer", 1, "--head", 3, "-o", tmp_path / "new")
    assert code == 0, err
    assert "decoder layer 1 of 1, head 3 of 4" in out
    document = json.loads((tmp_path / "new" / "attention.json").read_text(encoding="utf-8"))
    assert document["selection"] == {"layer": 1, "head": 3}
    assert "head 3 of 4" in (tmp_path / "new" / "cross.svg").read_text(encoding="utf-8")


def test_only_the_formats_asked_for_are_written(inspect: Tfm, tmp_path: Path) -> None:
    code, _, err = inspect(TEXT, "-o", tmp_path / "new", "--format", "json,npz")
    assert code == 0, err
    assert {path.suffix for path in (tmp_path / "new").iterdir()} == {".json", ".npz"}


def refused(result: tuple[int, str, str], *parts: str) -> None:
    code, out, err = result
    assert code == 1 and out == ""
    assert err.splitlines()[-1].startswith("tfm: error: ") and "Traceback" not in err
    for part in parts:
        assert part in err.splitlines()[-1]


@pytest.mark.parametrize("text", ["", "  \t ", "\u2028"])
def test_blank_text_is_refused(inspect: Tfm, text: str) -> None:
    refused(inspect(text), "TEXT is blank")


def test_text_that_would_be_translated_in_parts_is_refused(inspect: Tfm) -> None:
    refused(inspect("dog " * 100), "pieces", "at most", "data.max_length", "shorter")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--layer", "2"], "layers 1 to 1"),
        (["--head", "0"], "heads 1 to 4"),
        (["--set", "model.heads=2"], "only [decoding]"),
    ],
)
def test_what_the_model_has_not_is_refused(inspect: Tfm, flags: list[str], part: str) -> None:
    refused(inspect(TEXT, *flags), part)


def test_a_directory_with_other_files_is_refused(inspect: Tfm, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    refused(inspect(TEXT, "-o", tmp_path), "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unknown_format_is_wrong_usage(inspect: Tfm) -> None:
    code, out, err = inspect(TEXT, "--format", "gif")
    assert code == 2 and out == "" and "gif" in err and "npz, json, svg, png" in err


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["inspect-attention", str(tmp_path / "gone"), TEXT])
    assert code == 1 and "gone" in capsys.readouterr().err


def test_no_map_is_shown_of_a_backend_that_is_wrong(
    inspect: Tfm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **facts: Any) -> torch.Tensor:
        return v.mean(2, keepdim=True).expand_as(q).clone()

    monkeypatch.setitem(choice.BACKENDS, "math", wrong)
    monkeypatch.setattr(choice.formula, "attend", wrong)
    flags = ["--attention", "math", "-o", tmp_path / "new"]
    refused(inspect(TEXT, "--target", "Ein Mann.", *flags), "differs from its formula")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["猫が好き。👍🏽", "</s> <unk> \u2581", "</text><b>", "\x1b[31m"])
def test_any_text_has_a_map(inspect: Tfm, tmp_path: Path, text: str) -> None:
    code, out, err = inspect(text, "--target", text, "-o", tmp_path / "new")
    assert code == 0, err
    document = json.loads((tmp_path / "new" / "attention.json").read_text(encoding="utf-8"))
    assert document["source"]["text"] == document["target"]["text"] == text
