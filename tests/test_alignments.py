"""Alignments in batches are those of `inspect-attention`, and records have them."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tfm.cli.main import main
from tfm.model import Translator
from tfm.model.checkpoint import LoadedModel
from tfm.model.inspection import inspect_pair
from tfm.model.inspection.alignments import align_all

TEXTS = ["The woman reads a book.", "A dog runs.", "", "I do not see the house, and I sleep."]


@pytest.fixture(scope="module")
def translator(tiny_model_directory: Path) -> Translator:
    return Translator.load(tiny_model_directory, device="cpu")


def test_a_batch_has_the_maps_and_links_of_the_inspector(translator: Translator) -> None:
    translations = translator.translate_all(TEXTS, max_length=12)
    for found, translation in zip(align_all(translator, translations), translations, strict=True):
        if not translation.source:
            assert (found.source, found.target, found.hard) == ([], [], [])
            continue
        report = inspect_pair(
            translator.model, translator.tokenizer, translation.source, translation.ids
        )
        assert found.source == report.source.word_texts
        assert found.target == report.target.word_texts
        assert found.hard == report.alignment
        np.testing.assert_allclose(found.soft, report.selected[:-1], atol=1e-5)
        np.testing.assert_allclose(found.soft.sum(1), 1, atol=1e-5)
    assert len({tuple(found.hard) for found in align_all(translator, translations)}) > 2


def test_words_of_a_text_in_parts_are_counted_through(translator: Translator) -> None:
    translator.warn = str
    one = "A dog runs."
    count = translator.limit // len(translator.tokenizer.encode_source(one)) + 2
    long = translator.translate_all([" ".join([one] * count)], max_length=12)
    (part,) = {part.text for part in long[0].parts[:1]}
    (first,) = align_all(translator, translator.translate_all([part], max_length=12))
    (whole,) = align_all(translator, long)
    assert len(whole.source) == 4 * count and len(long[0].parts) > 1
    assert whole.hard[: len(first.hard)] == first.hard
    beyond = [link for link in whole.hard if link.target >= len(first.target)]
    assert beyond and all(link.source >= len(first.source) for link in beyond)
    np.testing.assert_allclose(whole.soft.sum(1), 1, atol=1e-5)


def test_an_ensemble_aligns_by_the_mean(tiny_model_directory: Path, translator: Translator) -> None:
    twice = Translator.load(tiny_model_directory, ensemble=[tiny_model_directory], device="cpu")
    for weight in twice.models[1].decoder.parameters():
        weight.data *= 1.5
    translations = translator.translate_all(TEXTS[:2], max_length=12)
    (one, *_), (both, *_) = align_all(translator, translations), align_all(twice, translations)
    loaded = LoadedModel(twice.models[1], twice.tokenizer, twice.settings)
    other = Translator(loaded, twice.plan)
    (second, *_) = align_all(other, translations)
    assert not np.allclose(one.soft, both.soft)
    np.testing.assert_allclose(both.soft, (one.soft + second.soft) / 2, atol=1e-5)


def test_records_have_an_alignment_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_model_directory: Path,
    translator: Translator,
) -> None:
    def run(*flags: str) -> list[dict]:
        stdin = io.BytesIO("".join(f"{text}\n" for text in TEXTS).encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        command = ["translate", str(tiny_model_directory), "--device", "cpu", "--json", *flags]
        assert main(command) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    plain, aligned = run(), run("--alignment")
    assert all("alignment" not in each for each in plain)
    assert [{k: v for k, v in each.items() if k != "alignment"} for each in aligned] == plain
    for each, found in zip(
        aligned, align_all(translator, translator.translate_all(TEXTS)), strict=True
    ):
        assert each["alignment"]["source"] == found.source
        assert each["alignment"]["hard"] == [[link.source, link.target] for link in found.hard]
        soft = np.array(each["alignment"]["soft"]).reshape(found.soft.shape)
        np.testing.assert_allclose(soft, found.soft, atol=6e-5)
    assert main(["translate", str(tiny_model_directory), "--alignment"]) == 2
    assert "add --json" in capsys.readouterr().err
