"""`tfm bench translate`: it translates all that it says it does, by the search that users run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.data.tokenizer import EOS, Tokenizer
from tfm.model.benchmarks.translate import Work
from tfm.model.search.beam import beam_search
from tfm.model.settings import DecodingSettings, ModelSettings, Settings

SMALL = ModelSettings(d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=2)
SETTINGS = replace(Settings(), model=SMALL)
LINES = ["A dog runs.", "Two children play.", "No."]
CPU = torch.device("cpu")
ARGUMENTS = ["bench", "translate", "--sentences", "9", "--single", "2"]


def work(settings: Settings = SETTINGS) -> Work:
    return Work.random(settings, None, LINES, device=CPU)


def test_every_translation_has_the_length_that_is_asked_for() -> None:
    forced = work().forced(12)
    speed = forced.measure(forced.prepare("fp32", "auto"), "fp32", 3, single=2)
    assert speed.pieces == 12 * len(LINES)
    assert speed.sentences == len(LINES) and speed.beam == 3
    assert speed.to_json()["sentences_per_s"] == pytest.approx(3 / speed.seconds, rel=0.01)
    assert speed.ms_one_at_a_time > 0


def test_without_a_length_translations_are_those_of_the_search() -> None:
    settings = replace(SETTINGS, decoding=DecodingSettings(max_length=7))
    free = work(settings)
    model = free.prepare("fp32", "auto")
    decoding = replace(settings.decoding, beam=2)
    found = beam_search(model, free.sources, decoding, forbidden=free.forbidden)
    pieces = sum(len(best.token_log_probabilities) for best, *_ in found)
    assert free.measure(model, "fp32", 2, single=1).pieces == pieces


def test_words_and_marks_are_pieces_where_there_is_no_tokenizer() -> None:
    sources = work().sources
    assert [len(ids) for ids in sources] == [5, 5, 3]
    assert all(ids[-1] == EOS and EOS not in ids[:-1] for ids in sources)
    assert sources == work().sources


def test_precisions_are_of_the_arithmetic_and_leave_the_network_as_it_is() -> None:
    one = work()
    assert one.prepare("bf16", "auto").network.target_embedding.weight.dtype == torch.bfloat16
    assert one.prepare("fp32", "auto").network.target_embedding.weight.dtype == torch.float32


def test_the_command_prints_a_table_or_json(run_tfm: Callable[..., Any]) -> None:
    small = ["--set", "model.d_model=32", "--set", "tokenizer.vocab_size=300", "--length", "4"]
    done = run_tfm(*ARGUMENTS, *small, "--json")
    assert done.code == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["network"]["d_model"] == 32 and figures["vocabulary"] == 300
    measured = [(row["precision"], row["beam"]) for row in figures["rows"]]
    assert measured == [("fp32", 5), ("fp32", 1), ("bf16", 5), ("bf16", 1)]
    assert all(row["sentences"] == 9 and row["pieces"] == 36 for row in figures["rows"])

    done = run_tfm(*ARGUMENTS, *small, "--beams", "2", "--precisions", "fp32")
    first, second = done.stdout.decode().splitlines()
    assert first.split()[:3] == ["precision", "beam", "sentences/s"]
    assert second.split()[:2] == ["fp32", "2"]


def test_a_model_directory_translates_lines_of_a_file(
    run_tfm: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("A dog runs.\n\nThe cat sleeps.\n", encoding="utf-8")
    figures = json.loads(run_tfm(*ARGUMENTS, tiny_model, "--input", lines, "--json").stdout)
    assert figures["length"] is None and figures["model"] == str(tiny_model)
    assert {row["sentences"] for row in figures["rows"]} == {2}, "blank lines are not translated"
    tokenizer = Tokenizer.load(tiny_model / "tokenizer.model")
    counts = [len(tokenizer.encode_source(t)) + 1 for t in ("A dog runs.", "The cat sleeps.")]
    assert figures["pieces_per_source"] == sum(counts) / 2

    done = run_tfm(*ARGUMENTS, tiny_model, "--tokenizer", tiny_model / "tokenizer.model")
    assert done.code == 2 and "random weights" in done.stderr
