"""How long the parts of a run take on this machine, and so how long is left.

A sitting measures its own pace: another one may have been on another machine.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from tfm.model.settings import TrainingSettings
from tfm.model.training.schedule import translations_due

LATEST = 100  # steps that the pace is the mean of


@dataclass
class Pace:
    """Seconds that a step and other parts of a run took lately; 0 where none was seen."""

    steps: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    validation: float = 0.0
    checkpoint: float = 0.0
    translation: float = 0.0  # of the training corpus
    warm: bool = False  # whether a step was seen; the first one is slow and does not count

    def add_step(self, seconds: float) -> None:
        """Count a step."""
        if self.warm:
            self.steps.append(seconds)
        self.warm = True

    @property
    def step(self) -> float:
        """Seconds per step."""
        return sum(self.steps) / len(self.steps) if self.steps else 0.0

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Time the context as the latest `part`: "validation", "checkpoint" or "translation"."""
        begin = perf_counter()
        yield
        setattr(self, part, perf_counter() - begin)

    def seconds_left(self, step: int, settings: TrainingSettings) -> float:
        """Return what is left after `step`: steps and what comes between them, and the choice."""
        steps = settings.steps
        validations = validations_due(step, settings)
        checkpoints = times_due(step, steps, settings.checkpoint_every)
        return (
            max(steps - step, 0) * self.step
            + (validations + 1) * self.validation  # one more, of the mean of the last checkpoints
            + (checkpoints + 1) * self.checkpoint
            + translations_due(step, settings) * self.translation
        )


def validations_due(step: int, settings: TrainingSettings) -> int:
    """Count the validations after `step`: the way back, while it is learned, is not measured."""
    begin = settings.both_directions_steps
    end = begin + settings.backward_steps
    every = settings.validate_every
    left_out = max(0, end // every - max(begin, step) // every)
    return times_due(step, settings.steps, every) - left_out


def times_due(step: int, steps: int, every: int) -> int:
    """Count how often what is due `every` so many steps, and after the last, is after `step`."""
    if step >= steps:
        return 0
    return steps // every - step // every + (steps % every > 0)
