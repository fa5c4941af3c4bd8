"""Attention of one decoding step: few queries of each sentence to keys that stand in a cache.

softmax(Q K^T / sqrt(K)) V as ever. A fused kernel pays a fixed price for each head of each
sentence, which in a batch on a CPU is more than the few products that it saves: there two batched
products and a softmax are several times as quick. A single sentence, and a GPU, is for the kernel.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# A softmax over rows of whole vector registers takes a tenth of the time of one with a remainder.
WIDTH = 16
FEW = 16  # heads of all sentences together, for which the fused kernel is quicker on a CPU


def padded_width(keys: int) -> int:
    """Return the least multiple of WIDTH that holds so many keys."""
    return -(-keys // WIDTH) * WIDTH


class AttendCached(Protocol):
    """softmax(Q K^T / sqrt(K) + bias) V with all heads side by side: R D to R D.

    Args:
        q: projected queries, R D: N of each of B sentences, R = B N.
        keys, values: B H C K, contiguous; finite where nothing is stored.
        bias: 0 where a query may see a key and -inf elsewhere, broadcastable to B H N C. Each query
            sees a key at least.
    """

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor: ...


def choose(keys: Tensor) -> AttendCached:
    """Return what attends fastest to keys, B H C K."""
    B, H, _, _ = keys.shape
    return by_kernel if keys.device.type != "cpu" or B * H <= FEW else by_products


def by_kernel(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend by the fused kernel that PyTorch chooses."""
    B, H, _, K = keys.shape
    q = q.view(B, -1, H, K).transpose(1, 2)  # B H N K
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias.to(q.dtype))
    return y.transpose(1, 2).reshape(-1, H * K)


def by_products(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend by two batched products, and a softmax in the dtype of `bias`."""
    B, H, C, K = keys.shape
    queries = q.view(B, -1, H, K).transpose(1, 2).reshape(B * H, -1, K)
    scores = torch.bmm(queries, keys.view(B * H, C, K).transpose(1, 2)).view(B, H, -1, C)
    scores = torch.add(bias, scores.to(bias.dtype), alpha=K**-0.5)
    weights = scores.softmax(-1).to(q.dtype).view(B * H, -1, C)
    y = torch.bmm(weights, values.view(B * H, C, K)).view(B, H, -1, K)
    return y.transpose(1, 2).reshape(-1, H * K)
