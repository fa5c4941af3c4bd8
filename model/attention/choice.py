"""Which backend each of the three attentions uses: chosen once per run, by name, and said."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tfm.data.errors import BackendError
from tfm.model.attention import flash, formula, sdpa
from tfm.model.attention.multihead import Attend
from tfm.model.attention.padding import Padding

BACKENDS: dict[str, Attend] = {"math": formula.attend, "sdpa": sdpa.attend, "flash": flash.attend}

# `auto` leaves math for a lean kernel where the T x S matrices of a batch hold more numbers than
# this: in fp32 that is 64 MiB, and training keeps such matrices for every layer.
LARGEST_SCORES = 2**24

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, Kind, Kind] = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class AttentionPlan:
    """The backend of the encoder's, the decoder's and the cross-attention, and why.

    A run-time choice: nothing of it goes into a checkpoint. Each of `reasons` reads "kernel: why".
    """

    encoder: Attend
    decoder: Attend
    cross: Attend
    reasons: tuple[str, ...] = ("", "", "")

    def describe(self) -> list[str]:
        """Return lines that say which kernel each attention uses and why; one if all agree."""
        kinds: dict[str, list[str]] = {}
        for kind, why in zip(KINDS, self.reasons, strict=True):
            kinds.setdefault(why, []).append(kind)
        return [f"{_list(names)} attention: {why}" for why, names in kinds.items()]


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


class Conditions(NamedTuple):
    """What the choice depends on; `dropout` is 0 where the run does not train."""

    device: torch.device
    dtype: torch.dtype
    dropout: float
    training: bool

    @property
    def half(self) -> bool:
        """Whether queries, keys and values come in fp16 or bf16."""
        return self.dtype in (torch.float16, torch.bfloat16)


class Choice(NamedTuple):
    """A backend, and in one line: its kernel, and why."""

    attend: Attend
    reason: str


def resolve(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    dropout: float,
    training: bool,
    head_width: int | None = None,
) -> AttentionPlan:
    """Choose the backend called `name`, or by `auto` the best one for this machine.

    From here on cuDNN's attention is switched off in this process.

    Args:
        dtype: what queries, keys and values come in: the autocast dtype where there is one.
        dropout: of the attention weights; it counts in training only.
        head_width: K, to foresee that a kernel cannot take it.

    Raises:
        BackendError: if a backend asked for by name cannot run here; the message says why.
    """
    if name != "auto" and name not in BACKENDS:
        raise BackendError(f"--attention {name}: unknown; valid: auto, {', '.join(BACKENDS)}")
    sdpa.forbid_cudnn()
    given = Conditions(device, dtype, dropout if training else 0.0, training)
    if name == "flash":
        reasons = flash.refusals(
            device=device, dtype=dtype, dropout=given.dropout, head_width=head_width
        )
        if reasons:
            raise BackendError(f"--attention flash cannot run here: {'; '.join(reasons)}")
    encoder, decoder, cross = (choose(name, kind, given) for kind in KINDS)
    return AttentionPlan(
        encoder.attend,
        decoder.attend,
        cross.attend,
        (encoder.reason, decoder.reason, cross.reason),
    )


def choose(name: str, kind: Kind, given: Conditions) -> Choice:
    """Return the backend of one kind of attention. All that `auto` knows stands here."""
    if name == "auto" and given.device.type == "cpu" and given.dropout:
        why = f"math: attention dropout {given.dropout} rules out the CPU flash kernel"
        return Choice(formula.attend, why)
    if name == "auto" and given.device.type == "cpu" and given.half and given.training:
        why = (
            f"math, or CPU flash kernel (SDPA) beyond {LARGEST_SCORES / 1e6:.0f} million scores a "
            "batch: math trains faster in half precision, but holds the T x S matrix"
        )
        return Choice(math_while_small, why)
    if name in ("auto", "sdpa"):
        return Choice(sdpa.attend, sdpa_kernels(kind, given))
    if name == "flash":
        return Choice(flash.attend, flash_kernels(kind, given))
    return Choice(formula.attend, "math: the formula as it is written, with the T x S matrix")


def sdpa_kernels(kind: Kind, given: Conditions) -> str:
    """Return which kernels SDPA uses for one kind of attention, and why."""
    if given.device.type == "cpu":
        if given.dropout:
            return f"PyTorch's math (SDPA): attention dropout {given.dropout} rules out CPU flash"
        return "CPU flash kernel (SDPA): no T x S matrix"
    if given.device.type != "cuda":
        return "a kernel that PyTorch chooses (SDPA): nothing is known of this device"
    lean = "memory-efficient kernel (SDPA)"
    if flash.refusals(device=given.device, dtype=given.dtype, dropout=0.0, head_width=None):
        return f"{lean}: flash needs fp16 or bf16 and compute capability 8.0"
    if kind == "decoder":
        return "flash kernel (SDPA): causality hides the padding"
    return f"flash kernel (SDPA), or {lean} for padded batches: flash takes no mask"


def flash_kernels(kind: Kind, given: Conditions) -> str:
    """Return which flash kernels one kind of attention uses, and why."""
    if given.device.type == "cpu":
        return "CPU flash kernel (SDPA): asked for; it takes masks"
    if kind == "decoder":
        return "flash kernel (SDPA): asked for; causality hides the padding"
    return "flash kernel (SDPA), or varlen flash for padded batches: asked for; no mask is needed"


def math_while_small(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    queries: Padding | None,
    keys: Padding | None,
    dropout: float,
) -> Tensor:
    """Return the same as `formula.attend`, by `sdpa` where its T x S matrices would be large."""
    B, H, T, _ = q.shape
    scores = B * H * T * k.shape[-2]
    attend = formula.attend if scores <= LARGEST_SCORES else sdpa.attend
    return attend(q, k, v, causal=causal, queries=queries, keys=keys, dropout=dropout)
