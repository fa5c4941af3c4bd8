"""Multi-head attention (paper, section 3.2.2): Concat(head_1, ..., head_H) W_O."""

from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from tfm.model.attention import formula
from tfm.model.attention.padding import Padding


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


class KeysValues(NamedTuple):
    """Projected keys and values, each B H S K."""

    keys: Tensor
    values: Tensor


class MultiHeadAttention(nn.Module):
    """H attentions of width K = D / H side by side, with W_Q, W_K, W_V and W_O.

    The rows of `projection` are W_Q, W_K, W_V, so that self-attention needs one product for all
    three. `attend` is the backend; it is a run-time choice and no part of the checkpoint.
    """

    def __init__(self, d_model: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.projection = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.attend: Attend = formula.attend
        self.initialise()

    def initialise(self) -> None:
        """Draw W_Q, W_K, W_V and W_O Xavier-uniformly, each by itself; biases are zero."""
        for matrix in (*self.projection.weight.chunk(3), self.output.weight):
            nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(self.projection.bias)
        nn.init.zeros_(self.output.bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project x, B T D, to queries, B H T K."""
        D = x.shape[-1]
        return self.split(F.linear(x, self.projection.weight[:D], self.projection.bias[:D]))

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Project memory, B S D, to keys and values, B H S K each."""
        D = memory.shape[-1]
        both = F.linear(memory, self.projection.weight[D:], self.projection.bias[D:])
        keys, values = both.chunk(2, dim=-1)
        return KeysValues(self.split(keys), self.split(values))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, KeysValues]:
        """Project x, B T D, to queries, keys and values in one product."""
        q, k, v = self.projection(x).chunk(3, dim=-1)
        return self.split(q), KeysValues(self.split(k), self.split(v))

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
