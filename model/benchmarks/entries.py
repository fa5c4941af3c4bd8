"""Rows of a report that has many kinds of figures: what was done, what came of it, or why nothing.

One row that fails must not keep the others from being measured: what it raised becomes part of it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tfm.data.errors import BackendError, UserError

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Entry:
    """One row. `broken` is a failure that nobody foresaw, or a result that is wrong."""

    labels: Mapping[str, Cell]
    figures: Mapping[str, Cell] = field(default_factory=dict)
    not_run: str = ""
    broken: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the row by names that scripts may rely on."""
        row = {**self.labels, **self.figures, "broken": self.broken}
        return row | {"not_run": self.not_run} if self.not_run else row


@dataclass(frozen=True)
class Deadline:
    """When to stop measuring: so many seconds from now on."""

    seconds: float
    begin: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds that are left; 0 at the least."""
        return max(0.0, self.seconds - (time.monotonic() - self.begin))


def attempt(
    labels: Mapping[str, Cell], measure: Callable[[], Mapping[str, Cell]], deadline: Deadline
) -> Entry:
    """Return the row of what `measure` finds, or of what went wrong with it.

    A backend that refuses and a memory that is too small are no failures.
    """
    if not deadline.left:
        return Entry(labels, not_run="the time was up")
    try:
        return Entry(labels, measure())
    except (BackendError, torch.OutOfMemoryError) as error:
        return Entry(labels, not_run=_first_line(error))
    except (UserError, RuntimeError, TypeError, ValueError) as error:
        return Entry(labels, not_run=f"{type(error).__name__}: {_first_line(error)}", broken=True)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def table(title: str, entries: Sequence[Entry]) -> str:
    """Return rows as columns under a title; a row that was not run says why instead of figures."""
    labels = list(dict.fromkeys(name for entry in entries for name in entry.labels))
    figures = list(dict.fromkeys(name for entry in entries for name in entry.figures))
    rows = [[*labels, *figures]]
    rows += [[_shown(entry.labels.get(name)) for name in labels] for entry in entries]
    for row, entry in zip(rows[1:], entries, strict=True):
        if not entry.not_run:
            row += [_shown(entry.figures.get(name)) for name in figures]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    lines = [_aligned(row, widths, left=len(labels)) for row in rows]
    for i, entry in enumerate(entries, start=1):
        if entry.not_run:
            lines[i] += f"  not run: {entry.not_run}"
        lines[i] += "  BROKEN" if entry.broken else ""
    return "\n".join([title, *lines]) + "\n"


def _aligned(row: Sequence[str], widths: Sequence[int], *, left: int) -> str:
    cells = (
        f"{cell:<{width}}" if i < left else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(row, widths, strict=False))
    )
    return "  ".join(cells).rstrip()


def _shown(cell: Cell) -> str:
    """Return a cell as people read it: numbers with four digits that count."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
