"""`tfm score`: what a model makes of translations that are given to it."""

import json
import math
from pathlib import Path

import pytest
import torch

from tfm.cli.main import main
from tfm.cli.score import _summary
from tfm.data.corpus import Pair
from tfm.data.errors import CheckpointError
from tfm.data.tokenizer import BOS, EOS
from tfm.model import Translator
from tfm.model.attention.padding import Padding
from tfm.model.forced import Totals, score_pairs

TEXTS = ["A dog runs.", "The woman reads a book.", "I", "Two children play in the garden."]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "t.en").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    targets = ["Ein Hund rennt.", "", "Ich", "Zwei Kinder spielen im Garten."]
    (tmp_path / "t.de").write_text("".join(f"{text}\n" for text in targets), encoding="utf-8")
    return str(tmp_path / "t")


def run(
    capsys: pytest.CaptureFixture[str], model: Path, corpus: str, *flags: str
) -> tuple[int, str, str]:
    code = main(["score", str(model), "--test", corpus, "--device", "cpu", *flags])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_each_piece_has_the_probability_that_the_network_gives_it(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    tokenizer, pair = translator.tokenizer, Pair(TEXTS[3], "Zwei Kinder spielen im Garten.")
    ((scored,),) = score_pairs(translator, [[pair]])
    source = torch.tensor([[*tokenizer.encode_source(pair.source), EOS]])
    target = [*tokenizer.encode_target(pair.target), EOS]
    assert scored.tokens == tokenizer.target_pieces(target)
    for t, piece in enumerate(target):  # step by step, from all that comes before
        past = torch.tensor([[BOS, *target[:t]]])
        with torch.no_grad():
            logits = translator.model(source, past, source=Padding.from_lengths([source.shape[1]]))
        log_p = logits[0, -1].log_softmax(-1)[piece].item()
        assert scored.token_log_probabilities[t] == pytest.approx(log_p, rel=1e-4, abs=1e-5)
    assert scored.log_probability == pytest.approx(sum(scored.token_log_probabilities))


def test_a_pair_does_not_depend_on_the_others(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    pairs = [Pair(text, text) for text in [*TEXTS, ""]]
    (together,) = score_pairs(translator, [pairs])
    alone = [scores[0] for scores in score_pairs(translator, [[pair] for pair in pairs])]
    for one, other in zip(together, alone, strict=True):
        assert one.tokens == other.tokens
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, rel=1e-4)


def test_lines_json_and_summary_say_the_same(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, corpus: str
) -> None:
    code, out, err = run(capsys, tiny_model, corpus, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [each["source"] for each in objects] == TEXTS
    for each in objects:
        log_p, n = each["log_probability"], len(each["tokens"])
        assert each["tokens"][-1] == "</s>"
        assert sum(each["token_log_probabilities"]) == pytest.approx(log_p)
        assert each["perplexity"] == pytest.approx(math.exp(-log_p / n))
        assert each["score"] == pytest.approx(log_p / n)
    assert objects[1]["tokens"] == ["</s>"]  # a blank target is still one piece to predict

    lines = run(capsys, tiny_model, corpus, "--tokens")[1].splitlines()
    for line, each in zip(lines, objects, strict=True):
        *numbers, pieces = line.split("\t")
        wanted = [each["score"], each["log_probability"], each["perplexity"]]
        assert [float(number) for number in numbers] == pytest.approx(wanted, abs=1e-3)
        assert [piece.rpartition(":")[0] for piece in pieces.split(" ")] == each["tokens"]

    totals = json.loads(run(capsys, tiny_model, corpus, "--summary", "--json")[1])
    assert totals["pairs"] == 4 and totals["tokens"] == sum(len(e["tokens"]) for e in objects)
    log_p = sum(each["log_probability"] for each in objects)
    assert totals["log_probability"] == pytest.approx(log_p)
    assert totals["perplexity"] == pytest.approx(math.exp(-log_p / totals["tokens"]))
    words = f"perplexity = {totals['perplexity']:.3f}"
    assert words in err and "search" not in err

    code, out, err = run(capsys, tiny_model, corpus, "--summary")
    assert code == 0 and words in out and words not in err  # once, where it was asked for


def test_the_length_penalty_divides_the_score(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, corpus: str
) -> None:
    out = run(capsys, tiny_model, corpus, "--json", "--length-penalty", "0")[1]
    for each in map(json.loads, out.splitlines()):
        assert each["score"] == each["log_probability"]


def test_wrong_use_is_refused_and_long_texts_are_said(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, corpus: str, tmp_path: Path
) -> None:
    assert run(capsys, tiny_model, corpus, "--tokens", "--json")[0] == 2
    code, _, err = run(capsys, tiny_model, str(tmp_path / "none"))
    assert code == 1 and "none" in err.splitlines()[-1]
    translator = Translator.load(tiny_model, device="cpu")
    said: list[str] = []
    translator.warn = said.append
    list(score_pairs(translator, [[Pair("x" * 200, "Ich")], [Pair("I", "x" * 200)]]))
    assert len(said) == 1 and "longer than the model was trained on (128" in said[0]


def test_what_cannot_be_done_is_said_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path, corpus: str
) -> None:
    for language in ("en", "de"):
        (tmp_path / f"empty.{language}").write_text("")
    code, out, err = run(capsys, tiny_model, str(tmp_path / "empty"), "--summary")
    assert (code, out) == (1, "")
    assert "empty: has no pairs to score" in err and "device" not in err
    for verb in ("score", "eval"):
        flags = ["--test", corpus, "--device", "cpu", "-o", f"{corpus}.de"]
        assert main([verb, str(tiny_model), *flags]) == 1
        err = capsys.readouterr().err
        assert "t.de: is read, and would be replaced" in err and "device" not in err
    assert (tmp_path / "t.de").read_text().startswith("Ein Hund rennt.")


def test_one_pair_is_no_pairs(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    for language in ("en", "de"):
        (tmp_path / f"one.{language}").write_text("I\n")
    assert run(capsys, tiny_model, str(tmp_path / "one"), "--summary")[1].startswith("1 pair, ")


def test_no_pairs_have_no_perplexity_but_one() -> None:
    assert Totals().perplexity == 1.0
    beyond = Totals(1, 1, -1e6)
    assert beyond.perplexity == math.inf
    assert json.loads(_summary(beyond, as_json=True))["perplexity"] is None


def test_a_model_that_computes_no_numbers_is_named_as_damaged(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    with torch.no_grad():
        translator.model.decoder[0].feed_forward.outer.bias[3] = math.nan
    with pytest.raises(CheckpointError, match="not numbers: it is damaged"):
        list(score_pairs(translator, [[Pair("I", "Ich")]]))


def test_the_end_of_the_sentence_counts(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    ((blank,),) = score_pairs(translator, [[Pair("I", "")]])
    assert blank.tokens == translator.tokenizer.target_pieces([EOS])
    assert blank.log_probability < 0
