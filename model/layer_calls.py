"""How training runs a layer: as it stands, compiled, or twice for the sake of memory.

These are run-time choices. They change what a step costs and not what it computes, and nothing of
them goes into a checkpoint. Validation and search run layers as they stand.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tfm.model.attention.padding import Padding
from tfm.model.layers import DecoderLayer, EncoderLayer


def call_encoder_layer(layer: EncoderLayer, x: Tensor, source: Padding) -> Tensor:
    """Map x, B S D, to B S D."""
    y: Tensor = layer(x, source=source)
    return y


def call_decoder_layer(
    layer: DecoderLayer, x: Tensor, memory: Tensor, source: Padding, target: Padding | None
) -> Tensor:
    """Map x, B T D, to B T D, with attention to the memory, B S D."""
    kv = layer.cross_attention.keys_values(memory)
    y: Tensor = layer(x, memory=kv, source=source, target=target)
    return y


class LayerCalls(NamedTuple):
    """What calls the layers of the encoder and of the decoder."""

    encoder: Callable[[EncoderLayer, Tensor, Padding], Tensor] = call_encoder_layer
    decoder: Callable[[DecoderLayer, Tensor, Tensor, Padding, Padding | None], Tensor] = (
        call_decoder_layer
    )

    def checkpointed(self) -> "LayerCalls":
        """Keep the input of each layer only; its backward pass computes the rest once more.

        That is gradient checkpointing (Chen et al. 2016, arXiv 1604.06174). The second time the
        random numbers are those of the first, so that dropout drops the same elements.
        """
        return LayerCalls(*(partial(checkpoint, call, use_reentrant=False) for call in self))


DIRECT = LayerCalls()
