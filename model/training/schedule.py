"""Phase and learning rate, pure functions of the step: there is no scheduler with a state."""

import math
from typing import Literal, NamedTuple

from tfm.model.settings import TrainingSettings

Name = Literal["both directions", "backward", "forward", "last"]


class Phase(NamedTuple):
    """A step counted within its phase, from 1, and the steps of the phase."""

    name: Name
    step: int
    steps: int


def phases(settings: TrainingSettings) -> list[tuple[Name, int]]:
    """Return the phases in their order, each with its steps."""
    before: list[tuple[Name, int]] = [
        ("both directions", settings.both_directions_steps),
        ("backward", settings.backward_steps),
        ("forward", settings.forward_steps),
    ]
    last = settings.steps - sum(steps for _, steps in before)
    return [*((name, steps) for name, steps in before if steps), ("last", last)]


def phase_of(step: int, settings: TrainingSettings) -> Phase:
    """Return where `step`, counted from 1, stands: each phase has its own schedule."""
    *before, (last, steps) = phases(settings)
    for name, length in before:
        if step <= length:
            return Phase(name, step, length)
        step -= length
    return Phase(last, step, steps)


def learns_the_way_back(step: int, settings: TrainingSettings) -> bool:
    """Return whether the network after `step` is one for the way back, which no user wants."""
    return phase_of(step, settings).name == "backward"


def begins_phase(step: int, settings: TrainingSettings) -> bool:
    """Return whether another phase than the first begins with `step`."""
    return step > 1 and phase_of(step, settings).step == 1


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate of `step`, counted from 1.

    Both schedules rise linearly to the peak `learning_rate` at step `warmup_steps`. Then

        inverse_sqrt   peak * sqrt(warmup_steps / step)    (paper, section 5.3, whose peak is
                                                           (d_model * warmup_steps) ** -0.5)
        cosine         from the peak to 0, which it would reach one step after the last

    Each phase has this schedule by itself: it starts anew from the weights of the one before.
    """
    phase = phase_of(step, settings)
    return rate_at(phase.step, phase.steps, settings)


def rate_at(step: float, steps: int, settings: TrainingSettings) -> float:
    """Return the learning rate at `step`, 1 at least, of a schedule of `steps` steps."""
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    progress = (step - warmup) / max(steps + 1 - warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
