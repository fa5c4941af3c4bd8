"""The layers of the encoder and the decoder (paper, section 3.1, figure 1)."""

import torch.nn.functional as F
from torch import Tensor, nn

from tfm.model.attention.forms import AttentionForm, by_definition, weights_of
from tfm.model.attention.multihead import CrossAttention, KeysValues, SelfAttention, xavier_uniform
from tfm.model.attention.padding import Padding
from tfm.model.dropout import Dropout
from tfm.model.linear import Linear
from tfm.model.settings import ModelSettings


class FeedForward(nn.Module):
    """Position-wise network: max(0, x W_1 + b_1) W_2 + b_2 (paper, section 3.3), or with GELU.

    SwiGLU (Shazeer 2020) is (silu(x W_1) * x W_3) W_2 with 2/3 of the inner width, so that its
    three matrices have as many parameters as the two of the others.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        gated = activation == "swiglu"
        inner = gated_width(d_ff) if gated else d_ff
        self.inner = Linear(d_model, 2 * inner if gated else inner)  # W_1, or W_1 and W_3
        self.outer = Linear(inner, d_model)  # W_2
        xavier_uniform(self.inner, matrices=2 if gated else 1)
        xavier_uniform(self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """Map x, ... D, to ... D, each position by itself."""
        x = self.inner(x)
        match self.activation:
            case "relu":
                x = F.relu(x)
            case "gelu":
                x = F.gelu(x)
            case "swiglu":
                gate, value = x.chunk(2, dim=-1)
                x = F.silu(gate) * value
            case other:
                raise ValueError(f"`activation` must be relu, gelu or swiglu, but is {other!r}.")
        x = self.outer(x)
        return x


def gated_width(d_ff: int) -> int:
    """Return 2/3 of d_ff, rounded to a multiple of 8: matrix products are fast at such widths."""
    return max(8, 8 * round(d_ff / 12))


class Residual(nn.Module):
    """The way around a sub-layer, with its layer norm and dropout.

    Post-norm, as in the paper: LayerNorm(x + Dropout(Sublayer(x))).
    Pre-norm: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.pre = settings.norm == "pre"
        self.norm = nn.LayerNorm(settings.d_model)
        self.dropout = Dropout(settings.dropout)

    def enter(self, x: Tensor) -> Tensor:
        """Return what the sub-layer reads."""
        if self.pre:
            x = self.norm(x)
        return x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Join the sub-layer's output y with its input x."""
        x = x + self.dropout(y)
        if not self.pre:
            x = self.norm(x)
        return x


class EncoderLayer(nn.Module):
    """Self-attention of one form or another, then the feed-forward network."""

    def __init__(self, settings: ModelSettings, form: AttentionForm = "full") -> None:
        super().__init__()
        self.form = form
        self.self_attention = _self_attention(settings)
        self.self_attention.weights = weights_of(form, window=settings.window)
        self.self_attention.attend = by_definition(form, window=settings.window)
        self.feed_forward = _feed_forward(settings)
        self.around_attention = Residual(settings)
        self.around_feed_forward = Residual(settings)

    def forward(self, x: Tensor, *, source: Padding) -> Tensor:
        """Map x, B S D, to B S D."""
        q, kv = self.self_attention.queries_keys_values(self.around_attention.enter(x))
        x = self.around_attention.leave(x, self.self_attention(q, kv, queries=source, keys=source))
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, then the feed-forward network."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = _self_attention(settings)
        self.cross_attention = _cross_attention(settings)
        self.feed_forward = _feed_forward(settings)
        self.around_self = Residual(settings)
        self.around_cross = Residual(settings)
        self.around_feed_forward = Residual(settings)

    def forward(
        self,
        x: Tensor,
        *,
        memory: KeysValues,
        source: Padding,
        target: Padding | None = None,
    ) -> Tensor:
        """Map x, B T D, to B T D.

        Causality alone hides the right padding of the target from its real positions, so the
        self-attention needs no padding mask.
        """
        q, kv = self.self_attention.queries_keys_values(self.around_self.enter(x))
        x = self.around_self.leave(x, self.self_attention(q, kv, causal=True, queries=target))
        q = self.cross_attention.queries(self.around_cross.enter(x))
        x = self.around_cross.leave(x, self.cross_attention(q, memory, queries=target, keys=source))
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y)


def _self_attention(settings: ModelSettings) -> SelfAttention:
    return SelfAttention(settings.d_model, settings.heads, dropout=settings.attention_dropout)


def _cross_attention(settings: ModelSettings) -> CrossAttention:
    return CrossAttention(settings.d_model, settings.heads, dropout=settings.attention_dropout)


def _feed_forward(settings: ModelSettings) -> FeedForward:
    return FeedForward(settings.d_model, settings.d_ff, settings.activation)
