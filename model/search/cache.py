"""What decoding keeps between steps: the keys and values of each layer, once per sentence.

Cross-attention keys are projected once and all beams of a sentence share them. So do they with the
self-attention keys of the past: step t stores one key for each of the N hypotheses in slots of the
sentence, where it stays. A hypothesis is the set of slots it descends from, one of each step. When
the beams are reordered these sets are, and not a single key moves.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.attention import cached
from tfm.model.attention.padding import Padding

GROWTH = 1.5  # of the slots, when they are full: to copy all of them at each step would be dear


class DecoderCache:
    """The state of a batch in decoding: B sentences with N beams each, R = B N rows.

    The rows of one sentence are adjacent. N may change from step to step.

    Args:
        memory: the keys and values of the memory in each layer, B S 2D, keys left.
        source: the padding of the sources.
        heads: H.

    Attributes:
        memory: by layer, keys and values, 2 B H S K; wider than the longest source, with zeros.
        past: by layer, keys and values of all slots, 2 B H C K; zeros where nothing is stored yet.
        unseen: 0 at the keys of the memory and -inf elsewhere, B 1 1 S.
        ancestors: 0 at the slots that a hypothesis descends from and -inf at others, R C.
        used: slots that hold a key.
        length: positions decoded so far.
    """

    def __init__(self, memory: Sequence[Tensor], source: Padding, *, heads: int) -> None:
        self.source = source
        self.memory = [_by_head(kv, heads) for kv in memory]
        self.past = [kv[:, :, :, :0] for kv in self.memory]
        self.attend = cached.choose(self.memory[0][0])
        width = self.memory[0].shape[3]
        dtype = memory[0].dtype  # of sums and softmax, but not in half precision
        hidden = torch.arange(width, device=memory[0].device) >= source.lengths[:, None]  # B S
        unseen = hidden.new_zeros(hidden.shape, dtype=torch.promote_types(dtype, torch.float32))
        self.unseen = unseen.masked_fill_(hidden, -torch.inf)[:, None, None]
        self.ancestors = self.unseen.new_empty(0, 0)
        self._own = self.unseen.new_empty(0, 0)  # what `ancestors` is in the slots of one step
        self.used = self.length = 0

    def open(self, rows: int) -> int:
        """Give each of R rows a slot for its next position; return the first slot."""
        slot, N = self.used, rows // len(self.unseen)
        if not self.length:  # there is nothing to descend from
            self.ancestors = self.unseen.new_empty(rows, 0)
        if len(self._own) != N:
            self._own = self.unseen.new_full((N, N), -torch.inf).fill_diagonal_(0.0)
        self._grow(slot + N)
        self.ancestors.view(-1, N, self.ancestors.shape[1])[:, :, slot : slot + N] = self._own
        self.used += N
        self.length += 1
        return slot

    def write(self, layer: int, keys_values: Tensor, slot: int) -> None:
        """Store the projected keys and values, R 2D, of a layer in the slots from `slot` on."""
        past = self.past[layer]
        _, B, H, _, K = past.shape
        new = keys_values.view(B, -1, 2, H, K).permute(2, 0, 3, 1, 4)  # 2 B H N K
        past[:, :, :, slot : slot + new.shape[3]] = new

    def attend_past(self, layer: int, q: Tensor) -> Tensor:
        """Attend from queries, R D, to the slots that each row descends from, R D."""
        keys, values = self.past[layer]
        bias = self.ancestors.view(len(keys), 1, -1, keys.shape[2])
        return self.attend(q, keys, values, bias)

    def attend_memory(self, layer: int, q: Tensor) -> Tensor:
        """Attend from queries, R D, to the memory of each row's sentence, R D."""
        keys, values = self.memory[layer]
        return self.attend(q, keys, values, self.unseen)

    def reorder(self, rows: Tensor) -> None:
        """Let row i go on from row `rows[i]`, of the same sentence; it may occur more than once.

        Rows count as they were before `keep`.
        """
        self.ancestors = self.ancestors.index_select(0, rows)

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but the given ones; their rows are the caller's to `reorder`.

        The memory becomes no wider than the longest source that is left.
        """
        self.source = self.source.select(sentences)
        width = cached.padded_width(self.source.longest)
        self.unseen = self.unseen[sentences, :, :, :width]
        self.memory = [kv[:, :, :, :width].index_select(1, sentences) for kv in self.memory]
        self.past = [kv.index_select(1, sentences) for kv in self.past]

    def _grow(self, slots: int) -> None:
        """Make room for so many slots."""
        have = self.ancestors.shape[1]
        if slots <= have:
            return
        more = cached.padded_width(max(slots, int(GROWTH * have))) - have
        self.ancestors = F.pad(self.ancestors, (0, more), value=-torch.inf)
        self.past = [F.pad(kv, (0, 0, 0, more)) for kv in self.past]


def _by_head(keys_values: Tensor, heads: int) -> Tensor:
    """Bring projected keys and values, B S 2D, to the padded layout of attention, 2 B H S K."""
    B, S, width = keys_values.shape
    K = width // (2 * heads)
    result = keys_values.new_zeros(2, B, heads, cached.padded_width(S), K)
    result[:, :, :, :S] = keys_values.view(B, S, 2, heads, K).permute(2, 0, 3, 1, 4)
    return result
