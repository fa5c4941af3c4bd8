"""learning_curve.svg: losses and BLEU against steps, drawn without a plotting library."""

import math
from collections.abc import Sequence

from tfm.model.chart import (
    BLUE,
    GREEN,
    ORANGE,
    Axis,
    Point,
    document,
    dots,
    horizontals,
    key,
    line,
    text,
)
from tfm.model.training.metrics import Metrics

WIDTH, HEIGHT = 820, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 750, 60, 380  # the plot area in user units
MOST_POINTS = 300  # per line; more are averaged in groups
COLOURS = {"train": BLUE, "valid": ORANGE, "bleu": GREEN}


def learning_curve(metrics: Metrics, title: str) -> str:
    """Return an SVG of the records so far: nats per token to the left axis, BLEU to the right."""
    train = thin(metrics.series("train", "nats_per_token"))
    valid = thin(metrics.series("valid", "nats_per_token"))
    bleu = thin(metrics.series("valid", "bleu"))
    losses = train + valid
    steps = Axis.over([0, *(x for x, _ in losses)], LEFT, RIGHT)
    nats = Axis.over([y for _, y in losses] or [0], BOTTOM, TOP)
    scores = Axis.over([0, 1, *(y for _, y in bleu)], BOTTOM, TOP)  # no axis of millionths
    parts = [*horizontals(map(nats.place, nats.ticks), LEFT, RIGHT)]
    parts += [*_labels(steps, nats), *_legend(title)]
    parts += [line("train", train, steps, nats), line("valid", valid, steps, nats)]
    parts += dots("valid", valid, steps, nats)
    if bleu:
        parts += [*_right_labels(scores), line("bleu", bleu, steps, scores)]
        parts += dots("bleu", bleu, steps, scores)
    return document(WIDTH, HEIGHT, title, parts, COLOURS)


def thin(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` points, each the mean of a group of neighbours."""
    size = max(1, math.ceil(len(points) / MOST_POINTS))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _labels(steps: Axis, nats: Axis) -> list[str]:
    return [
        *(text(steps.place(t), BOTTOM + 20, f"{t:,.6g}", "middle") for t in steps.ticks),
        *(text(LEFT - 8, nats.place(t) + 5, f"{t:.6g}", "end") for t in nats.ticks),
        text((LEFT + RIGHT) / 2, BOTTOM + 45, "step", "middle"),
        text(8, TOP - 12, "nats per token", "start"),
    ]


def _right_labels(scores: Axis) -> list[str]:
    ticks = (text(RIGHT + 8, scores.place(t) + 5, f"{t:.6g}", "start") for t in scores.ticks)
    return [*ticks, text(WIDTH - 8, TOP - 12, "BLEU", "end")]


def _legend(title: str) -> list[str]:
    parts = [text(8, 22, title, "start")]
    names = [("train", "training loss"), ("valid", "validation loss"), ("bleu", "validation BLEU")]
    for i, (name, label) in enumerate(names):
        parts += key(320 + 165 * i, 22, name, label)
    return parts
