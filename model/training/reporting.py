"""What training tells whoever watches. The model part prints nothing itself."""

from dataclasses import dataclass
from typing import Protocol

from tfm.model.training.validation import ValidationScores


@dataclass(frozen=True)
class StepReport:
    """The state of training after a step; losses are means since the last logged step."""

    step: int
    steps: int
    loss: float
    nats_per_token: float
    learning_rate: float
    gradient_norm: float
    tokens_per_s: float
    logged: bool  # it also went into metrics.jsonl


class Reporter(Protocol):
    """Receives the events of a run, in order."""

    def on_start(self, step: int, steps: int) -> None:
        """Hear that training goes from `step`, 0 for a new run, to `steps`."""

    def on_step(self, report: StepReport) -> None:
        """Hear of every step."""

    def on_validation(self, step: int, scores: ValidationScores, *, best: bool) -> None:
        """Hear of every validation, and whether it is the best so far."""

    def on_note(self, text: str) -> None:
        """Hear one line that the user should know of."""


class Silence:
    """A reporter that tells nobody."""

    def on_start(self, step: int, steps: int) -> None:
        """Ignore it."""

    def on_step(self, report: StepReport) -> None:
        """Ignore it."""

    def on_validation(self, step: int, scores: ValidationScores, *, best: bool) -> None:
        """Ignore it."""

    def on_note(self, text: str) -> None:
        """Ignore it."""
