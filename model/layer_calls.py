"""How training runs a layer: as it stands, compiled, or twice for the sake of memory.

These are run-time choices. They change what a step costs and not what it computes, and nothing of
them goes into a checkpoint. Validation and search run layers as they stand.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tfm.data.errors import BackendError
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

    def compiled(self) -> "LayerCalls":
        """Compile a layer of each kind by torch.compile, for batches of all sizes.

        All layers of a kind run by the same code, since their weights are arguments of it. On a CPU
        dropout drops what it would otherwise; on a GPU, and in attention by SDPA, the compiler has
        random numbers of its own, which follow from the same seed.
        """
        return LayerCalls(*(torch.compile(call, dynamic=True) for call in self))

    def checkpointed(self) -> "LayerCalls":
        """Keep the input of each layer only; its backward pass computes the rest once more.

        That is gradient checkpointing (Chen et al. 2016, arXiv 1604.06174). The second time the
        random numbers are those of the first, so that dropout drops the same elements.
        """
        return LayerCalls(*(partial(checkpoint, call, use_reentrant=False) for call in self))


DIRECT = LayerCalls()


def require_compiler(device: torch.device) -> None:
    """Refuse `training.compile` where torch.compile cannot work for want of what it builds upon.

    Raises:
        BackendError: names what is missing and how to get it.
    """
    if device.type == "cpu":
        usual = "clang++" if sys.platform == "darwin" else "g++"
        compiler = os.environ.get("CXX", usual)  # as torch looks for it
        if shutil.which(compiler) is None:
            _refuse(f"a C++ compiler, and there is no {compiler}", usual)
    elif importlib.util.find_spec("triton") is None:
        _refuse("Triton, and it is not installed", "triton")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        _refuse(f"Python's headers, and there is no {headers}", "python3-dev")


def _refuse(what: str, remedy: str) -> None:
    raise BackendError(f"training.compile needs {what}: install {remedy}, or train without")
