"""Which backend each of the three attentions uses: chosen once per run, by name, and said."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tfm.data.errors import BackendError
from tfm.model.attention import flash, forms, formula, sdpa
from tfm.model.attention.conditions import Choice, Conditions
from tfm.model.attention.forms import AttentionForm
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

    Attributes:
        encoder: of the encoder layers with full attention.
        form: of attention in the other encoder layers, if there are any.
        other: what they run.
        full_layers: whether the encoder has layers with full attention, so that `encoder` counts.
    """

    encoder: Attend
    decoder: Attend
    cross: Attend
    reasons: tuple[str, ...] = ("", "", "")
    form: AttentionForm = "full"
    other: Choice | None = None
    full_layers: bool = True

    def of_encoder(self, form: AttentionForm) -> Attend:
        """Return what an encoder layer of that form runs."""
        if form == "full":
            return self.encoder
        if self.other is None or self.form != form:
            raise ValueError(f"the plan was made for a network without {form} attention")
        return self.other.attend

    def describe(self) -> list[str]:
        """Return lines that say which kernel each attention uses and why; one if all agree."""
        kinds: dict[str, list[str]] = {}
        for kind, why in self.used():
            kinds.setdefault(why, []).append(kind)
        return [f"{_list(names)} attention: {why}" for why, names in kinds.items()]

    def used(self) -> list[tuple[str, str]]:
        """Return each kind of attention that the network has, with the reason for its kernel."""
        kinds: list[tuple[str, str]] = list(zip(KINDS, self.reasons, strict=True))
        if self.other is None:
            return kinds
        if not self.full_layers:
            return [("encoder", self.other.reason), *kinds[1:]]
        others = (f"{self.form} encoder", self.other.reason)
        return [others, ("full encoder", self.reasons[0]), *kinds[1:]]


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def resolve(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    dropout: float,
    training: bool,
    head_width: int | None = None,
    encoder_forms: tuple[AttentionForm, ...] = ("full",),
    window: int = 0,
) -> AttentionPlan:
    """Choose the backend called `name`, or by `auto` the best one for this machine.

    From here on cuDNN's attention is switched off in this process.

    Args:
        dtype: what queries, keys and values come in: the autocast dtype where there is one.
        dropout: of the attention weights; it counts in training only.
        head_width: K, to foresee that a kernel cannot take it.
        encoder_forms: of the encoder layers, as `ModelSettings.encoder_forms` gives them.
        window: of those with local attention.

    Raises:
        BackendError: if a backend asked for by name cannot run here; the message says why.
    """
    if name != "auto" and name not in BACKENDS:
        raise BackendError(f"--attention {name}: unknown; valid: auto, {', '.join(BACKENDS)}")
    sdpa.forbid_cudnn()
    given = Conditions(device, dtype, dropout if training else 0.0, training, head_width)
    if name == "flash":
        refuse_flash(given)
    encoder, decoder, cross = (choose(name, kind, given) for kind in KINDS)
    form: AttentionForm = next((form for form in encoder_forms if form != "full"), "full")
    return AttentionPlan(
        encoder.attend,
        decoder.attend,
        cross.attend,
        (encoder.reason, decoder.reason, cross.reason),
        form=form,
        other=None if form == "full" else forms.choose(name, form, given, window=window),
        full_layers="full" in encoder_forms,
    )


def refuse_flash(given: Conditions) -> None:
    """Raise a `BackendError` with all reasons if no flash kernel can run here."""
    reasons = flash.refusals(
        device=given.device, dtype=given.dtype, dropout=given.dropout, head_width=given.head_width
    )
    if reasons:
        raise BackendError(f"--attention flash cannot run here: {'; '.join(reasons)}")


def choose(name: str, kind: Kind, given: Conditions) -> Choice:
    """Return the backend of one kind of attention. All that `auto` knows stands here."""
    if name == "auto" and given.device.type == "cpu" and given.dropout:
        why = f"math: attention dropout {given.dropout} rules out the CPU flash kernel"
        return Choice(formula.attend, why)
    if name == "auto" and given.device.type == "cpu" and given.half:
        why = (
            f"math, or CPU flash kernel (SDPA) beyond {LARGEST_SCORES / 1e6:.0f} million scores a "
            "batch: math is faster in half precision, but holds the T x S matrix"
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
