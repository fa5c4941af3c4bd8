"""learning_curve.svg: losses and BLEU against steps, drawn without a plotting library.

The file stands alone, and its colours follow a light or dark page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tfm.model.training.metrics import Metrics

Point = tuple[float, float]

WIDTH, HEIGHT = 820, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 750, 60, 380  # the plot area in user units
MOST_POINTS = 300  # per line; more are averaged in groups

STYLE = """
  svg { color-scheme: light dark; font: 14px system-ui, sans-serif; }
  .paper { fill: #ffffff; } .ink { fill: #24292f; } .grid { stroke: #d0d7de; stroke-width: 1; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .train { stroke: #0969da; } .valid { stroke: #bc4c00; } .bleu { stroke: #1a7f37; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } .ink { fill: #e6edf3; } .grid { stroke: #30363d; }
    .train { stroke: #58a6ff; } .valid { stroke: #f0883e; } .bleu { stroke: #56d364; }
  }
"""


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


def learning_curve(metrics: Metrics, title: str) -> str:
    """Return an SVG of the records so far: nats per token to the left axis, BLEU to the right."""
    train = thin(metrics.series("train", "nats_per_token"))
    valid = thin(metrics.series("valid", "nats_per_token"))
    bleu = thin(metrics.series("valid", "bleu"))
    losses = train + valid
    steps = Axis.over([0, *(x for x, _ in losses)], LEFT, RIGHT)
    nats = Axis.over([y for _, y in losses] or [0], BOTTOM, TOP)
    scores = Axis.over([0, 1, *(y for _, y in bleu)], BOTTOM, TOP)  # no axis of millionths
    parts = [*_grid(nats), *_labels(steps, nats), *_legend(title)]
    parts += [_line("train", train, steps, nats), _line("valid", valid, steps, nats)]
    parts += _dots("valid", valid, steps, nats)
    if bleu:
        parts += [*_right_labels(scores), _line("bleu", bleu, steps, scores)]
        parts += _dots("bleu", bleu, steps, scores)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
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


def thin(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` points, each the mean of a group of neighbours."""
    size = max(1, math.ceil(len(points) / MOST_POINTS))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _line(name: str, points: Sequence[Point], x: Axis, y: Axis) -> str:
    places = [f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in points]
    return f'<polyline class="line {name}" points="{" ".join(places)}"/>'


def _dots(name: str, points: Sequence[Point], x: Axis, y: Axis) -> list[str]:
    """Mark each validation: there may be one only, which makes no line."""
    return [
        f'<circle class="line {name}" cx="{x.place(a):.1f}" cy="{y.place(b):.1f}" r="3"/>'
        for a, b in points
    ]


def _grid(axis: Axis) -> list[str]:
    heights = [axis.place(tick) for tick in axis.ticks]
    return [
        f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>' for y in heights
    ]


def _labels(steps: Axis, nats: Axis) -> list[str]:
    return [
        *(_text(steps.place(t), BOTTOM + 20, f"{t:,.6g}", "middle") for t in steps.ticks),
        *(_text(LEFT - 8, nats.place(t) + 5, f"{t:.6g}", "end") for t in nats.ticks),
        _text((LEFT + RIGHT) / 2, BOTTOM + 45, "step", "middle"),
        _text(8, TOP - 12, "nats per token", "start"),
    ]


def _right_labels(scores: Axis) -> list[str]:
    ticks = (_text(RIGHT + 8, scores.place(t) + 5, f"{t:.6g}", "start") for t in scores.ticks)
    return [*ticks, _text(WIDTH - 8, TOP - 12, "BLEU", "end")]


def _legend(title: str) -> list[str]:
    parts = [_text(8, 22, title, "start")]
    names = [("train", "training loss"), ("valid", "validation loss"), ("bleu", "validation BLEU")]
    for i, (name, label) in enumerate(names):
        x = 320 + 165 * i
        parts.append(f'<line class="line {name}" x1="{x}" x2="{x + 24}" y1="17" y2="17"/>')
        parts.append(_text(x + 32, 22, label, "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
