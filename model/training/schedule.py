"""The learning rate as a pure function of the step: there is no scheduler whose state to save."""

import math

from tfm.model.settings import TrainingSettings


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate of `step`, counted from 1.

    Both schedules rise linearly to the peak `learning_rate` at step `warmup_steps`. Then

        inverse_sqrt   peak * sqrt(warmup_steps / step)    (paper, section 5.3, whose peak is
                                                           (d_model * warmup_steps) ** -0.5)
        cosine         from the peak to 0, which it would reach one step after the last
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    progress = (step - warmup) / max(settings.steps + 1 - warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
