"""What is translated at a time: a text, or parts of one that is longer than a model knows."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfm.data.segments import Segment, join_segments, split_line
from tfm.data.tokenizer import Tokenizer
from tfm.model.request import Request


class Unit(NamedTuple):
    """A text, or a part of a long one, that is to be translated by itself."""

    ids: list[int]  # of the source, without EOS
    request: Request
    spaced: bool = False  # whether a space stood between it and the part before


def units_of(
    requests: Sequence[Request],
    tokenizer: Tokenizer,
    *,
    limit: int,
    too_long: Callable[[int], None],
) -> list[list[Unit]]:
    """Return what is to be translated of each text: nothing of a blank one, mostly itself.

    Args:
        limit: most pieces of a unit.
        too_long: is called with the number of pieces of each text that has more.
    """
    lines: list[list[Unit]] = []
    encoded = tokenizer.encode_source_batch([request.text for request in requests])
    for request, ids in zip(requests, encoded, strict=True):
        if not request.text.strip():
            lines.append([])
        elif len(ids) <= limit:
            lines.append([Unit(ids, request)])
        else:
            too_long(len(ids))
            lines.append(_split(request, tokenizer, limit))
    return lines


def join_units(units: Sequence[Unit], texts: Sequence[str]) -> str:
    """Return the line that the translations of its units make; that of a single one as it is."""
    if len(texts) < 2:
        return "".join(texts)
    return join_segments([Segment(unit.request.text, unit.spaced) for unit in units], texts)


def _split(request: Request, tokenizer: Tokenizer, limit: int) -> list[Unit]:
    parts = split_line(request.text, lambda text: len(tokenizer.encode_source(text)) <= limit)
    sources = tokenizer.encode_source_batch([part.text for part in parts])
    return [
        Unit(ids, request.part(part.text, first=i == 0), part.spaced)
        for i, (ids, part) in enumerate(zip(sources, parts, strict=True))
    ]
