"""Each setting of `[decoding]`, and each option that says where and how to run, does something."""

import io
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.main import main
from tfm.data.errors import CheckpointError
from tfm.model import Translator
from tfm.model.search.ensemble import Ensemble
from tfm.model.search.scorer import Scorer
from tfm.model.settings import DecodingSettings

TEXTS = ["A dog runs.", "The woman reads a book.", "I do not see the house."]
CHANGES: dict[str, Any] = {  # of each setting, a value that shows
    "beam": 1,
    "length_penalty": 0.0,
    "max_length": 3,
    "max_length_ratio": 0.1,
    "min_length": 40,
    "batch_tokens": 60,
    "no_repeat_ngram": 1,
    "repetition_penalty": 1.5,
    "coverage_penalty": 0.5,
    "beam_groups": 5,
    "diversity": 50.0,
    "sampling": True,
    "temperature": 0.5,
    "top_k": 1,
    "top_p": 0.1,
    "epsilon": 0.05,
    "sampling_seed": 2,
    "mbr": "chrf",
}
NEEDS: dict[str, dict[str, Any]] = dict.fromkeys(
    ["temperature", "top_k", "top_p", "epsilon", "sampling_seed"], {"sampling": True}
)
NEEDS["diversity"] = {"beam_groups": 5}
ONLY_SET = ("max_length_ratio", "batch_tokens")  # have no flag of their own
VERBS = {
    "translate": [],
    "eval": ["--test", "builtin:2"],
    "score": ["--test", "builtin:2"],
}


def test_each_setting_has_a_row_in_this_file() -> None:
    assert set(CHANGES) == {field.name for field in fields(DecodingSettings)}


@pytest.mark.parametrize("key", [key for key in CHANGES if key != "batch_tokens"])
def test_a_setting_changes_what_is_found(tiny_model: Path, key: str) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    without = replace(translator.decoding, **NEEDS.get(key, {}))
    found = []
    for decoding in (without, replace(without, **{key: CHANGES[key]})):
        translator.decoding = decoding
        translations = translator.translate_all(TEXTS, n_best=1 if key == "beam" else 5)
        found.append([[(c.ids, c.score) for c in each.n_best] for each in translations])
    assert found[0] != found[1]


def test_a_batch_has_no_more_than_batch_tokens(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[int]] = []
    start = Ensemble.start

    def watch(self: Ensemble, sources: Sequence[Sequence[int]]) -> Scorer:
        batches.append([len(source) for source in sources])
        return start(self, sources)

    monkeypatch.setattr(Ensemble, "start", watch)
    translator = Translator.load(tiny_model, device="cpu")
    for budget in (9999, 60, 1):
        batches.clear()
        translator.decoding = replace(translator.decoding, beam=2, batch_tokens=budget)
        translator.translate(TEXTS * 3, max_length=2)
        assert sum(map(len, batches)) == 9
        assert all(len(each) == 1 or 2 * max(each) * len(each) <= budget for each in batches)
        assert len(batches) == {9999: 1, 1: 9}.get(budget, len(batches))


def test_the_longest_is_the_least_of_both_limits_and_no_less_than_the_minimum() -> None:
    for length, ratio, least, longest in (
        (256, 2.0, 0, 26),
        (256, 0.5, 0, 14),
        (12, 2.0, 0, 12),
        (256, 0.5, 20, 20),
    ):
        limits = {"max_length": length, "max_length_ratio": ratio, "min_length": least}
        assert DecodingSettings(**limits).longest(8) == longest


def open_lines(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()))


class Stop(CheckpointError):
    """Ends a verb where it has come as far as a test wants."""


@pytest.mark.parametrize("verb", ["translate", "eval"])
@pytest.mark.parametrize("key", CHANGES)
def test_a_verb_searches_as_its_flags_say(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, verb: str, key: str
) -> None:
    seen: list[DecodingSettings] = []

    def search(self: Translator, *_: Any, **options: Any) -> None:
        # Options of a call would stand above the settings.
        assert not any(value for name, value in options.items() if name != "n_best")
        seen.append(self.decoding)
        raise Stop("far enough")

    monkeypatch.setattr(Translator, "translate_all", search)
    flags = [f"--set=decoding.{name}=true" for name in NEEDS.get(key, {}) if name == "sampling"]
    flags += [f"--beam-groups={n}" for name, n in NEEDS.get(key, {}).items() if name != "sampling"]
    name, value = key.replace("_", "-"), CHANGES[key]
    if key in ONLY_SET:
        flags.append(f"--set=decoding.{key}={value}")
    else:
        flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    monkeypatch.setattr("sys.stdin", open_lines("A dog runs.\n"))
    assert main([verb, str(tiny_model), *VERBS[verb], "--device", "cpu", *flags]) == 1
    own = Translator.load(tiny_model, device="cpu").decoding
    assert seen == [replace(own, **NEEDS.get(key, {}), **{key: value})] != [own]


@pytest.mark.parametrize("verb", VERBS)
def test_where_and_how_to_run_reaches_the_translator(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    seen: dict[str, Any] = {}

    def load(path: Path, **options: Any) -> None:
        seen.update(options, path=path)
        raise Stop("far enough")

    monkeypatch.setattr(Translator, "load", load)
    flags = ["--device", "cuda:7", "--precision", "fp16", "--attention", "flash"]
    flags += ["--ensemble", "one", "--ensemble", "two"]
    quantize = [] if verb == "score" else ["--quantize", "int8"]
    assert main([verb, str(tiny_model), *VERBS[verb], *flags, *quantize]) == 1
    assert seen == {
        "path": tiny_model,
        "device": "cuda:7",
        "precision": "fp16",
        "attention": "flash",
        "ensemble": [Path("one"), Path("two")],
        "quantize": "int8" if quantize else "none",
    }


@pytest.mark.parametrize("verb", VERBS)
def test_debug_shows_where_an_error_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    command = [verb, str(tmp_path / "none"), *VERBS[verb]]
    assert main(command) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert main([*command, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_scores_go_to_a_file_and_follow_what_is_set(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["score", str(tiny_model), "--test", "builtin:2", "--device", "cpu"]
    assert main(command) == 0
    plain = capsys.readouterr().out
    assert main([*command, "-o", str(tmp_path / "scores")]) == 0
    assert capsys.readouterr().out == "" and (tmp_path / "scores").read_text() == plain
    assert main([*command, "--set", "decoding.length_penalty=0"]) == 0
    unnormalised = capsys.readouterr().out
    assert main([*command, "--length-penalty", "0"]) == 0
    assert unnormalised == capsys.readouterr().out != plain


@pytest.mark.parametrize("flags", [["--beam", "3"], ["--sampling"], ["--mbr", "chrf"]])
def test_what_searches_is_refused_where_a_file_is_scored(
    tiny_corpus: str, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    run = ["eval", "--test", tiny_corpus, "--hypotheses", f"{tiny_corpus}.de"]
    assert main([*run, *flags]) == 2
    assert f"{flags[0]} is for translating" in capsys.readouterr().err
