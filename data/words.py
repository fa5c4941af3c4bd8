"""Words and punctuation marks: the unit of word alignments and of merged attention maps."""

import unicodedata

JOINERS = "'’-"  # inside a word they belong to it: don't, Kauf-Apps


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) character spans of words and single punctuation marks, in order.

    A word is a run of letters, digits and combining marks; an apostrophe or hyphen between two of
    them belongs to it. Any other character but white space stands alone, together with the
    combining and invisible characters that follow it (an emoji and its variation selector).
    """
    spans: list[tuple[int, int]] = []
    word = False  # whether the last span is a word that may still grow
    for i, char in enumerate(text):
        if char.isspace():
            continue
        touches = bool(spans) and spans[-1][1] == i
        if touches and _extends(char):
            spans[-1] = (spans[-1][0], i + 1)
        elif touches and word and (_in_word(char) or _joins(text, i)):
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
            word = _in_word(char)
    return spans


def _in_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _joins(text: str, i: int) -> bool:
    return text[i] in JOINERS and i + 1 < len(text) and _in_word(text[i + 1])


def _extends(char: str) -> bool:
    return not char.isascii() and unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf", "Sk")
