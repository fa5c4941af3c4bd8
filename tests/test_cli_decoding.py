"""Each flag of `[decoding]` reaches the search, of every verb that searches."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfm.cli.decoding import DECODING_FLAGS
from tfm.cli.main import main
from tfm.model import Translator

TEXTS = ["A dog runs.", "The woman reads a book.", "I do not see the house."]
FLAGS: dict[str, list[object]] = {  # each by itself changes translations or scores
    "min_length": ["--min-length", 40],
    "no_repeat_ngram": ["--no-repeat-ngram", 1],
    "repetition_penalty": ["--repetition-penalty", 1.5],
    "coverage_penalty": ["--coverage-penalty", 0.5],
    "beam_groups": ["--beam-groups", 5],
    "diversity": ["--diversity", 50],
    "sampling": ["--sampling"],
    "temperature": ["--temperature", 0.5],
    "top_k": ["--top-k", 1],
    "top_p": ["--top-p", 0.1],
    "epsilon": ["--epsilon", 0.05],
    "sampling_seed": ["--sampling-seed", 2],
}
BASES: dict[str, list[object]] = dict.fromkeys(  # what else a flag needs
    ["temperature", "top_k", "top_p", "epsilon", "sampling_seed"], ["--sampling"]
)
BASES["diversity"] = ["--beam-groups", 5, "--n-best", 5]
Run = Callable[..., list[str]]


@pytest.fixture
def translate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> Run:
    """Run `tfm translate` on TEXTS; return its lines, which have the scores."""

    def run(*flags: object) -> list[str]:
        stdin = io.BytesIO("".join(f"{text}\n" for text in TEXTS).encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        scores = [] if "--n-best" in flags else ["--scores"]
        arguments = ["translate", tiny_model, "--device", "cpu", *scores, *flags]
        assert main(list(map(str, arguments))) == 0
        return capsys.readouterr().out.removesuffix("\n").split("\n")

    return run


def test_each_flag_has_a_row_in_this_file() -> None:
    assert set(FLAGS) == set(DECODING_FLAGS)


@pytest.mark.parametrize("key", FLAGS)
def test_a_flag_changes_what_comes_out_as_its_setting_does(translate: Run, key: str) -> None:
    base = BASES.get(key, [])
    found = translate(*base, *FLAGS[key])
    assert len(found) in (len(TEXTS), 5 * len(TEXTS))
    assert found != translate(*base)
    name, value = f"decoding.{key}", "true" if key == "sampling" else FLAGS[key][1]
    assert found == translate(*base, f"--set={name}={value}")


def test_eval_has_the_same_flags(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--test", "builtin:2", "--json", "--device", "cpu", "--min-length", "7"]
    assert main(["eval", str(tiny_model), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["decoding"]["min_length"] == 7
    flags[-2:] = ["--max-length", "9"]
    assert main(["eval", str(tiny_model), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["decoding"]["max_length"] == 9
    flags[-2:] = ["--sampling", "--beam", "3"]
    assert main(["eval", str(tiny_model), *flags]) == 1
    assert "--beam 3: does nothing with sampling" in capsys.readouterr().err


def test_a_value_out_of_range_names_its_flag(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(tiny_model), "--min-length", "-1"]) == 2
    assert "--min-length -1: `min_length` must be at least 0" in capsys.readouterr().err


def test_a_score_is_what_translations_were_ranked_by(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    sets = {"repetition_penalty": 2.0, "beam": 4}
    translator.decoding = type(translator.decoding)(**sets, max_length=20)  # type: ignore[arg-type]
    for each in translator.translate_all(TEXTS, n_best=4):
        finished = [c.score for c in each.n_best if not c.truncated]
        assert finished == sorted(finished, reverse=True)
