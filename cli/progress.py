"""How training looks to whoever watches: a bar on a terminal, plain lines elsewhere, on stderr."""

from datetime import timedelta
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tfm.cli import console

if TYPE_CHECKING:
    from tfm.model.training.reporting import StepReport
    from tfm.model.training.validation import ValidationScores

LINE_EVERY = 100  # steps, where there is no terminal


class TrainingProgress:
    """Shows the events of training on stderr; enter it around them, so that the bar ends."""

    def __init__(self) -> None:
        self.on_terminal = console.log.is_terminal  # asked now: one that was closed is none
        self.bar = Progress(
            TextColumn("step {task.completed:,}/{task.total:,}"),
            BarColumn(bar_width=10),  # all of it fits into 80 columns
            TextColumn("{task.fields[figures]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console.log,
            disable=not self.on_terminal,
        )
        self.task = self.bar.add_task("training", total=1, figures="", visible=False)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def on_start(self, step: int, steps: int) -> None:
        """Begin to count."""
        self.begin, self.first_step = perf_counter(), step
        self.bar.reset(self.task, total=steps, completed=step, visible=True, figures="")

    def on_step(self, report: "StepReport") -> None:
        """Move the bar, or print a line now and then."""
        if self.on_terminal:
            figures = (
                f"loss {report.nats_per_token:.3f}  lr {report.learning_rate:.1e}  "
                f"{report.tokens_per_s:,.0f} tok/s"
            )
            self.bar.update(self.task, completed=report.step, figures=figures)
        elif report.step % LINE_EVERY == 0 or report.step == report.steps:
            left = timedelta(seconds=round(self.seconds_left(report.step, report.steps)))
            console.note(
                f"step {report.step:,}/{report.steps:,}  loss {report.nats_per_token:.3f}  "
                f"learning rate {report.learning_rate:.2e}  "
                f"{report.tokens_per_s:,.0f} tokens/s  ETA {left}"
            )

    def on_validation(self, step: int, scores: "ValidationScores", *, best: bool) -> None:
        """Print the scores."""
        mark = "  (best so far)" if best else ""
        console.note(f"step {step:,}: validation {describe_scores(scores)}{mark}")

    def on_note(self, text: str) -> None:
        """Print a line."""
        console.note(text)

    def hang_up(self) -> None:
        """Say no more if it was said to a terminal, which is closed and would refuse it."""
        if self.on_terminal:
            console.log.on_broken_pipe()

    def seconds_left(self, step: int, steps: int) -> float:
        """Estimate the rest of the run from its pace so far, validations included."""
        return (perf_counter() - self.begin) / (step - self.first_step) * (steps - step)


def describe_scores(scores: "ValidationScores") -> str:
    """Return the scores of a validation for reading."""
    bleu = "" if scores.bleu is None else f", BLEU {scores.bleu:.2f} (greedy)"
    return f"loss {scores.nats_per_token:.3f} nats per token{bleu}"
