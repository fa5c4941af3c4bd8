"""Lines too long for a model are cut without losing a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.segments import Segment, join_segments, split_line


def texts(text: str, limit: int) -> list[str]:
    return [part.text for part in split_line(text, lambda part: len(part) <= limit)]


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("It fits.", 8, ["It fits."]),
        ("One. Two! Three? Four", 12, ["One. Two!", "Three? Four"]),
        ("He said “No.” She left.", 15, ["He said “No.”", "She left."]),
        ("one two three four", 10, ["one two", "three four"]),
        ("abcdefgh", 3, ["ab", "cd", "ef", "gh"]),
        ("A. bcdefgh ijk", 7, ["A.", "bcdefgh", "ijk"]),
        ("3.14 is pi.Not cut", 12, ["3.14 is", "pi.Not cut"]),
        ("今日は。明日は。", 4, ["今日は。", "明日は。"]),
        ("ab", 0, ["a", "b"]),
    ],
)
def test_a_cut_prefers_sentence_ends_then_spaces(text: str, limit: int, parts: list[str]) -> None:
    assert texts(text, limit) == parts


@given(st.text(st.sampled_from("ab .!?”\u2028\u3000。é"), min_size=1), st.integers(1, 9))
def test_every_part_fits_and_nothing_but_white_space_is_lost(text: str, limit: int) -> None:
    parts = split_line(text, lambda part: len(part) <= limit)
    assert all(len(part.text) <= limit for part in parts)
    assert "".join("".join(part.text.split()) for part in parts) == "".join(text.split())
    if text.strip():
        assert all(part.text.strip() for part in parts)
        whole = join_segments(parts, [part.text for part in parts])
        assert whole.split() == text.split()


def test_translations_are_joined_where_the_text_was_cut() -> None:
    parts = [Segment("One.", False), Segment("Tw", True), Segment("o.", False)]
    assert join_segments(parts, ["Eins.", "Zw", "ei."]) == "Eins. Zwei."
