"""How far the schedule is after each step where the time is limited; `budget.py` decides on it."""

import math
import time
from dataclasses import dataclass, field, replace
from typing import Literal

DECISIONS = 50  # while the steps done double, or while those to come halve

Event = Literal["validation", "checkpoint"]


@dataclass
class Clock:
    """The seconds that a run has taken.

    Args:
        begin: when this sitting did, by `time.monotonic`.
        before: what earlier sittings took.
    """

    begin: float = field(default_factory=lambda: time.monotonic())
    before: float = 0.0

    @property
    def sitting(self) -> float:
        """The seconds of this sitting."""
        return time.monotonic() - self.begin

    @property
    def elapsed(self) -> float:
        """The seconds of all sittings. What a killed one took after its last checkpoint is lost."""
        return self.before + self.sitting


@dataclass(frozen=True)
class Timetable:
    """What was decided after `step`.

    Args:
        share: of the schedule, done by then.
        last: the step to end with.
        seconds: the whole time.
        every: shares of the schedule between two validations, and between two checkpoints.
        took: seconds of a step, of a validation, of a checkpoint and to translate the training
            corpus, for a sitting that has seen none.
        translates: whether there is time for phases to end with that.
    """

    step: int
    share: float
    last: int
    seconds: float
    validate_every: float
    checkpoint_every: float
    took_step: float = 0.0
    took_validation: float = 0.0
    took_checkpoint: float = 0.0
    took_translation: float = 0.0
    translates: bool = True

    def at(self, step: int) -> float:
        """Return the share of the schedule that is done after `step`."""
        if self.last <= self.step:
            return 1.0
        return self.share + (1 - self.share) * (step - self.step) / (self.last - self.step)

    def due(self, event: Event, step: int) -> bool:
        """Return whether `event` comes after `step`: after the last one both do."""
        every = self.validate_every if event == "validation" else self.checkpoint_every
        before, after = (math.floor(self.at(s) / every + 1e-9) for s in (step - 1, step))
        return step == self.last or after > before

    def stale(self, step: int) -> bool:
        """Return whether it is time to decide anew."""
        return step - self.step >= max(1, min(self.step, self.last - self.step) // DECISIONS)

    def rescaled(self, step: int, seconds: float) -> "Timetable":
        """Return the timetable for another length of time, from `step` on."""
        ratio = seconds / self.seconds
        share, last = min(self.at(step) / ratio, 1.0), max(step, round(self.last * ratio))
        return replace(self, step=step, share=share, last=last, seconds=seconds)
