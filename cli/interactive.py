"""`tfm translate --interactive`: a line in, and its translation while it grows.

What grows is shown on stderr, in place, if that is a terminal; stdout gets the finished line, as it
always does. Without a terminal only that is left.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.cells import cell_len

from tfm.cli import console
from tfm.cli.records import Parse
from tfm.data.lines import arriving_parsed

if TYPE_CHECKING:
    from tfm.model.translator import Translator

CLEAR = "\r\x1b[K"  # to the start of the line, and erase it


def converse(translator: "Translator", parse: Parse, *, prompt: str) -> None:
    """Translate line after line of stdin until its end (Ctrl-D)."""
    asked = prompt if sys.stdin.isatty() else ""
    lines = arriving_parsed(sys.stdin.buffer, parse, limit=1)
    while True:
        print(asked, end="", file=sys.stderr, flush=True)
        records = next(lines, None)
        if records is None:
            break
        with _in_place() as show:
            translation = translator.translate_growing(records[0].request, show)
        print(translation.text, flush=True)
    if asked:
        print(file=sys.stderr)


@contextmanager
def _in_place() -> Iterator[Callable[[str], None]]:
    """Give a function that shows a text in place of the one before; the last one goes."""
    if not console.log.is_terminal or console.log.is_dumb_terminal:
        yield lambda text: None
        return
    width = shutil.get_terminal_size().columns - 1
    try:
        yield lambda text: _write(CLEAR + last_cells(console.one_line(text), width))
    finally:
        _write(CLEAR)


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def last_cells(text: str, width: int) -> str:
    """Return as much of the end of `text` as fits into `width` cells, after an ellipsis if cut."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text
