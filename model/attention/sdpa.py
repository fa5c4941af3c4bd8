"""The backend `sdpa`: PyTorch's scaled_dot_product_attention, which picks a fused kernel itself.

On a CPU that is the CPU flash kernel, with or without a mask. On CUDA it is the flash kernel where
no mask is needed and the dtype is fp16 or bf16, and else the memory-efficient kernel; neither holds
the T x S matrix. Attention dropout sends a CPU to PyTorch's own math.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.attention.formula import visible_keys
from tfm.model.attention.padding import Padding


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
) -> Tensor:
    """Return the same as `formula.attend`, through the fused kernel that PyTorch chooses."""
    T, S = q.shape[-2], k.shape[-2]
    if causal and 1 < T == S and (keys is None or keys.mask is None):
        # SDPA aligns `is_causal` at the upper left, which is the lower right only for T == S.
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    visible = visible_keys(T, S, causal=causal, keys=keys, device=q.device)
    return attend_where(q, k, v, visible=visible, dropout=dropout)


def attend_where(
    q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor | None, dropout: float
) -> Tensor:
    """Return the same as `formula.attend_where`, through the fused kernel that PyTorch chooses."""
    if visible is not None and visible.dim() == 2:
        visible = visible[None, None]  # a mask of fewer than 4 axes loses the fused kernels
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)


def forbid_cudnn() -> None:
    """Keep cuDNN's attention out of this process, where SDPA would prefer it on recent GPUs.

    With an explicit mask it gives wrong gradients on torch 2.13 (pytorch/pytorch issue 196678).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
