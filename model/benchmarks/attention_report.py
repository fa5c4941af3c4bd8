"""The figures of `tfm bench attention` as a table, as JSON and as a chart with fitted slopes.

The slope of a line on logarithmic axes is the power of N with which a cost grows: 2 where all pairs
of positions are held or computed, 1 where they are not.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfm.model.benchmarks.attention import KINDS, Bounds, Row
from tfm.model.chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    PURPLE,
    LogAxis,
    Point,
    document,
    dots,
    horizontals,
    key,
    line,
    text,
)

FITTED = 4  # slopes are those of lengths from so many times below the longest one
REFERENCE = "math"
COLOURS = dict(zip(KINDS, (ORANGE, BLUE, PURPLE, GREEN, PINK, GREY), strict=True))

WIDTH, PANEL, LEGEND = 980, 400, 150
LEFT, TOP, BOTTOM = 80, 70, 340


class Measure(NamedTuple):
    """One column of figures: where it stands in a row, and in which unit it is shown."""

    title: str
    unit: str
    scale: float
    digits: int
    of: Callable[[Row], float]


def _forward_seconds(row: Row) -> float:
    return row.forward.seconds if row.forward else math.nan


def _seconds(row: Row) -> float:
    return row.training.seconds if row.training else math.nan


def _forward_bytes(row: Row) -> float:
    return row.forward.peak_bytes if row.forward else math.nan


def _bytes(row: Row) -> float:
    return row.training.peak_bytes if row.training else math.nan


MEASURES = {
    "forward_seconds": Measure("forward", "ms", 1e3, 2, _forward_seconds),
    "seconds": Measure("+backward", "ms", 1e3, 2, _seconds),
    "forward_peak_bytes": Measure("forward", "MiB", 2**-20, 2, _forward_bytes),
    "peak_bytes": Measure("+backward", "MiB", 2**-20, 2, _bytes),
}


@dataclass(frozen=True)
class Report:
    """All rows of a run, in the order of measuring, with what the machine can do."""

    rows: Sequence[Row]
    bounds: Bounds
    conditions: Mapping[str, Any]

    def groups(self) -> Iterator[tuple[str, int, list[Row]]]:
        """Yield each dtype and head width with its rows."""
        pairs = dict.fromkeys((row.case.dtype, row.case.width) for row in self.rows)
        for dtype, width in pairs:
            own = [row for row in self.rows if (row.case.dtype, row.case.width) == (dtype, width)]
            yield dtype, width, own

    def to_json(self) -> dict[str, Any]:
        """Return everything by names that scripts may rely on."""
        return {
            **self.conditions,
            "peak_flops_per_s": self.bounds.flops,
            "bytes_per_s": self.bounds.bandwidth,
            "rows": [
                row.to_json() | {f"{name}_by_math": value for name, value in ratios.items()}
                for _, _, rows in self.groups()
                for row in rows
                for ratios in [_ratios(row, rows)]
            ],
            "slopes": [
                {"dtype": dtype, "width": width, "backend": kind} | fitted
                for dtype, width, rows in self.groups()
                for kind, fitted in slopes(rows).items()
            ],
        }


def slopes(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the fitted power of N of each measure, by kind; those with two points or more."""
    found: dict[str, dict[str, float]] = {}
    for kind in dict.fromkeys(row.case.kind for row in rows):
        for name, measure in MEASURES.items():
            upper = [p for p in series(rows, kind, measure) if p[0] * FITTED >= _longest(rows)]
            if len(upper) > 1:
                found.setdefault(kind, {})[name] = slope(upper)
    return found


def _longest(rows: Sequence[Row]) -> int:
    return max(row.case.length for row in rows)


def series(rows: Sequence[Row], kind: str, measure: Measure) -> list[Point]:
    """Return a measure of one kind against N, where it was run."""
    own = (row for row in rows if row.case.kind == kind and not row.not_run)
    return [(row.case.length, measure.of(row)) for row in own]


def slope(points: Sequence[Point]) -> float:
    """Return the slope of the line through the logarithms of `points`, by least squares."""
    xs, ys = ([math.log(point[axis]) for point in points] for axis in (0, 1))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


def table(report: Report) -> str:
    """Return the figures as aligned columns, with slopes below, for each dtype and head width."""
    parts = []
    for dtype, width, rows in report.groups():
        peak, bandwidth = report.bounds.flops[dtype] / 1e9, report.bounds.bandwidth / 1e9
        parts += [
            f"{dtype}, head width {width}; this machine multiplies matrices at {peak:,.0f} GFLOP/s "
            f"and moves memory at {bandwidth:,.0f} GB/s",
            "",
            _heading(),
            *(_line(row, rows) for row in rows),
            "",
            *_slope_lines(rows),
            "",
        ]
    return "\n".join(parts)


def _heading() -> str:
    columns = "".join(
        f"{f'{m.title} {m.unit}':>15}{f'/ {REFERENCE}':>8}" for m in MEASURES.values()
    )
    return f"{'N':>7}  {'backend':<12}{columns}{'of bound':>10}"


def _line(row: Row, rows: Sequence[Row]) -> str:
    start = f"{row.case.length:>7,}  {row.case.kind:<12}"
    if row.training is None:
        return f"{start}   not run: {row.not_run}"
    ratios = _ratios(row, rows)
    cells = (
        f"{measure.of(row) * measure.scale:>15,.{measure.digits}f}"
        + (f"{ratios[name]:>8.3f}" if name in ratios else " " * 8)
        for name, measure in MEASURES.items()
    )
    return f"{start}{''.join(cells)}{row.bound / row.training.seconds:>10.1%}"


def _ratios(row: Row, rows: Sequence[Row]) -> dict[str, float]:
    """Return each measure of `row` by that of math at the same length, where both were run."""
    for other in rows:
        if (other.case.kind, other.case.length) == (REFERENCE, row.case.length):
            if not (other.not_run or row.not_run):
                return {name: m.of(row) / m.of(other) for name, m in MEASURES.items()}
    return {}


def _slope_lines(rows: Sequence[Row]) -> Iterator[str]:
    fitted = slopes(rows)
    if not fitted:
        return
    low = min(n for n in (row.case.length for row in rows) if n * FITTED >= _longest(rows))
    yield f"grows with N to the power of (fitted from N = {low:,} on)"
    for kind, powers in fitted.items():
        cells = (f"{powers[name]:>15.2f}{'':8}" for name in MEASURES)
        yield f"{'':7}  {kind:<12}{''.join(cells)}".rstrip()


def chart(report: Report) -> str:
    """Draw time and memory of forward and backward against N, on logarithmic axes."""
    parts = [
        text(LEFT, 30, "Attention against N: time and peak memory of forward and backward", "start")
    ]
    groups = list(report.groups())
    for index, (dtype, width, rows) in enumerate(groups):
        top = index * PANEL
        if any(not row.not_run for row in rows):
            for column, name in enumerate(("seconds", "peak_bytes")):
                left = LEFT + column * (WIDTH // 2)
                parts += _panel(rows, name, f"{dtype}, head width {width}", left, top)
    return document(WIDTH, 20 + PANEL * len(groups), "tfm bench attention", parts, COLOURS)


def _panel(rows: Sequence[Row], name: str, title: str, left: float, top: float) -> list[str]:
    """Draw one measure of all kinds, with a legend that names the fitted slopes."""
    measure = MEASURES[name]
    lines = {
        kind: [(n, value * measure.scale) for n, value in series(rows, kind, measure)]
        for kind in dict.fromkeys(row.case.kind for row in rows)
    }
    points = [point for found in lines.values() for point in found]
    right = left + WIDTH // 2 - LEGEND - LEFT
    x = LogAxis.over([n for n, _ in points], left, right, base=2)
    y = LogAxis.over([value for _, value in points], top + BOTTOM, top + TOP, base=10)
    parts = [*horizontals(map(y.place, y.ticks), left, right)]
    parts += [text(left - 8, y.place(t) + 5, f"{t:,.6g}", "end") for t in y.ticks]
    parts += [text(x.place(t), top + BOTTOM + 20, f"{t:,.0f}", "middle") for t in x.ticks[::2]]
    parts += [text((left + right) / 2, top + BOTTOM + 42, "N", "middle")]
    parts += [text(left, top + TOP - 14, f"{measure.unit}, {title}", "start")]
    fitted = slopes(rows)
    for index, (kind, found) in enumerate(lines.items()):
        parts += [line(kind, found, x, y), *dots(kind, found, x, y)]
        power = fitted.get(kind, {}).get(name)
        label = kind if power is None else f"{kind}: {power:.2f}"
        parts += key(right + 14, top + TOP + 10 + 24 * index, kind, label)
    return parts
