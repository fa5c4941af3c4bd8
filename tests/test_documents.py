"""Built-in documents: whole, correct, and not to be ended without their beginning."""

import re
import subprocess
import sys
from itertools import islice

import pytest

from tfm.data.builtin import builtin_pairs
from tfm.data.builtin.documents import Document, builtin_documents, draw_documents
from tfm.data.corpus import Pair, Split, read_pairs
from tfm.data.errors import DataError
from tfm.data.words import word_spans

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
PRONOUN = {"einen": "ihn", "eine": "sie", "ein": "es"}


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?]) ", text)


@pytest.fixture(scope="module", params=SPLITS)
def split(request) -> Split:
    return request.param


@pytest.fixture(scope="module")
def documents(split: Split) -> list[Document]:
    return builtin_documents(split, 300, sentences=6)


def test_documents_are_distinct_and_have_the_sentences_asked_for(documents):
    assert len({document.pair.source for document in documents}) == 300
    for document in documents:
        assert len(sentences(document.pair.source)) == len(sentences(document.pair.target)) == 6


def test_a_shorter_list_is_the_beginning_of_a_longer_one(documents, split):
    assert builtin_documents(split, 10, sentences=6) == documents[:10]
    assert builtin_documents(split, 5)[0] == next(draw_documents(split, [8]))


def test_the_number_of_sentences_can_be_drawn_for_each_document(split):
    drawn = builtin_documents(split, 300, sentences=3, at_most=6)
    sizes = [len(sentences(document.pair.source)) for document in drawn]
    assert {size: sizes.count(size) > 40 for size in sizes} == dict.fromkeys(range(3, 7), True)
    assert drawn[:20] == builtin_documents(split, 20, sentences=3, at_most=6)


def test_the_last_sentences_take_up_what_the_first_one_introduces(documents):
    """By the words of the German text: ein, eine, einen at the start is es, sie, ihn at the end."""
    for document in documents:
        opening, *_, last_but_one, last = sentences(document.pair.target)
        article = re.fullmatch(r"\w+ \w+ hat (einen?|ein) \w+\.", opening)[1]
        actors = []
        for sentence in (last_but_one, last):
            actor, found = re.fullmatch(r"(\w+ \w+) \w+ (ihn|sie|es)(?: \w+)?\.", sentence).groups()
            assert found == document.pronoun == PRONOUN[article]
            actors.append(actor)
        assert actors[0] != actors[1]
        assert all(" it" in sentence for sentence in sentences(document.pair.source)[-2:])


def test_no_pronoun_is_much_more_frequent_than_the_others(documents):
    for pronoun in PRONOUN.values():
        share = sum(document.pronoun == pronoun for document in documents) / len(documents)
        assert 0.2 < share < 0.45


def test_what_stands_between_is_of_the_same_split(documents, split):
    known = {pair.source: pair.target for pair in builtin_pairs(split)}
    for document in documents:
        sources, targets = (
            sentences(text) for text in (document.pair.source, document.pair.target)
        )
        assert [known[source] for source in sources[1:-2]] == targets[1:-2]


def test_the_alignment_is_that_of_its_sentences(documents):
    for document in documents:
        pair = document.pair
        source, target = (
            [text[a:b] for a, b in word_spans(text)] for text in (pair.source, pair.target)
        )
        linked = {(source[s], target[t]) for s, t in pair.alignment}
        assert ("it", document.pronoun) in linked
        assert list(pair.alignment) == sorted(set(pair.alignment))
        assert (len(source) - 1, len(target) - 1) in pair.alignment  # the last full stops


def test_another_process_draws_the_same(documents, split, environment):
    code = (
        "from tfm.data.builtin.documents import builtin_documents\n"
        f"print(ascii(builtin_documents({split!r}, 20, sentences=6)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == ascii(documents[:20])


def test_they_are_a_corpus_like_any_other(documents, split):
    def read(corpus: str, source: str = "en", target: str = "de") -> list[Pair]:
        return list(islice(read_pairs(corpus, source=source, target=target, split=split), 200))

    pairs = [Pair(document.pair.source, document.pair.target) for document in documents]
    assert read("builtin-documents:20:6") == pairs[:20]
    assert read("builtin-documents:20:6", "de", "en") == [Pair(t, s) for s, t in pairs[:20]]
    assert len(sentences(read("builtin-documents:1")[0].source)) == 8
    drawn = builtin_documents(split, 20, sentences=3, at_most=5)
    assert [p.source for p in read("builtin-documents:20:3-5")] == [d.pair.source for d in drawn]
    assert len(read("builtin-documents")) == {"train": 200, "valid": 100, "test": 200}[split]


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("builtin-documents:0", "must be a whole number above 0"),
        ("builtin-documents:", "must be a whole number above 0"),
        ("builtin-documents:5:x", "must be a whole number above 0"),
        ("builtin-documents:5:2", "has 3 to 1000 sentences, but 2 were asked for"),
        ("builtin-documents:100001", "1 to 100000 documents, but 100001"),
        ("builtin-documents:5:3-2000", "has 3 to 1000 sentences, but 3-2000 were asked for"),
        ("builtin-documents:5:6-5", "has 3 to 1000 sentences, but 6-5 were asked for"),
        ("builtin-documents:5:6-", "must be a whole number above 0"),
        ("builtin-documents:5:3-4-5", "must be a whole number above 0"),
        ("builtin-documents:5:6:7", "too many numbers"),
        ("builtin:5:6", "too many numbers"),
    ],
)
def test_a_wrong_number_is_named(corpus, said):
    with pytest.raises(DataError, match=said):
        list(read_pairs(corpus, source="en", target="de", split="train"))
