"""What training tells whoever watches. The model part prints nothing itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tfm.model.training.validation import Sample, ValidationScores


@dataclass(frozen=True)
class StepReport:
    """The state of training after a step; losses are means since the last logged step."""

    step: int
    steps: int
    epoch: float  # how often all pairs were seen
    loss: float
    nats_per_token: float
    learning_rate: float
    gradient_norm: float
    tokens_per_s: float
    padding: float  # the share of positions that hold no token, since the last logged step
    best: ValidationScores | None  # so far
    best_step: int
    seconds_left: float  # to the end of the run, validations included
    logged: bool  # it also went into metrics.jsonl


class Reporter(Protocol):
    """Receives the events of a run, in order."""

    def on_start(self, step: int, steps: int) -> None:
        """Hear that training goes from `step`, 0 for a new run, to `steps`."""

    def on_step(self, report: StepReport) -> None:
        """Hear of every step."""

    def on_pause(self, what: str) -> None:
        """Hear what is done until the next step, as in "validating": it may take a while."""

    def on_validation(self, step: int, scores: ValidationScores, *, best: bool) -> None:
        """Hear of every validation, and whether it is the best so far."""

    def on_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Hear of the translations that a validation shows, after its scores."""

    def on_note(self, text: str) -> None:
        """Hear one line that the user should know of."""


class Silence:
    """A reporter that tells nobody."""

    def on_start(self, step: int, steps: int) -> None:
        """Ignore it."""

    def on_step(self, report: StepReport) -> None:
        """Ignore it."""

    def on_pause(self, what: str) -> None:
        """Ignore it."""

    def on_validation(self, step: int, scores: ValidationScores, *, best: bool) -> None:
        """Ignore it."""

    def on_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Ignore it."""

    def on_note(self, text: str) -> None:
        """Ignore it."""
