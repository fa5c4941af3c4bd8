"""Minimum Bayes risk: the translation that agrees best with the others, by sacrebleu's chrF."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from tfm.cli.main import main
from tfm.data.errors import SettingsError
from tfm.model import Translator
from tfm.model.search.beams import Hypothesis
from tfm.model.search.mbr import chrf_table, rank, rerank
from tfm.model.translation import Candidate

TEXTS = ["The woman reads a book.", "A dog runs.", "", "I do not see the house."]
SACREBLEU = CHRF()


def chrf(text: str, reference: str) -> float:
    return SACREBLEU.sentence_score(text, [reference]).score


def expected(texts: Sequence[str], weights: Sequence[float]) -> list[float]:
    """Return the expected chrF of each text by its definition, repeated texts included."""
    pairs = list(zip(texts, weights, strict=True))
    return [sum(w * chrf(text, other) for other, w in pairs) / sum(weights) for text in texts]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.text(st.sampled_from("aab 😀\u3000\x85é."), max_size=14), min_size=1, max_size=5)
)
def test_the_utility_is_sacrebleus_to_the_last_bit(texts: list[str]) -> None:
    assert chrf_table(texts).tolist() == [[chrf(y, r) for r in texts] for y in texts]


def test_the_utility_is_sacrebleus_for_sentences() -> None:
    texts = [
        "Ein Hund rennt durch den Park.",
        "Ein Hund läuft durch einen Park.",
        "Der Hund rennt im Park .",
        "",
        "Zwei Kinder spielen im Garten, und eine Frau liest ein Buch.",
        "ha" * 300,
        "\ud800 half a pair",
    ]
    assert chrf_table(texts).tolist() == [[chrf(y, r) for r in texts] for y in texts]


def test_the_best_agrees_best_with_all() -> None:
    texts = ["x y z", "Ein Hund rennt.", "Ein Hund läuft.", "Der Hund rennt."]
    for weights in ([1.0, 1.0, 1.0, 1.0], [5.0, 0.5, 0.1, 0.0]):
        utilities = expected(texts, weights)
        ranked = rank(texts, weights)
        order = sorted(range(4), key=lambda i: -utilities[i])
        assert [each.place for each in ranked] == order
        assert [each.utility for each in ranked] == pytest.approx(
            [utilities[i] for i in order], rel=1e-12
        )
    assert rank(texts, [1.0] * 4)[0].place == 1
    assert rank(texts, [5.0, 0.5, 0.1, 0.0])[0].place == 0


def test_a_text_that_is_there_twice_is_one_candidate_and_counts_twice() -> None:
    texts = ["Ein Hund.", "Eine Katze.", "Ein Hund.", "Ein Haus.", "Ein Haus.", "Ein Haus."]
    ranked = rank(texts, [1.0] * len(texts))
    assert {each.place for each in ranked} == {0, 1, 3}
    counts = Counter(texts)
    again = rank(list(counts), [float(n) for n in counts.values()])
    assert [each.utility for each in ranked] == [each.utility for each in again]
    utilities = expected(texts, [1.0] * len(texts))
    for place, utility in ranked:
        assert utility == pytest.approx(utilities[place], rel=1e-12)


def test_of_equals_the_earlier_one_comes_first() -> None:
    for texts in (["ab", "ba"], ["ba", "ab"], ["", " "]):
        assert [each.place for each in rank(texts, [0.3, 0.3])] == [0, 1]
    texts = ["cab", "bca", "abc", "acb", "bac"]  # each pair shares all letters and some pairs
    found = {texts[place]: utility for place, utility in rank(texts, [0.1] * 5)}
    turned = texts[::-1]
    assert {turned[place]: utility for place, utility in rank(turned, [0.1] * 5)} == found


def hypothesis(log_probability: float, *, truncated: bool = False) -> Hypothesis:
    return Hypothesis([5], log_probability, log_probability / 2, truncated, [log_probability])


def test_hypotheses_of_a_beam_count_by_their_probability() -> None:
    texts = ["Ein Hund rennt.", "Ein Hund läuft.", "Katzen"]
    hypotheses = [hypothesis(math.log(p)) for p in (0.02, 0.01, 0.5)]
    chosen = rerank(hypotheses, texts)
    assert chosen[0].hypothesis is hypotheses[2]
    utilities = expected(texts, [0.02, 0.01, 0.5])
    assert chosen[0].utility == pytest.approx(utilities[2])
    tiny = [hypothesis(h.log_probability - 5000) for h in hypotheses]  # exp of that is 0
    assert rerank(tiny, texts)[0].utility == pytest.approx(utilities[2])


def test_samples_count_alike_and_as_often_as_they_were_drawn() -> None:
    texts = ["Ein Hund rennt.", "Katzen", "Ein Hund rennt."]
    hypotheses = [hypothesis(math.log(p)) for p in (0.01, 0.9, 0.01)]
    first, second = rerank(hypotheses, texts, sampled=True)
    assert (first.hypothesis, second.hypothesis) == (hypotheses[0], hypotheses[1])
    assert first.utility == pytest.approx(expected(texts, [1.0, 1.0, 1.0])[0])
    assert rerank(hypotheses, texts)[0].hypothesis is hypotheses[1]


def test_hypotheses_that_were_cut_count_only_where_none_is_finished() -> None:
    texts = ["ja ja ja", "ja ja j", "nein"]
    hypotheses = [
        hypothesis(-0.1, truncated=True),
        hypothesis(-0.2, truncated=True),
        hypothesis(-9.0),
    ]
    assert [choice.hypothesis for choice in rerank(hypotheses, texts)] == [hypotheses[2]]
    assert len(rerank(hypotheses[:2], texts[:2])) == 2


def best_by_hand(candidates: Sequence[Candidate]) -> tuple[str, float]:
    finished = [each for each in candidates if not each.truncated] or list(candidates)
    texts = [each.text for each in finished]
    utilities = expected(texts, [math.exp(each.log_probability) for each in finished])
    best = max(range(len(texts)), key=lambda i: utilities[i])
    return texts[best], utilities[best]


def test_a_translator_takes_the_best_of_the_whole_beam(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    options = {"beam": 6, "max_length": 12}
    lists = translator.translate_all(TEXTS, n_best=6, **options)
    found = translator.translate_all(TEXTS, mbr="chrf", **options)
    for text, plain, chosen in zip(TEXTS, lists, found, strict=True):
        if not text:
            assert (chosen.text, chosen.utility) == ("", None)
            continue
        by_hand, utility = best_by_hand(plain.n_best)
        assert chosen.text == by_hand
        assert chosen.utility == pytest.approx(utility)
        (same,) = [each for each in plain.n_best if each.ids == chosen.ids]
        assert (chosen.score, chosen.log_probability) == (same.score, same.log_probability)
    assert list(translator.stream([TEXTS], mbr="chrf", **options)) == [found]
    assert [each.text for each in found] != [each.text for each in lists]
    assert all(candidate.utility is None for each in lists for candidate in each.n_best)


def test_the_n_best_are_distinct_and_their_number_changes_nothing(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    options = {"beam": 6, "max_length": 12, "mbr": "chrf"}
    for count in (1, 3, 6):
        for each in translator.translate_all(TEXTS, n_best=count, **options):
            (alone,) = translator.translate_all([each.source], **options)
            assert each.text == alone.text
            texts = [candidate.text for candidate in each.n_best]
            assert len(texts) == len(set(texts)) <= count
            utilities = [c.utility for c in each.n_best if c.utility is not None]
            assert utilities == sorted(utilities, reverse=True)
    with pytest.raises(SettingsError, match=r"at most `beam` \(6\), but is 7"):
        translator.translate_all(TEXTS, n_best=7, **options)
    with pytest.raises(SettingsError, match="`mbr` must be .*chrf"):
        translator.translate(TEXTS, mbr="bleu")


def test_parts_of_a_long_text_are_chosen_one_by_one(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    translator.warn = str
    options = {"beam": 4, "max_length": 12, "mbr": "chrf"}
    part = "The woman reads a book, and I do not see the house."
    (alone,) = translator.translate_all([part], **options)
    (whole,) = translator.translate_all([" ".join([part] * 12)], **options)
    assert len(whole.ids) > 2 * len(alone.ids)
    assert whole.utility is not None and 0 < whole.utility <= 100


def test_the_verbs_take_the_option(
    tiny_model: Path, tiny_corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    sources = Path(f"{tiny_corpus}.en").read_text(encoding="utf-8").splitlines()
    wanted = translator.translate_all(sources, beam=6, mbr="chrf")
    texts = [each.text for each in wanted]
    assert texts != translator.translate(sources, beam=6)
    flags = ["--beam", "6", "--mbr", "chrf", "--device", "cpu"]
    run = ["translate", str(tiny_model), "--input", f"{tiny_corpus}.en", "--json", *flags]
    assert main(run) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["translation"] for row in rows] == texts
    assert [row["utility"] for row in rows] == [each.utility for each in wanted]
    output = tmp_path / "out"
    run = ["eval", str(tiny_model), "--test", tiny_corpus, "--json", "-o", str(output), *flags]
    assert main(run) == 0
    assert json.loads(capsys.readouterr().out)["decoding"]["mbr"] == "chrf"
    assert output.read_text(encoding="utf-8").splitlines() == texts
    assert main(["translate", str(tiny_model), "--mbr", "bleu"]) == 2
