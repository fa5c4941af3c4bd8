"""The backend `flash`: a flash kernel, or a refusal that says why (Dao et al. 2022, 2023).

A flash kernel computes the formula exactly, tile by tile, and never holds the T x S matrix. On a
CPU it takes masks. On CUDA it takes none, so padding is removed instead: the sentences of a batch
stand end to end, each attended to by itself, with offsets of their own for queries and keys.
"""

import inspect
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tfm.data.errors import BackendError
from tfm.model.attention import sdpa
from tfm.model.attention.padding import Padding

WIDEST_HEAD = 256  # of the CUDA kernels


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
    """Return the same as `formula.attend`, through a flash kernel and no other.

    Raises:
        BackendError: if the kernel refuses; `refusals` foresees that for all but odd shapes.
    """
    attend = only_flash if q.device.type == "cpu" else without_mask
    return attend(q, k, v, causal=causal, queries=queries, keys=keys, dropout=dropout)


def without_mask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
) -> Tensor:
    """Run SDPA's flash kernel where it needs no mask, and else remove the padding."""
    T, S = q.shape[-2], k.shape[-2]
    causal = causal and T > 1  # the last query sees every key
    padded = keys is not None and keys.mask is not None
    # Causality alone hides right padding from the real queries.
    if (causal and T == S) or not (causal or padded):
        return only_flash(q, k, v, causal=causal, queries=queries, keys=None, dropout=dropout)
    if dropout:
        raise BackendError(f"--attention flash: {NO_DROPOUT.format(dropout)}")
    return attend_unpadded(q, k, v, causal=causal, queries=queries, keys=keys)


def only_flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
) -> Tensor:
    """Run SDPA with no other kernel than flash."""
    return _forced(
        lambda: sdpa.attend(q, k, v, causal=causal, queries=queries, keys=keys, dropout=dropout)
    )


def attend_where(
    q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor | None, dropout: float
) -> Tensor:
    """Return the same as `formula.attend_where` through the flash kernel, which a CPU's only is.

    Raises:
        BackendError: if the kernel refuses, as every CUDA flash kernel refuses a mask.
    """
    return _forced(lambda: sdpa.attend_where(q, k, v, visible=visible, dropout=dropout))


def _forced(attend: Callable[[], Tensor]) -> Tensor:
    """Run `attend` with all kernels but flash switched off (for the whole process, meanwhile)."""

    def run() -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            return attend()

    try:
        return run()
    except RuntimeError as error:
        if not re.search("No (available kernel|viable backend)", str(error)):
            raise
        raise BackendError(f"--attention flash: PyTorch refused: {_reason(run)}") from error


def _reason(run: Callable[[], Tensor]) -> str:
    """Run again what failed and return PyTorch's reasons, which it gives as warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
        except RuntimeError as error:
            said = [str(warning.message).split(" (Triggered internally")[0] for warning in caught]
            return " ".join(said) or str(error)
    return "no reason given"


class Unpadded(Protocol):
    """A variable-length kernel: attention within each sentence of a batch without padding."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        queries: Padding,
        keys: Padding,
        causal: bool,
    ) -> Tensor:
        """Map q, `queries.total` H K, and k, v, `keys.total` H K, to the shape of q."""
        ...


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    queries: Padding,
    keys: Padding,
    causal: bool,
    reach: int | None = None,
) -> Tensor:
    """Run `torch.nn.attention.varlen`, whose kernel wants head widths that are multiples of 8.

    Its `causal` is aligned at the lower right of each sentence.

    Args:
        reach: how far from its own place a query sees, to both sides; None for any distance.
    """
    from torch.nn.attention.varlen import varlen_attn

    K = q.shape[-1]
    arguments: dict[str, Any] = causal_argument() if causal else {}
    if reach is not None:
        arguments = {"window_size": (reach, reach)}
    if K % 8:
        q, k, v = (F.pad(x, (0, -K % 8)) for x in (q, k, v))
        arguments["scale"] = K**-0.5
    try:
        out = varlen_attn(
            q, k, v, queries.starts, keys.starts, queries.longest, keys.longest, **arguments
        )
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # out of memory, a fault of the device
            raise
        raise BackendError(f"--attention flash: the varlen kernel refused: {error}") from error
    assert isinstance(out, Tensor)  # a pair only where more was asked for
    return out[..., :K]


@cache
def causal_argument() -> dict[str, Any]:
    """Return what this version of PyTorch calls causality in `varlen_attn`."""
    return {"window_size": (-1, 0)} if has_window() else {"is_causal": True}


def has_window() -> bool:
    """Return whether `varlen_attn` of this version of PyTorch can restrict how far a query sees."""
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in inspect.signature(varlen_attn).parameters


def attend_unpadded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    kernel: Unpadded = varlen,
) -> Tensor:
    """Remove the padding, attend within each sentence by `kernel`, put the padding back.

    Queries and keys have offsets of their own: in cross-attention their lengths differ. Without a
    description all queries, or keys, are real. Padded queries come out as zeros.

    Raises:
        ValueError: if `causal` and the sides are padded, but not alike: the lower right of a
            sentence is then not that of the padded matrix.
    """
    B, T, S = len(q), q.shape[-2], k.shape[-2]
    queries = queries or Padding.full(B, T, device=q.device)
    keys = keys or Padding.full(B, S, device=q.device)
    if causal and queries is not keys and (queries.mask is not None or keys.mask is not None):
        raise ValueError("flash: causal attention needs queries and keys that are padded alike")
    sides = ((q, queries), (k, keys), (v, keys))
    out = kernel(
        *(side.unpad(x.transpose(1, 2)) for x, side in sides),  # B H L K -> total H K
        queries=queries,
        keys=keys,
        causal=causal,
    )
    return queries.pad(out).transpose(1, 2)


NO_DROPOUT = (
    "attention dropout {}: flash kernels have none; "
    "set model.attention_dropout=0 or use --attention sdpa"
)


def refusals(
    *, device: torch.device, dtype: torch.dtype, dropout: float, head_width: int | None
) -> list[str]:
    """Return all reasons why no flash kernel can run here, with remedies; none if one can.

    `dropout` is that of the attention weights in the coming run: 0 where it does not train.
    """
    reasons = [NO_DROPOUT.format(dropout)] if dropout else []
    if device.type == "cuda":
        reasons += _cuda_refusals(device, dtype, head_width)
    elif device.type != "cpu":
        reasons.append(f"device {device.type}: no flash kernel is known here; use --attention math")
    return reasons


def _cuda_refusals(device: torch.device, dtype: torch.dtype, head_width: int | None) -> list[str]:
    reasons = []
    if dtype not in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        reasons.append(f"{name}: flash needs fp16 or bf16; add --precision bf16")
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        reasons.append(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}: "
            "flash needs 8.0; use --attention sdpa"
        )
    if head_width is not None and head_width > WIDEST_HEAD:
        reasons.append(
            f"head width {head_width}: flash takes {WIDEST_HEAD} at most; raise model.heads"
        )
    if not torch.backends.cuda.is_flash_attention_available():
        reasons.append("this PyTorch was built without flash kernels; use --attention sdpa")
    return reasons
