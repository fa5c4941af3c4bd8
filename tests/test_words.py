"""Words and punctuation marks, the unit of alignments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.words import word_spans


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \u2028\t", []),
        ("A dog runs.", ["A", "dog", "runs", "."]),
        ("Don't -- it's Anna's T-Shirt!", ["Don't", "-", "-", "it's", "Anna's", "T-Shirt", "!"]),
        ("„Ja“, 3,5 km", ["„", "Ja", "“", ",", "3", ",", "5", "km"]),
        ("e\u0301te\u0301 हिन्दी", ["e\u0301te\u0301", "हिन्दी"]),
        ("ok👍🏽❤️", ["ok", "👍🏽", "❤️"]),
        ("'tis -5", ["'", "tis", "-", "5"]),
        ("a\0b", ["a", "\0", "b"]),
    ],
)
def test_words_and_marks(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == words


@given(st.text())
def test_spans_are_ordered_and_cover_all_but_white_space(text: str) -> None:
    spans = word_spans(text)
    assert all(start < end for start, end in spans)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    covered = "".join(text[start:end] for start, end in spans)
    assert covered == "".join(text.split())
