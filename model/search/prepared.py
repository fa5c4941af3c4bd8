"""A network made ready for search: its products packed, its decoder one position at a time.

`Transformer.decode` computes all positions of a target at once, as training does. Search knows one
more at each step, so the earlier ones stay in a cache. What a step computes equals `decode` there;
the sub-layers are written out, so that nothing happens twice and each sum is part of a product.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tfm.model.attention.padding import Padding
from tfm.model.layers import DecoderLayer
from tfm.model.search.cache import DecoderCache
from tfm.model.search.products import choose_product, replace_products
from tfm.model.transformer import Transformer

Normalise = Callable[[Tensor], Tensor]
Multiply = Callable[..., Tensor]  # what a `Product` does


class Prepared:
    """A network for search. Embeddings and norms it shares with `model`; of the other weights it
    has packed copies, where packing pays. Once weights change, prepare the model anew.

    Args:
        model: in eval mode. It is left as it is.
        dtype: of weights and arithmetic, if not that of `model`; then nothing is shared.
        quantize: whether products are taken in 8 bits, which is for CPUs.

    Raises:
        BackendError: if there are no 8-bit products here.

    Attributes:
        network: the same with products in place of linear layers.
        project: hidden states, ... D, to logits, ... V.
    """

    def __init__(
        self, model: Transformer, *, dtype: torch.dtype | None = None, quantize: bool = False
    ) -> None:
        assert not model.training, "dropout would make search random"
        if dtype in (None, model.target_embedding.weight.dtype):
            shared = {id(parameter): parameter for parameter in model.parameters()}
            self.network = copy.deepcopy(model, shared)  # other modules, the same parameters
        else:
            self.network = copy.deepcopy(model).to(dtype)
        weight = self.network.target_embedding.weight
        self._embedding, self._scale = weight.detach(), weight.shape[1] ** 0.5
        make = choose_product(weight, quantize=quantize)
        replace_products(self.network, make)
        self.project = make(weight, None)
        self._layers = [StepLayer(layer) for layer in self.network.decoder]

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.target_embedding.weight.device

    @property
    def vocabulary(self) -> int:
        """The number of target ids, V."""
        return self.network.target_vocab

    def encode(self, source_ids: Tensor, source: Padding) -> Tensor:
        """Return the memory, B S D, of source ids, B S."""
        return self.network.encode(source_ids, source)

    def start(self, memory: Tensor, source: Padding) -> DecoderCache:
        """Begin decoding: project the memory, B S D, to each layer's keys and values, once."""
        projected = [layer.cross_attention.key_value(memory) for layer in self.network.decoder]
        return DecoderCache(projected, source, heads=self.network.settings.heads)

    def step(self, target_ids: Tensor, cache: DecoderCache) -> Tensor:
        """Decode one more position: ids, R, to last hidden states, R D. Equals `decode` there."""
        x = self._embed(target_ids, cache.length)
        slot = cache.open(rows=len(target_ids))
        for place, layer in enumerate(self._layers):
            x = layer.step(x, cache, place, slot)
        hidden: Tensor = self.network.decoder_norm(x)
        return hidden

    def _embed(self, target_ids: Tensor, place: int) -> Tensor:
        """Return E[ids] sqrt(D) + PE(place), R D, rounded once."""
        x = self._embedding.index_select(0, target_ids)
        position = self.network.positions.at(place, x.device)
        return torch.add(position, x, alpha=self._scale).to(x.dtype)


def prepare(model: Transformer | Prepared, *, quantize: bool = False) -> Prepared:
    """Return `model` ready for search. To search often, prepare it once.

    Args:
        quantize: see `Prepared`; it says nothing to a model that is ready.
    """
    return model if isinstance(model, Prepared) else Prepared(model, quantize=quantize)


class StepLayer:
    """A decoder layer for one new position of each row; see `DecoderLayer` for what it computes.

    Args:
        layer: with products in place of its linear layers.
    """

    def __init__(self, layer: DecoderLayer) -> None:
        attention, cross = layer.self_attention, layer.cross_attention
        self.pre = layer.around_self.pre
        around = layer.around_self, layer.around_cross, layer.around_feed_forward
        self.norms = tuple(normalise(residual.norm) for residual in around)
        # Their `forward` itself: the hooks that a call of a module looks for cost as much as a sum.
        self.projection: Multiply = attention.projection.forward
        self.output: Multiply = attention.output.forward
        self.query: Multiply = cross.query.forward
        self.cross_output: Multiply = cross.output.forward
        self.feed_forward: Multiply = layer.feed_forward.forward

    def step(self, x: Tensor, cache: DecoderCache, place: int, slot: int) -> Tensor:
        """Map x, R D, to R D.

        Args:
            place: of this layer in the decoder.
            slot: the first of those that `cache` opened for the position.
        """
        D = x.shape[1]
        first, second, third = self.norms
        projected = self.projection(self._enter(first, x))
        cache.write(place, projected[:, D:], slot)
        y = cache.attend_past(place, projected[:, :D])
        x = self._leave(first, self.output(y, plus=x))
        y = cache.attend_memory(place, self.query(self._enter(second, x)))
        x = self._leave(second, self.cross_output(y, plus=x))
        return self._leave(third, self.feed_forward(self._enter(third, x), plus=x))

    def _enter(self, norm: Normalise, x: Tensor) -> Tensor:
        return norm(x) if self.pre else x

    def _leave(self, norm: Normalise, x: Tensor) -> Tensor:
        return x if self.pre else norm(x)


def normalise(norm: nn.LayerNorm) -> Normalise:
    """Return what `norm` computes, without the cost of calling a module."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
