"""Text as labels: how wide it is, and how to shorten it to fit."""

import unicodedata
from collections.abc import Sequence

from tfm.data.pieces import SPACE


def cells(text: str) -> int:
    """Return the terminal cells that `text` takes: wide characters two, combining ones none."""
    return sum(map(_cells, text))


def shorten(text: str, limit: int) -> str:
    """Cut `text` to `limit` cells, with an ellipsis where something is missing."""
    if cells(text) <= limit:
        return text
    kept = 0
    for i, char in enumerate(text):
        kept += _cells(char)
        if kept > limit - 1:
            return text[:i] + "…"
    return text


def pad(text: str, width: int) -> str:
    """Fill `text` with spaces to `width` cells."""
    return text + " " * (width - cells(text))


def piece_labels(pieces: Sequence[str], limit: int = 12) -> list[str]:
    """Return pieces as labels: the mark of a space thinned to a dot on the line."""
    return [shorten(piece.replace(SPACE, "·"), limit) for piece in pieces]


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
