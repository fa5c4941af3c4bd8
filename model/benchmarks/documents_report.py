"""The figures of `tfm bench documents` as a table, as JSON and as a chart of four panels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfm.model.benchmarks.attention_report import slope
from tfm.model.benchmarks.documents import KINDS, Row
from tfm.model.chart import (
    BLUE,
    GREEN,
    ORANGE,
    Axis,
    Colours,
    LogAxis,
    Point,
    document,
    dots,
    horizontals,
    key,
    line,
    text,
)

COLOURS: dict[str, Colours] = dict(zip(KINDS, (BLUE, GREEN, ORANGE), strict=True))
WIDTH, PANEL, LEFT, TOP, BOTTOM = 980, 360, 80, 80, 310
RIGHT = WIDTH // 2 - 30


class Measure(NamedTuple):
    """One panel of the chart: what a row has to show in it, in which unit, if it has that."""

    title: str
    logarithmic: bool
    of: Callable[[Row], float | None]


def _bleu(row: Row) -> float | None:
    return row.quality.bleu if row.quality else None


def _pronouns(row: Row) -> float | None:
    return 100 * row.quality.pronouns if row.quality else None


MEASURES = {
    "bleu": Measure("BLEU", False, _bleu),
    "pronouns": Measure("right pronouns, %", False, _pronouns),
    "encoder_seconds": Measure("encoder, ms", True, lambda row: 1e3 * row.encoder.seconds),
    "encoder_peak_bytes": Measure(
        "encoder, MiB at most", True, lambda row: row.encoder.peak_bytes / 2**20
    ),
}


@dataclass(frozen=True)
class Report:
    """All rows, by kind and length, and the conditions they hold under."""

    rows: Sequence[Row]
    conditions: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return everything by names that scripts may rely on."""
        return {
            **self.conditions,
            "rows": [row.to_json() for row in self.rows],
            "slopes": {kind: self.slopes(kind) for kind in self.kinds},
        }

    @property
    def kinds(self) -> list[str]:
        """The kinds that were trained, in the order of the rows."""
        return list(dict.fromkeys(row.kind for row in self.rows))

    def series(self, kind: str, name: str) -> list[Point]:
        """Return one measure of one kind against the pieces of a document."""
        found = [(row.pieces, MEASURES[name].of(row)) for row in self.rows if row.kind == kind]
        return [(pieces, value) for pieces, value in found if value is not None]

    def slopes(self, kind: str) -> dict[str, float]:
        """Return the power of N with which time and memory grow between the two longest lengths."""
        names = [name for name, measure in MEASURES.items() if measure.logarithmic]
        ends = {name: sorted(self.series(kind, name))[-2:] for name in names}
        return {name: slope(points) for name, points in ends.items() if len(points) == 2}


def table(report: Report) -> str:
    """Return the figures as aligned columns, the lengths one below the other for each kind."""
    lines = [
        f"{'encoder':<8}{'sentences':>10}{'pieces':>8}{'BLEU':>7}{'pronouns':>10}"
        f"{'encoder ms':>12}{'MiB':>9}{'network ms':>12}{'MiB':>9}"
    ]
    for row in report.rows:
        quality = row.quality
        scores = f"{quality.bleu:>7.1f}{quality.pronouns:>10.1%}" if quality else " " * 17
        costs = (
            f"{1e3 * cost.seconds:>12,.1f}{cost.peak_bytes / 2**20:>9,.1f}"
            for cost in (row.encoder, row.network)
        )
        lines.append(f"{row.kind:<8}{row.sentences:>10,}{row.pieces:>8,}{scores}{''.join(costs)}")
    return "\n".join([*lines, "", *_notes(report), ""])


def _notes(report: Report) -> list[str]:
    notes = [
        "time and peak memory of one document: forward and backward, in training's precision",
    ]
    guessed = {row.sentences: row.quality.guessing for row in report.rows if row.quality}
    if guessed:
        best = max(guessed.values())
        notes.append(f"always the same pronoun would be right in {best:.1%} at most")
    for kind in report.kinds:
        powers = report.slopes(kind)
        if powers:
            notes.append(
                f"{kind}: at the end the encoder's time grows with N to the power of "
                f"{powers['encoder_seconds']:.2f}, its memory {powers['encoder_peak_bytes']:.2f}"
            )
    return notes


def chart(report: Report) -> str:
    """Draw quality, time and memory of the encoders against the length of a document."""
    parts = [text(LEFT, 30, "Encoders on documents: quality and cost against length", "start")]
    for index, kind in enumerate(report.kinds):
        parts += key(LEFT + 110 * index, 54, kind, kind)
    for index, name in enumerate(MEASURES):
        parts += _panel(report, name, WIDTH // 2 * (index % 2), 30 + PANEL * (index // 2))
    return document(WIDTH, 40 + 2 * PANEL, "tfm bench documents", parts, COLOURS)


def _panel(report: Report, name: str, left: int, top: int) -> list[str]:
    """Draw one measure of all kinds; nothing where no row has it."""
    measure = MEASURES[name]
    lines = {kind: report.series(kind, name) for kind in report.kinds}
    points = [point for found in lines.values() for point in found]
    if not points:
        return []
    values = [value for _, value in points]
    begin, end, low, high = left + LEFT, left + RIGHT, top + BOTTOM, top + TOP
    x = LogAxis.over([pieces for pieces, _ in points], begin, end, base=2)
    y: LogAxis | Axis
    if measure.logarithmic:
        y = LogAxis.over(values, low, high, base=10)
    else:
        y = Axis.over([0, 100], low, high)
    parts = horizontals(map(y.place, y.ticks), begin, end)
    parts += [text(begin - 8, y.place(tick) + 5, f"{tick:,.6g}", "end") for tick in y.ticks]
    parts += [text(x.place(tick), low + 20, f"{tick:,.0f}", "middle") for tick in x.ticks]
    parts.append(text((begin + end) / 2, low + 42, "pieces of a document", "middle"))
    parts.append(text(begin, high - 14, measure.title, "start"))
    for kind, found in lines.items():
        parts += [line(kind, found, x, y), *dots(kind, found, x, y)]
    return parts
