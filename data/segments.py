"""Lines too long for a model, cut where it hurts least."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])\s*")
SPACE = re.compile(r"\s+")


class Segment(NamedTuple):
    """A part of a line; `spaced` says that a space stood between it and the part before."""

    text: str
    spaced: bool


def split_line(text: str, fits: Callable[[str], bool]) -> list[Segment]:
    """Cut `text` in halves until all parts fit, and return the parts.

    A cut stands at the end of a sentence, else at a space, else anywhere, and as near to the middle
    as it can. A single character that does not fit is left as it is.
    """
    segments: list[Segment] = []
    todo = [Segment(text.strip(), spaced=False)]
    while todo:
        segment = todo.pop()
        if len(segment.text) > 1 and not fits(segment.text):
            todo += reversed(_halve(segment))
        else:
            segments.append(segment)
    return segments


def join_segments(segments: Sequence[Segment], texts: Sequence[str]) -> str:
    """Return the line that the translations `texts` of `segments` make."""
    parts = zip(segments, texts, strict=True)
    return "".join(" " * segment.spaced + text for segment, text in parts).strip()


def _halve(segment: Segment) -> tuple[Segment, Segment]:
    text = segment.text
    middle = len(text) // 2
    for pattern in (SENTENCE_END, SPACE):
        # The text has no white space at its ends, so that neither half is blank.
        cuts = [m for m in pattern.finditer(text) if 0 < m.start() and m.end() < len(text)]
        if cuts:
            cut = min(cuts, key=lambda m: abs(m.end() - middle))
            left, right = text[: cut.end()].rstrip(), text[cut.end() :]
            return Segment(left, segment.spaced), Segment(right, len(left) < cut.end())
    return Segment(text[:middle], segment.spaced), Segment(text[middle:], spaced=False)
