"""Charts as SVG by hand: what the learning curve and the benchmarks draw alike.

A file stands alone, and its colours follow a light or dark page.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

Point = tuple[float, float]
Colours = tuple[str, str]  # on a light page, on a dark one

BLUE: Colours = ("#0969da", "#58a6ff")
ORANGE: Colours = ("#bc4c00", "#f0883e")
GREEN: Colours = ("#1a7f37", "#56d364")
PURPLE: Colours = ("#8250df", "#bc8cff")
PINK: Colours = ("#bf3989", "#f778ba")
GREY: Colours = ("#6e7781", "#8b949e")

STYLE = """
  svg {{ color-scheme: light dark; font: 14px system-ui, sans-serif; }}
  .paper {{ fill: #ffffff; }} .ink {{ fill: #24292f; }}
  .grid {{ stroke: #d0d7de; stroke-width: 1; }}
  .line {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
  {light}
  @media (prefers-color-scheme: dark) {{
    .paper {{ fill: #0d1117; }} .ink {{ fill: #e6edf3; }} .grid {{ stroke: #30363d; }}
    {dark}
  }}
"""


class Scale(Protocol):
    """A map from values to one side of a plot area."""

    def place(self, value: float) -> float:
        """Return where `value` is drawn."""
        ...


@dataclass(frozen=True)
class Axis:
    """A linear map from values to one side of the plot area, with round numbers marked."""

    ticks: Sequence[float]
    start: float  # where the first tick is drawn
    end: float  # where the last tick is drawn

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "Axis":
        """Cover `values` with round ticks from `start` to `end`."""
        return cls(round_ticks(min(values), max(values)), start, end)

    def place(self, value: float) -> float:
        """Return where `value` is drawn."""
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic map from values above zero, with powers of `base` marked."""

    ticks: Sequence[float]
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, base: int) -> "LogAxis":
        """Cover `values` with powers of `base`, at least two, from `start` to `end`."""
        low = math.floor(math.log(min(values), base) + 1e-9)
        high = max(math.ceil(math.log(max(values), base) - 1e-9), low + 1)
        return cls([float(base) ** power for power in range(low, high + 1)], start, end)

    def place(self, value: float) -> float:
        """Return where `value` is drawn."""
        share = math.log(value / self.ticks[0]) / math.log(self.ticks[-1] / self.ticks[0])
        return self.start + share * (self.end - self.start)


def document(
    width: float, height: float, title: str, parts: Iterable[str], colours: Mapping[str, Colours]
) -> str:
    """Return the SVG of `parts`; `colours` are those of the strokes, by class."""
    light, dark = (
        " ".join(f".{name} {{ stroke: {pair[page]}; }}" for name, pair in colours.items())
        for page in (0, 1)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE.format(light=light, dark=dark)}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Return 3 to 8 evenly spaced round numbers; the first is at most `low`, the last `high`."""
    spread = max(high - low, abs(high) * 0.01, 1e-6)
    power = 10.0 ** math.floor(math.log10(spread / 5))
    unit = next(power * m for m in (1, 2, 5, 10) if spread / (power * m) <= 5)
    first = math.floor(low / unit)
    last = max(math.ceil(high / unit), first + 2)
    return [i * unit for i in range(first, last + 1)]


def line(name: str, points: Sequence[Point], x: Scale, y: Scale) -> str:
    """Connect `points` by a line of class `name`."""
    places = [f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in points]
    return f'<polyline class="line {name}" points="{" ".join(places)}"/>'


def dots(name: str, points: Sequence[Point], x: Scale, y: Scale) -> list[str]:
    """Mark each of `points`: there may be one only, which makes no line."""
    return [
        f'<circle class="line {name}" cx="{x.place(a):.1f}" cy="{y.place(b):.1f}" r="3"/>'
        for a, b in points
    ]


def horizontals(heights: Iterable[float], left: float, right: float) -> list[str]:
    """Draw the grid's lines at `heights`."""
    return [
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>' for y in heights
    ]


def key(x: float, y: float, name: str, label: str) -> list[str]:
    """Draw one entry of a legend: a piece of the line called `name`, and its label."""
    stroke = f'<line class="line {name}" x1="{x}" x2="{x + 24}" y1="{y - 5}" y2="{y - 5}"/>'
    return [stroke, text(x + 32, y, label, "start")]


def text(x: float, y: float, words: str, anchor: str) -> str:
    """Write `words` at a place; `anchor` says which part of them stands there."""
    return (
        f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
    )
