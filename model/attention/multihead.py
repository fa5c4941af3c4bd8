"""Multi-head attention (paper, section 3.2.2): Concat(head_1, ..., head_H) W_O."""

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from tfm.model.attention import formula
from tfm.model.attention.padding import Padding
from tfm.model.linear import Linear


class Attend(Protocol):
    """The one signature of all attention backends; `formula.attend` says what it means.

    Right padding of the queries asks for nothing: what comes out at padded queries is finite, and
    otherwise unspecified.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool,
        queries: Padding | None,
        keys: Padding | None,
        dropout: float,
    ) -> Tensor: ...


class Weights(Protocol):
    """The weights, B H T S, of q, B H T K, and k, B H S K, by the definition of an attention."""

    def __call__(self, q: Tensor, k: Tensor, *, causal: bool, keys: Padding | None) -> Tensor: ...


class KeysValues(NamedTuple):
    """Projected keys and values, each B H S K."""

    keys: Tensor
    values: Tensor


class MultiHeadAttention(nn.Module):
    """H attentions of width K = D / H side by side, and W_O; the two classes below project.

    `weights` says what it is: softmax(Q K^T / sqrt(K)), unless the architecture has another form.
    `attend` is the backend; it is a run-time choice and no part of the checkpoint.
    """

    def __init__(self, d_model: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.output = Linear(d_model, d_model)
        self.weights: Weights = formula.attention_weights
        self.attend: Attend = formula.attend
        xavier_uniform(self.output)

    def split(self, x: Tensor) -> Tensor:
        """Give each head its part: B T D -> B H T K."""
        B, T, D = x.shape
        return x.view(B, T, self.heads, D // self.heads).transpose(1, 2)

    def forward(
        self,
        q: Tensor,
        kv: KeysValues,
        *,
        causal: bool = False,
        queries: Padding | None = None,
        keys: Padding | None = None,
    ) -> Tensor:
        """Attend from projected queries, B H T K, to projected keys and values: B T D."""
        dropout = self.dropout if self.training else 0.0
        heads = self.attend(
            q, kv.keys, kv.values, causal=causal, queries=queries, keys=keys, dropout=dropout
        )
        y: Tensor = self.output(heads.transpose(1, 2).flatten(-2))  # B H T K -> B T D
        return y


class SelfAttention(MultiHeadAttention):
    """Attention of a sequence to itself: one product for W_Q, W_K and W_V, in this order."""

    def __init__(self, d_model: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(d_model, heads, dropout=dropout)
        self.projection = Linear(d_model, 3 * d_model)
        xavier_uniform(self.projection, matrices=3)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, KeysValues]:
        """Project x, B T D, to queries, keys and values, B H T K each."""
        q, k, v = self.projection(x).chunk(3, dim=-1)
        return self.split(q), KeysValues(self.split(k), self.split(v))


class CrossAttention(MultiHeadAttention):
    """Attention to a memory: W_Q by itself, and one product for W_K and W_V, in this order.

    In decoding the second is taken once per sentence and the first at every step.
    """

    def __init__(self, d_model: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(d_model, heads, dropout=dropout)
        self.query = Linear(d_model, d_model)
        self.key_value = Linear(d_model, 2 * d_model)
        xavier_uniform(self.query)
        xavier_uniform(self.key_value, matrices=2)

    def queries(self, x: Tensor) -> Tensor:
        """Project x, B T D, to queries, B H T K."""
        return self.split(self.query(x))

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Project memory, B S D, to keys and values, B H S K each."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return KeysValues(self.split(keys), self.split(values))


def xavier_uniform(linear: nn.Linear, *, matrices: int = 1) -> None:
    """Draw each of the matrices that stand one above the other by itself; biases are zero."""
    for matrix in linear.weight.chunk(matrices):
        nn.init.xavier_uniform_(matrix)
    nn.init.zeros_(linear.bias)
