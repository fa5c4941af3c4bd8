"""Scores equal sacrebleu's own, and carry the conditions that they hold under."""

import pytest
import sacrebleu

from tfm.data.errors import DataError
from tfm.model.evaluation import Scores, looks_tokenized, score

REFERENCES = [
    "Ein Mann fährt ein rotes Fahrrad.",
    "Die Katze schläft auf dem alten Sofa.",
    "Zwei Kinder spielen heute im Garten.",
]
HYPOTHESES = [
    "ein Mann fährt ein rotes Fahrrad.",
    "Die Katze schläft auf dem Sofa.",
    "Zwei Kinder spielen in einem Garten.",
]


@pytest.fixture(scope="module")
def scores() -> Scores:
    return score(HYPOTHESES, REFERENCES)


def test_figures_are_those_of_sacrebleu(scores: Scores) -> None:
    references = [REFERENCES]
    lowercase = sacrebleu.corpus_bleu(HYPOTHESES, references, lowercase=True)
    expected = {
        "bleu": sacrebleu.corpus_bleu(HYPOTHESES, references),
        "bleu_lowercase": lowercase,
        "chrf": sacrebleu.corpus_chrf(HYPOTHESES, references),
        "ter": sacrebleu.corpus_ter(HYPOTHESES, references),
    }
    for name, theirs in expected.items():
        assert getattr(scores, name).value == pytest.approx(theirs.score, abs=1e-4), name
    assert 0 < scores.bleu.value < 100


def test_lower_casing_forgives_exactly_case() -> None:
    scores = score([text.upper() for text in REFERENCES], REFERENCES)
    assert scores.bleu_lowercase.value == pytest.approx(100)
    assert scores.bleu.value < 10


def test_every_score_has_its_signature(scores: Scores) -> None:
    version = f"version:{sacrebleu.__version__}"
    assert scores.bleu.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert scores.bleu_lowercase.signature == scores.bleu.signature.replace("mixed", "lc")
    assert scores.chrf.signature.startswith("nrefs:1|") and version in scores.chrf.signature
    assert scores.ter.signature.startswith("nrefs:1|") and version in scores.ter.signature


def test_json_holds_what_the_table_shows(scores: Scores) -> None:
    document = scores.to_json()
    lines = scores.table().splitlines()
    assert lines[0] == "3 pairs" and document["segments"] == 3
    assert lines[-1] == f"BLEU = {document['bleu']['value']:.1f}"
    for name in ("bleu", "bleu_lowercase", "chrf", "ter"):
        assert document[name]["signature"] in scores.table()


def test_unequal_counts_are_refused_with_both_counts() -> None:
    with pytest.raises(DataError, match=r"2 lines, but the test set has 3 pairs"):
        score(HYPOTHESES[:2], REFERENCES)


@pytest.mark.parametrize("references", [[], ["", " "]])
def test_nothing_to_compare_with_is_refused(references: list[str]) -> None:
    with pytest.raises(DataError, match="no reference"):
        score([""] * len(references), references)


def test_a_blank_pair_costs_nothing() -> None:
    assert score(["", *REFERENCES], ["", *REFERENCES]).bleu.value == pytest.approx(100)


def test_tokenised_text_is_noticed() -> None:
    assert looks_tokenized(["Ein Hund .", "Eine Katze ."])
    assert not looks_tokenized(REFERENCES)
    assert not looks_tokenized([])
