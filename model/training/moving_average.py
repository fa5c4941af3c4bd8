"""An exponential moving average of the weights: steadier than the weights of any single step.

After each step the average moves a little towards the weights,

    average <- d average + (1 - d) weights,   d = min(decay, (1 + step) / (10 + step)),

so that the first, useless weights are soon forgotten (Polyak and Juditsky 1992; the warm-up of d is
that of TensorFlow's ExponentialMovingAverage). It is what is validated and saved; the weights go on
without it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from tfm.model.checkpoint import weights_of
from tfm.model.transformer import Transformer


class MovingAverage:
    """The average of the weights of `model`, by name; it begins with those of now.

    Args:
        decay: d after the warm-up, above 0 and below 1.
    """

    def __init__(self, model: Transformer, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = {name: weight.clone() for name, weight in weights_of(model).items()}

    def update(self, step: float, *, counts: float = 1.0) -> None:
        """Move towards the weights that the model has after `step` steps of the recipe.

        Args:
            counts: how many of them were one here: d is raised to this power.
        """
        decay = min(self.decay, (1 + step) / (10 + step)) ** counts
        trained = list(weights_of(self.model).values())
        torch._foreach_lerp_(list(self.weights.values()), trained, 1 - decay)

    def set(self, weights: Mapping[str, Tensor]) -> None:
        """Become the average `weights`, which may be on another device."""
        for name, average in self.weights.items():
            average.copy_(weights[name])

    def fill(self) -> None:
        """Put the average into the model."""
        for name, weight in weights_of(self.model).items():
            weight.copy_(self.weights[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the average until the context ends; then its weights are back."""
        trained = {name: weight.clone() for name, weight in weights_of(self.model).items()}
        try:
            self.fill()
            yield
        finally:
            for name, weight in weights_of(self.model).items():
                weight.copy_(trained[name])
