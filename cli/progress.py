"""How training looks to whoever watches: a live view on a terminal, else plain lines, on stderr."""

from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.text import Text

from tfm.cli import console
from tfm.cli.dashboard import Dashboard, clock

if TYPE_CHECKING:
    from tfm.model.training.reporting import StepReport
    from tfm.model.training.validation import Sample, ValidationScores

# Where there is no terminal, a line comes after so many steps, or seconds where steps are long.
LINE_EVERY = 100
LONGEST_SILENCE = 60.0
REFRESHES = 2  # a second: drawing takes time from training


class TrainingProgress:
    """Shows the events of training on stderr; enter it around them, so that the view ends.

    Args:
        title: what is trained.
        place: where.
    """

    def __init__(self, title: str = "", place: str = "") -> None:
        self.on_terminal = console.log.is_terminal  # asked now: one that was closed is none
        self.view = Dashboard(title, place)
        self.live = Live(
            self.view,
            console=console.log,
            refresh_per_second=REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.view.ended = monotonic()
        self.live.stop()

    def on_start(self, step: int, steps: int) -> None:
        """Begin to count."""
        self.last_line = monotonic()
        self.view.step, self.view.steps = step, steps
        if self.on_terminal:
            self.live.start()

    def on_step(self, report: "StepReport") -> None:
        """Remember it for the view, or print a line now and then."""
        self.view.tell(report)
        if self.on_terminal:
            return
        due = report.step % LINE_EVERY == 0 or report.step == report.steps
        if due or monotonic() - self.last_line > LONGEST_SILENCE:
            self.last_line = monotonic()
            console.note(describe_step(report))

    def on_pause(self, what: str) -> None:
        """Say it in the view."""
        self.view.status = what

    def on_validation(self, step: int, scores: "ValidationScores", *, best: bool) -> None:
        """Print the scores."""
        if scores.bleu is not None:
            self.view.scores.append(scores.bleu)
        if best:
            self.view.keep(scores, step)
        mark = "  (best so far)" if best else ""
        console.note(f"step {step:,}: validation {describe_scores(scores)}{mark}")

    def on_samples(self, step: int, samples: "Sequence[Sample]") -> None:
        """Print them, three lines each."""
        for sample in samples:
            for name, text in sample._asdict().items():
                line = Text.assemble((f"    {name:<13}", "dim"), console.one_line(text))
                console.log.print(line, soft_wrap=True)

    def on_note(self, text: str) -> None:
        """Print a line."""
        console.note(text)

    def hang_up(self) -> None:
        """Say no more if it was said to a terminal, which is closed and would refuse it."""
        if self.on_terminal:
            console.log.on_broken_pipe()


def describe_step(report: "StepReport") -> str:
    """Return the state of training as one line."""
    return (
        f"step {report.step:,}/{report.steps:,}  epoch {report.epoch:.2f}  "
        f"loss {report.nats_per_token:.3f}  learning rate {report.learning_rate:.2e}  "
        f"gradient norm {report.gradient_norm:.2f}  {report.tokens_per_s:,.0f} tokens/s  "
        f"padding {report.padding:.1%}  ETA {clock(report.seconds_left)}"
    )


def describe_scores(scores: "ValidationScores") -> str:
    """Return the scores of a validation for reading."""
    bleu = "" if scores.bleu is None else f", BLEU {scores.bleu:.2f} (greedy)"
    return f"loss {scores.nats_per_token:.3f} nats per token{bleu}"
