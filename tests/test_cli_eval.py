"""`tfm eval`: a test set is checked, translated and scored, or a file of translations is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from tfm.cli.main import main
from tfm.model.translator import Translator

Tfm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tfm_eval(capsys: pytest.CaptureFixture[str]) -> Tfm:
    """Run `tfm eval ...` in this process; return exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["eval", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def sides(tiny_corpus: str) -> tuple[list[str], list[str]]:
    def read(language: str) -> list[str]:
        return Path(f"{tiny_corpus}.{language}").read_text(encoding="utf-8").splitlines()

    return read("en"), read("de")


def test_a_perfect_file_scores_100_without_a_model(tfm_eval: Tfm, tiny_corpus: str) -> None:
    code, out, _ = tfm_eval("--test", tiny_corpus, "--hypotheses", f"{tiny_corpus}.de")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "6 pairs" and lines[-1] == "BLEU = 100.0"
    for line in ("BLEU lower-cased = 100.0", "chrF = 100.0", "TER = 0.0"):
        assert line in lines
    assert f"version:{sacrebleu.__version__}" in out


def test_json_is_one_object_with_signatures(
    tfm_eval: Tfm, tiny_corpus: str, sides: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    hypotheses = tmp_path / "hyp"
    shouted = [line.upper() for line in sides[1]]
    hypotheses.write_text("\n".join(shouted), encoding="utf-8")  # no final newline: still a line
    code, out, _ = tfm_eval("--test", tiny_corpus, "--hypotheses", hypotheses, "--json")
    document = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    expected = sacrebleu.corpus_bleu(shouted, [sides[1]])
    assert document["bleu"]["value"] == pytest.approx(expected.score, abs=1e-4)
    assert document["bleu_lowercase"]["value"] == pytest.approx(100, abs=1e-4)
    assert "case:lc" in document["bleu_lowercase"]["signature"]
    assert document["test"] == tiny_corpus and document["hypotheses"] == str(hypotheses)


def test_a_model_translates_and_its_lines_are_what_is_scored(
    tfm_eval: Tfm,
    tiny_model: Path,
    tiny_corpus: str,
    sides: tuple[list[str], list[str]],
    tmp_path: Path,
) -> None:
    output = tmp_path / "out.de"
    flags = ["--beam", 2, "--device", "cpu", "-o", output, "--json"]
    code, out, err = tfm_eval(tiny_model, "--test", tiny_corpus, *flags)
    assert code == 0, err
    expected = Translator.load(tiny_model, device="cpu").translate(sides[0], beam=2)
    assert output.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in expected)
    document = json.loads(out)
    assert document["decoding"]["beam"] == 2 and document["model"] == str(tiny_model)
    chrf = sacrebleu.corpus_chrf(expected, [sides[1]]).score
    assert document["chrf"]["value"] == pytest.approx(chrf, abs=1e-4)
    assert "device: cpu" in err and "device" not in document["test"]
    again = tfm_eval("--test", tiny_corpus, "--hypotheses", output, "--json")
    assert json.loads(again[1])["chrf"] == document["chrf"]


@pytest.mark.parametrize("name", ["-", "/dev/null"])
def test_translations_go_to_stdout_or_a_device(
    tfm_eval: Tfm,
    tiny_model: Path,
    tiny_corpus: str,
    sides: tuple[list[str], list[str]],
    name: str,
) -> None:
    flags = ["--beam", 2, "--device", "cpu", "-o", name]
    code, out, err = tfm_eval(tiny_model, "--test", tiny_corpus, *flags)
    assert code == 0, err
    expected = Translator.load(tiny_model, device="cpu").translate(sides[0], beam=2)
    shown = "".join(f"{line}\n" for line in expected) if name == "-" else ""
    assert out.startswith(f"{shown}6 pairs\n")


def test_settings_of_decoding_can_be_changed(
    tfm_eval: Tfm, tiny_model: Path, tiny_corpus: str
) -> None:
    flags = ["--set", "decoding.max_length=1", "--json", "--device", "cpu"]
    code, out, _ = tfm_eval(tiny_model, "--test", tiny_corpus, *flags)
    assert code == 0 and json.loads(out)["decoding"]["max_length"] == 1
    code, out, err = tfm_eval(tiny_model, "--test", tiny_corpus, "--set", "model.d_model=32")
    assert code == 1 and out == "" and "only [decoding]" in err


def test_the_other_direction_swaps_the_sides(tfm_eval: Tfm, tiny_corpus: str) -> None:
    flags = ["--source", "de", "--target", "en", "--hypotheses", f"{tiny_corpus}.en"]
    code, out, _ = tfm_eval("--test", tiny_corpus, *flags)
    assert code == 0 and out.splitlines()[-1] == "BLEU = 100.0"


def test_a_model_is_not_asked_to_translate_backwards(
    tfm_eval: Tfm, tiny_model: Path, tiny_corpus: str
) -> None:
    flags = ["--source", "de", "--target", "en", "--device", "cpu"]
    result = tfm_eval(tiny_model, "--test", tiny_corpus, *flags)
    refused(result, "translates en to de", "not the other way round")


def refused(result: tuple[int, str, str], *parts: str) -> None:
    code, out, err = result
    assert code == 1 and out == ""
    assert err.count("\n") == 1 and err.startswith("tfm: error: "), err
    for part in parts:
        assert part in err


def test_unequal_counts_are_refused_with_both(
    tfm_eval: Tfm, tiny_corpus: str, tmp_path: Path
) -> None:
    short = tmp_path / "short.de"
    short.write_text("Ein Hund.\n")
    result = tfm_eval("--test", tiny_corpus, "--hypotheses", short)
    refused(result, "short.de", "1 line,", "6 pairs")


def test_bad_utf8_names_file_line_and_byte(tfm_eval: Tfm, tiny_corpus: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.de"
    bad.write_bytes(b"gut\nschl\xe4ft\n")
    refused(tfm_eval("--test", tiny_corpus, "--hypotheses", bad), "bad.de, line 2, byte 5")


@pytest.mark.parametrize("missing", ["hypotheses", "test", "model"])
def test_missing_files_are_named(
    tfm_eval: Tfm, tiny_corpus: str, tmp_path: Path, missing: str
) -> None:
    gone = str(tmp_path / "gone")
    arguments: dict[str, list[Any]] = {
        "hypotheses": ["--test", tiny_corpus, "--hypotheses", gone],
        "test": ["--test", gone, "--hypotheses", f"{tiny_corpus}.de"],
        "model": [gone, "--test", tiny_corpus],
    }
    refused(tfm_eval(*arguments[missing]), "gone")


def test_a_test_set_is_checked_before_anything_is_translated(
    tfm_eval: Tfm, tiny_model: Path, tiny_corpus: str, tmp_path: Path, monkeypatch: Any
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("loaded the model")

    monkeypatch.setattr(Translator, "load", never)
    german = Path(f"{tiny_corpus}.de")
    lines = german.read_text(encoding="utf-8").splitlines()
    german.write_text("\n".join([*lines[:3], " ", *lines[4:]]), encoding="utf-8")
    output = tmp_path / "out"
    refused(tfm_eval(tiny_model, "--test", tiny_corpus, "-o", output), "pair 4", "blank")
    german.write_text("\n".join(lines[:4]), encoding="utf-8")
    refused(tfm_eval(tiny_model, "--test", tiny_corpus, "-o", output), "4", "6")
    assert not output.exists()


def test_a_place_that_cannot_be_written_is_found_before_translating(
    tfm_eval: Tfm, tiny_model: Path, tiny_corpus: str, tmp_path: Path, monkeypatch: Any
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("translated")

    monkeypatch.setattr(Translator, "stream", never)
    output = tmp_path / "no" / "such" / "out"
    code, out, err = tfm_eval(tiny_model, "--test", tiny_corpus, "--device", "cpu", "-o", output)
    assert code == 1 and out == "" and "cannot be written" in err


def test_blank_pairs_are_lines_like_any_other(
    tfm_eval: Tfm, tiny_model: Path, tmp_path: Path
) -> None:
    for language, text in (("en", "A dog.\n\nA cat.\n"), ("de", "Ein Hund.\n\nEine Katze.\n")):
        (tmp_path / f"gaps.{language}").write_text(text)
    output = tmp_path / "out"
    flags = ["--test", tmp_path / "gaps", "-o", output, "--device", "cpu"]
    code, out, _ = tfm_eval(tiny_model, *flags)
    assert code == 0 and out.startswith("3 pairs")
    assert output.read_text().split("\n")[1] == "" and output.read_text().count("\n") == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--test", "x"],
        ["MODEL"],
        ["--test", "x", "--hypotheses", "y", "-o", "z"],
    ],
)
def test_wrong_usage_is_told_apart(tfm_eval: Tfm, arguments: list[str]) -> None:
    code, out, err = tfm_eval(*arguments)
    assert code == 2 and out == "" and re.search(r"tfm eval --help", err)
