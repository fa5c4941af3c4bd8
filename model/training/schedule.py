"""The learning rate as a pure function of the step: there is no scheduler whose state to save."""

import math
from typing import NamedTuple

from tfm.model.settings import TrainingSettings


class Phase(NamedTuple):
    """A step counted within its phase, from 1, and the steps of the phase."""

    step: int
    steps: int


def phase_of(step: int, settings: TrainingSettings) -> Phase:
    """Return where `step`, counted from 1, stands: of the two phases, each has its own schedule."""
    first = settings.both_directions_steps
    if step <= first:
        return Phase(step, first)
    return Phase(step - first, settings.steps - first)


def begins_phase(step: int, settings: TrainingSettings) -> bool:
    """Return whether the second of two phases begins with `step`."""
    return step > 1 and phase_of(step, settings).step == 1


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate of `step`, counted from 1.

    Both schedules rise linearly to the peak `learning_rate` at step `warmup_steps`. Then

        inverse_sqrt   peak * sqrt(warmup_steps / step)    (paper, section 5.3, whose peak is
                                                           (d_model * warmup_steps) ** -0.5)
        cosine         from the peak to 0, which it would reach one step after the last

    With `both_directions_steps` each of the two phases has this schedule by itself: the second
    starts anew from the weights of the first.
    """
    return rate_at(*phase_of(step, settings), settings)


def rate_at(step: float, steps: int, settings: TrainingSettings) -> float:
    """Return the learning rate at `step`, 1 at least, of a schedule of `steps` steps."""
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    progress = (step - warmup) / max(steps + 1 - warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
