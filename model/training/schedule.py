"""Phase and learning rate, pure functions of the place: there is no scheduler with a state.

The place is how many steps of the recipe are done: the step itself, unless the time is limited;
then a step stands for more of them or less than one (`budget.py`).
"""

import math
from typing import Literal, NamedTuple

from tfm.model.settings import TrainingSettings

Name = Literal["both directions", "backward", "forward", "last"]

# The pairs that are made when a phase ends, by the name of the phase (`diversification.py`).
MADE_AFTER = {"backward": "back-translations", "forward": "forward-translations"}


class Phase(NamedTuple):
    """A place counted within its phase, and the steps of the phase."""

    name: Name
    place: float
    steps: int


class Stretch(NamedTuple):
    """The part of the recipe that one step stands for, between two places."""

    before: float
    after: float

    @classmethod
    def of(cls, step: int) -> "Stretch":
        """Return that of `step`, counted from 1, where the time is not limited."""
        return cls(step - 1, step)


def phases(settings: TrainingSettings) -> list[tuple[Name, int]]:
    """Return the phases in their order, each with its steps."""
    before: list[tuple[Name, int]] = [
        ("both directions", settings.both_directions_steps),
        ("backward", settings.backward_steps),
        ("forward", settings.forward_steps),
    ]
    last = settings.steps - sum(steps for _, steps in before)
    return [*((name, steps) for name, steps in before if steps), ("last", last)]


def phase_of(place: float, settings: TrainingSettings) -> Phase:
    """Return where `place` stands: each phase has its own schedule."""
    *before, (last, last_steps) = phases(settings)
    for name, steps in before:
        if place <= steps:
            return Phase(name, place, steps)
        place -= steps
    return Phase(last, place, last_steps)


def begins_phase(stretch: Stretch, settings: TrainingSettings) -> bool:
    """Return whether a step leaves the phase where the steps before it ended."""
    before, after = (phase_of(place, settings).name for place in stretch)
    return before != after


def translations_due(place: float, settings: TrainingSettings) -> int:
    """Count how often the corpus is still to be translated, at the end of a phase."""
    end, due = 0, 0
    for name, steps in phases(settings):
        end += steps
        due += name in MADE_AFTER and place <= end
    return due


def learning_rate(place: float, settings: TrainingSettings) -> float:
    """Return the learning rate of the step that ends at `place`, 1 for the first.

    Both schedules rise linearly to the peak `learning_rate` at step `warmup_steps`. Then

        inverse_sqrt   peak * sqrt(warmup_steps / step)    (paper, section 5.3, whose peak is
                                                           (d_model * warmup_steps) ** -0.5)
        cosine         from the peak to 0, which it would reach one step after the last

    Each phase has this schedule by itself: it starts anew from the weights of the one before.
    """
    _, step, steps = phase_of(place, settings)
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    step = max(step, 1)  # a part of the first step has the rate of the whole
    if settings.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    progress = (step - warmup) / max(steps + 1 - warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
