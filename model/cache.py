"""What decoding keeps between steps: each layer's keys and values.

Self-attention keys grow by one position a step and follow the beams; cross-attention keys are
projected once per sentence and shared by all its beams.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.model.attention.multihead import KeysValues
from tfm.model.attention.padding import Padding


@dataclass
class LayerCache:
    """One decoder layer: keys and values of the memory, B H S K, and of the past, R H t K."""

    memory: KeysValues
    past: KeysValues | None = None

    def append(self, new: KeysValues) -> KeysValues:
        """Add the keys and values of new positions and return all of them, R H t K."""
        if self.past is not None:
            new = KeysValues(
                torch.cat([self.past.keys, new.keys], dim=2),
                torch.cat([self.past.values, new.values], dim=2),
            )
        self.past = new
        return new


@dataclass
class DecoderCache:
    """The state of a batch in decoding: B sentences with N beams each, R = B N rows.

    The rows of one sentence are adjacent. N may change from step to step.
    """

    layers: list[LayerCache]
    source: Padding
    length: int = 0  # positions decoded so far

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows of the past by the given ones, R'; a row may occur more than once."""
        for layer in self.layers:
            if layer.past is not None:
                layer.past = _select(layer.past, rows)

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but the given ones; their rows are the caller's to `reorder`.

        The memory becomes no wider than the longest source that is left.
        """
        self.source = self.source.select(sentences)
        for layer in self.layers:
            real = KeysValues(*(x[:, :, : self.source.longest] for x in layer.memory))
            layer.memory = _select(real, sentences)


def _select(kv: KeysValues, rows: Tensor) -> KeysValues:
    return KeysValues(kv.keys.index_select(0, rows), kv.values.index_select(0, rows))
