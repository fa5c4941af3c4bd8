"""The encoder-decoder Transformer (Vaswani et al. 2017, section 3)."""

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

from tfm.model.attention.choice import AttentionPlan
from tfm.model.attention.padding import Padding
from tfm.model.dropout import Dropout
from tfm.model.layer_calls import DIRECT, LayerCalls
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.positions import Positions
from tfm.model.settings import ModelSettings

Layer = TypeVar("Layer", bound=nn.Module)


class Stack(nn.ModuleList, Generic[Layer]):
    """A list of layers of one type, which iterating over it keeps."""

    def __iter__(self) -> Iterator[Layer]:
        return cast(Iterator[Layer], super().__iter__())


class Transformer(nn.Module):
    """Source ids in, a distribution over the next target id out.

    With a joint vocabulary one matrix is the source embedding, the target embedding and the output
    projection (paper, section 3.4); with separate ones the last two share one.
    """

    def __init__(
        self, settings: ModelSettings, *, source_vocab: int, target_vocab: int, joint: bool
    ) -> None:
        super().__init__()
        if joint and source_vocab != target_vocab:
            raise ValueError(f"joint vocabularies differ: {source_vocab} and {target_vocab}")
        self.settings = settings
        self.source_vocab, self.target_vocab, self.joint = source_vocab, target_vocab, joint
        D = settings.d_model
        self.target_embedding = _embedding(target_vocab, D)
        self.source_embedding = self.target_embedding if joint else _embedding(source_vocab, D)
        self.positions = Positions(D)
        self.dropout = Dropout(settings.dropout)
        self.encoder = Stack[EncoderLayer](
            EncoderLayer(settings, form) for form in settings.encoder_forms
        )
        self.decoder = Stack[DecoderLayer](
            DecoderLayer(settings) for _ in range(settings.decoder_layers)
        )
        pre = settings.norm == "pre"  # pre-norm leaves the last sum unnormalised
        self.encoder_norm = nn.LayerNorm(D) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(D) if pre else nn.Identity()
        self.training_calls = DIRECT  # a run-time choice, as the attention backends are

    @property
    def num_parameters(self) -> int:
        """The number of trained numbers; a shared matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def use_attention(self, plan: AttentionPlan) -> None:
        """Run the three attentions by the backends of `plan` from now on.

        Raises:
            ValueError: if it was made for another architecture: it lacks a form of this one.
        """
        for encoder_layer in self.encoder:
            encoder_layer.self_attention.attend = plan.of_encoder(encoder_layer.form)
        for decoder_layer in self.decoder:
            decoder_layer.self_attention.attend = plan.decoder
            decoder_layer.cross_attention.attend = plan.cross

    def encode(self, source_ids: Tensor, source: Padding, *, kept: Tensor | None = None) -> Tensor:
        """Return the memory, B S D, of source ids, B S.

        Args:
            kept: see `embed`.
        """
        x: Tensor = self.embed(self.source_embedding, source_ids, kept=kept)
        for layer in self.encoder:
            x = self._calls.encoder(layer, x, source)
        x = self.encoder_norm(x)
        return x

    def decode(
        self,
        target_ids: Tensor,
        memory: Tensor,
        *,
        source: Padding,
        target: Padding | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states, B T D, of target ids, B T, by teacher forcing.

        Args:
            kept: see `embed`.
        """
        x: Tensor = self.embed(self.target_embedding, target_ids, kept=kept)
        for layer in self.decoder:
            x = self._calls.decoder(layer, x, memory, source, target)
        x = self.decoder_norm(x)
        return x

    @property
    def _calls(self) -> LayerCalls:
        return self.training_calls if self.training else DIRECT

    def project(self, hidden: Tensor) -> Tensor:
        """Return logits, ... V, of hidden states, ... D: the product with the target embedding."""
        return nn.functional.linear(hidden, self.target_embedding.weight)

    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        *,
        source: Padding,
        target: Padding | None = None,
    ) -> Tensor:
        """Return the logits of each next target id, B T V."""
        memory = self.encode(source_ids, source)
        return self.project(self.decode(target_ids, memory, source=source, target=target))

    def embed(
        self, embedding: nn.Embedding, ids: Tensor, *, start: int = 0, kept: Tensor | None = None
    ) -> Tensor:
        """Return Dropout(E[ids] sqrt(D) + PE), B L D (paper, sections 3.4, 3.5, 5.4).

        Args:
            kept: B L; False makes E[id] zero there and leaves the position (SimCut).
        """
        x: Tensor = embedding(ids) * self.settings.d_model**0.5
        if kept is not None:
            x = x * kept.unsqueeze(-1)
        x = self.dropout(self.positions(x, start=start))
        return x


def _embedding(vocab: int, d_model: int) -> nn.Embedding:
    """Draw rows of length 1 or so: after the factor sqrt(D) their numbers are unit-sized, and so
    are the first logits, the products with normalised hidden states."""
    embedding = nn.Embedding(vocab, d_model)
    nn.init.normal_(embedding.weight, std=d_model**-0.5)
    return embedding
