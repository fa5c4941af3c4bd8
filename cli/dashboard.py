"""The live view of training on a terminal: a bar, the figures of the last steps, two small curves.

It holds what it was told last and draws it anew whenever rich asks for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tfm.model.training.reporting import StepReport
    from tfm.model.training.validation import ValidationScores

WIDEST = 100  # columns
FIGURE, GAP = 22, 4  # columns that a figure with its name takes at least, and between two of them
BLOCKS = "▁▂▃▄▅▆▇█"
SMOOTHING = 0.98  # the smoothed loss remembers about 50 steps


class Figure(NamedTuple):
    """A number with its name, and how it is coloured."""

    name: str
    value: str
    style: str = "bold"

    def fill(self, width: int) -> Text:
        """Return both on a line of `width` columns, the name to the left."""
        space = " " * max(1, width - len(self.name) - len(self.value))
        return Text.assemble((self.name, "dim"), space, (self.value, self.style))


@dataclass
class Smoothed:
    """An exponential moving average that is unbiased from the first value on."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """Count one more value."""
        self.total = SMOOTHING * self.total + (1 - SMOOTHING) * value
        self.weight = SMOOTHING * self.weight + (1 - SMOOTHING)

    @property
    def value(self) -> float:
        """The average so far."""
        return self.total / self.weight if self.weight else math.nan


@dataclass
class Dashboard:
    """What is known of a run; rich draws it.

    Args:
        title: what is trained, and where, as it stands in the frame.
        status: what is done between two steps, which the ETA makes room for.
    """

    title: str
    place: str
    step: int = 0
    steps: int = 1
    status: str = ""
    report: "StepReport | None" = None
    best: Figure = Figure("best", "-")
    best_step: str = "-"
    smoothed: Smoothed = field(default_factory=Smoothed)
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # BLEU of each validation
    started: float = field(default_factory=monotonic)
    reported: float = field(default_factory=monotonic)
    ended: float | None = None

    def tell(self, report: "StepReport") -> None:
        """Show what a step has given."""
        self.step, self.steps, self.status = report.step, report.steps, ""
        self.report, self.reported = report, monotonic()
        self.smoothed.add(report.nats_per_token)
        if report.logged:
            self.losses.append(self.smoothed.value)
        if report.best:
            self.keep(report.best, report.best_step)

    def keep(self, best: "ValidationScores", step: int) -> None:
        """Show the best scores so far."""
        by_loss = best.bleu is None
        value = f"{best.nats_per_token:.3f}" if by_loss else f"{best.bleu:.2f}"
        self.best = Figure("best loss" if by_loss else "best BLEU", value, "bold green")
        self.best_step = f"{step:,}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        inner = width - 4  # without the frame
        parts: list[Table | Text] = [self.bar(), self.figures(inner)]
        if len(self.losses) > 1 or self.scores:
            parts.append(self.curves(inner))
        yield Panel(
            Group(*parts),
            title=Text(self.title, "bold"),
            title_align="left",
            subtitle=Text(self.place, "dim"),
            subtitle_align="right",
            border_style="cyan",
            width=width,
        )

    def bar(self) -> Table:
        """Return how far training is, and how long it has still to go."""
        row = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None):
            row.add_column(ratio=ratio, no_wrap=True)
        row.add_row(
            Text.assemble("step ", (f"{self.step:,}", "bold"), f"/{self.steps:,}"),
            ProgressBar(
                total=self.steps,
                completed=self.step,
                complete_style="cyan",
                finished_style="green",
            ),
            f"{self.step / self.steps:.0%}",
            self.when(),
        )
        return row

    def when(self) -> Text:
        """Return the time to the end, which runs down like a clock between two steps."""
        if self.ended is not None:
            return Text(f"in {clock(self.ended - self.started)}")
        if self.status:
            return Text(f"{self.status} ...", "yellow")
        if self.report is None:
            return Text("ETA -:--:--")
        return Text(f"ETA {clock(self.report.seconds_left - (monotonic() - self.reported))}")

    def figures(self, width: int) -> Text:
        """Return the figures in as many columns as fit."""
        found = self.known()
        columns = max(1, (width + GAP) // (FIGURE + GAP))
        each = (width + GAP) // columns - GAP
        rows = math.ceil(len(found) / columns)
        lines = []
        for row in range(rows):
            lines.append(Text(" " * GAP).join(figure.fill(each) for figure in found[row::rows]))
        return Text("\n").join(lines)

    def known(self) -> list[Figure]:
        """Return all figures, column by column."""
        report = self.report
        if report is None:
            names = ("loss", "smoothed", "learning rate", "gradient norm", "tokens/s", "padding")
            return [Figure(name, "-") for name in names]
        return [
            Figure("loss", f"{report.nats_per_token:.3f}"),
            Figure("smoothed", f"{self.smoothed.value:.3f}"),
            self.best,
            Figure("learning rate", f"{report.learning_rate:.2e}"),
            Figure("gradient norm", f"{report.gradient_norm:.2f}"),
            Figure("at step", self.best_step),
            Figure("tokens/s", f"{report.tokens_per_s:,.0f}"),
            Figure("padding", f"{report.padding:.1%}"),
            Figure("epoch", f"{report.epoch:.2f}"),
        ]

    def curves(self, width: int) -> Table:
        """Return the smoothed loss and BLEU of this sitting as two lines of blocks."""
        each = max(8, (width - 12) // 2)
        row = Table.grid(padding=(0, 1))
        row.add_row(
            Text("loss", "dim"),
            Text(sparkline(self.losses, each), "cyan"),
            Text("BLEU" if self.scores else "", "dim"),
            Text(sparkline(self.scores, each), "green"),
        )
        return row


def sparkline(values: Sequence[float], width: int) -> str:
    """Return `values` as at most `width` blocks, each the mean of neighbours, the lowest empty."""
    if not values:
        return ""
    count = min(width, len(values))
    borders = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(borders, borders[1:], strict=False)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in means)


def clock(seconds: float) -> str:
    """Return a length of time as h:mm:ss."""
    return str(timedelta(seconds=round(max(seconds, 0.0))))
