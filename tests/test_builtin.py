"""The built-in corpus: its splits, its alignments, and rules that hold in every sentence."""

import os
import re
import subprocess
import sys
from itertools import islice

import pytest

from tfm.data.builtin import BuiltinPair, builtin_pairs
from tfm.data.builtin.corpus import MAXIMUM_COUNTS, Drawn, draw_split, home_of
from tfm.data.builtin.meaning import combinations
from tfm.data.builtin.nouns import NOUN
from tfm.data.builtin.verbs import VERB
from tfm.data.errors import DataError
from tfm.data.words import word_spans

SPLITS = ("train", "valid", "test")
DEFAULTS = {"train": 20_000, "valid": 500, "test": 500}
DRAWN = {"train": 30_000, "valid": 2_000, "test": 2_000}


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_spans(text)]


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Drawn]]:
    return {split: list(islice(draw_split(split), count)) for split, count in DRAWN.items()}


@pytest.fixture(scope="module")
def corpus(drawn) -> dict[str, list[BuiltinPair]]:
    return {split: [item.pair for item in items] for split, items in drawn.items()}


@pytest.fixture(scope="module")
def everything(corpus) -> list[BuiltinPair]:
    return [pair for split in SPLITS for pair in corpus[split]]


# ---- splits ----


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_has_its_default_number_of_distinct_pairs(split):
    pairs = builtin_pairs(split)
    assert len(pairs) == len({pair.source for pair in pairs}) == DEFAULTS[split]


@pytest.mark.parametrize("split", SPLITS)
def test_a_shorter_list_is_the_beginning_of_a_longer_one(split, corpus):
    assert builtin_pairs(split) == corpus[split][: DEFAULTS[split]]
    assert builtin_pairs(split, 10) == corpus[split][:10]


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_with_another_hash_seed_draws_the_same_pairs(hash_seed, corpus):
    code = "from tfm.data.builtin import builtin_pairs; print(ascii(builtin_pairs('train', 500)))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert result.stdout.strip() == ascii(corpus["train"][:500])


@pytest.mark.parametrize("split", SPLITS)
def test_a_count_outside_the_split_is_refused_with_its_maximum(split):
    for count in (-1, 0, MAXIMUM_COUNTS[split] + 1):
        with pytest.raises(DataError, match=f"{split}.*{MAXIMUM_COUNTS[split]}"):
            builtin_pairs(split, count)


def test_one_english_sentence_has_one_translation(everything):
    translations: dict[str, str] = {}
    for pair in everything:
        assert translations.setdefault(pair.source, pair.target) == pair.target


def test_splits_share_no_sentence(corpus):
    train, valid, test = ({pair.source for pair in corpus[split]} for split in SPLITS)
    assert not train & valid and not train & test and not valid & test


@pytest.mark.parametrize("split", ["valid", "test"])
def test_every_held_out_pair_has_a_combination_that_train_never_has(split, drawn):
    known = {held for item in drawn["train"] for held in combinations(item.meaning)}
    for item in drawn[split]:
        assert set(combinations(item.meaning)) - known, item.pair


def test_one_combination_in_sixteen_is_held_out_for_each_of_valid_and_test():
    homes = [home_of(("object", verb, noun)) for verb in VERB for noun in NOUN]
    for split in ("valid", "test"):
        assert 1 / 20 < homes.count(split) / len(homes) < 1 / 13


@pytest.mark.parametrize("side", ["source", "target"])
def test_every_word_form_of_the_held_out_splits_occurs_in_train(side, corpus):
    train = corpus["train"][: DEFAULTS["train"]]
    known = {word for pair in train for word in words(getattr(pair, side))}
    for pair in (*corpus["valid"], *corpus["test"]):
        assert known.issuperset(words(getattr(pair, side))), pair


@pytest.mark.parametrize("side, limit", [("source", 450), ("target", 720)])
def test_sentences_are_short_and_the_vocabulary_is_small(side, limit, corpus):
    sentences = [words(getattr(pair, side)) for pair in corpus["train"]]
    assert len({word for sentence in sentences for word in sentence}) < limit
    usual = sum(4 <= len(sentence) <= 14 for sentence in sentences)
    assert usual > 0.95 * len(sentences)


# ---- alignments ----


def test_alignments_are_sorted_valid_and_cover_nine_words_in_ten(everything):
    totals, covered = [0, 0], [0, 0]
    for pair in everything:
        sides = words(pair.source), words(pair.target)
        assert list(pair.alignment) == sorted(set(pair.alignment))
        for side in (0, 1):
            positions = {link[side] for link in pair.alignment}
            assert positions <= set(range(len(sides[side])))
            totals[side] += len(sides[side])
            covered[side] += len(positions)
    assert covered[0] >= 0.9 * totals[0] and covered[1] >= 0.9 * totals[1]


# ---- rules over the whole corpus ----


def test_sentences_begin_with_a_capital_and_end_with_a_mark(everything):
    for pair in everything:
        assert pair.source[-1] == pair.target[-1] and pair.source[-1] in ".?"
        assert pair.source[0].isupper() and pair.target[0].isupper()
        assert "  " not in pair.source + pair.target


def test_an_stands_before_vowels_and_a_before_consonants(everything):
    for pair in everything:
        for article, following in re.findall(r"\b([Aa]n?) (\w)", pair.source):
            assert (article.lower() == "an") == (following in "aeiou"), pair.source


def finite_forms() -> set[str]:
    """Every finite form that can close a German clause, prefixes attached."""
    forms = set()
    for verb in VERB.values():
        for conjugation in (verb.present, verb.preterite):
            if conjugation is not None:
                finite = (conjugation.first, conjugation.second, conjugation.third)
                forms |= {verb.prefix + form for form in (*finite, conjugation.plural)}
    for auxiliary in ("werde wirst wird werden", "kann kannst können", "muss musst müssen"):
        forms |= set(auxiliary.split())
    forms |= set("sollte solltest sollten will willst wollen".split())
    return forms


def test_the_finite_verb_closes_every_subordinate_clause(everything):
    finite = finite_forms()
    clause = re.compile(r"\b(?:[Ww]eil|[Oo]bwohl|[Ww]enn|dass) ([^,.?]+)[,.?]")
    found = 0
    for pair in everything:
        for match in clause.finditer(pair.target):
            found += 1
            assert match[1].split()[-1] in finite, pair.target
    assert found > 5_000


def test_a_comma_goes_before_every_subordinate_conjunction_within_a_sentence(everything):
    for pair in everything:
        assert not re.search(r"[^,] (weil|obwohl|wenn|dass|aber)\b", pair.target), pair.target


def test_the_finite_verb_follows_a_fronted_time(everything):
    finite = {form for form in finite_forms()} | {verb.present.third for verb in VERB.values()}
    for verb in VERB.values():
        present = verb.present
        finite |= {present.first, present.second, present.plural}
    fronted = re.compile(
        r"^(?:Heute|Gestern|Morgen|Jetzt|Am \w+|Jeden Tag|Letzte Woche|Nächste Woche) (\w+)"
    )
    found = 0
    for pair in everything:
        if match := fronted.match(pair.target):
            found += 1
            assert match[1] in finite, pair.target
    assert found > 1_000


def test_weak_nouns_are_bare_only_in_the_nominative(everything):
    after_oblique = (
        r"\b(den|dem|einen|einem|diesen|diesem|\w+en|\w+em) (Junge|Student|Nachbar|Hase)\b"
    )
    for pair in everything:
        assert not re.search(after_oblique, pair.target), pair.target


def test_german_nouns_and_only_they_are_capitalised_within_a_sentence(everything):
    nouns = {"Tag", "Woche", "Abend", "Montag", "Sonntag"}
    for noun in NOUN.values():
        nouns |= {noun.german, noun.german_oblique, noun.german_plural, noun.german_dative_plural}
    for pair in everything:
        for word in words(pair.target)[1:]:
            assert (word in nouns) == word[0].isupper(), pair.target
