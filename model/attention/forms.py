"""The forms that self-attention of an encoder layer can have: full, local or linear.

A form is part of the architecture: it says which weights a layer has, by definition. How they are
applied is the backend's affair, and here is chosen what computes the forms other than full.
"""

from functools import partial
from typing import Literal

from torch import Tensor

from tfm.data.errors import BackendError
from tfm.model.attention import flash, formula, linear, local
from tfm.model.attention.conditions import Choice, Conditions
from tfm.model.attention.multihead import Attend, Weights
from tfm.model.attention.padding import Padding
from tfm.model.dropout import dropout as drop

AttentionForm = Literal["full", "local", "linear"]


def weights_of(form: AttentionForm, *, window: int) -> Weights:
    """Return what computes the weights of a form by its definition, with the N x N matrix."""
    if form == "local":
        return partial(local.attention_weights, window=window)
    return linear.attention_weights if form == "linear" else formula.attention_weights


def by_definition(form: AttentionForm, *, window: int) -> Attend:
    """Return the backend `math` of a form: its weights times V."""
    if form == "full":
        return formula.attend
    weights = weights_of(form, window=window)

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
        return drop(weights(q, k, causal=causal, keys=keys), dropout) @ v

    return attend


def choose(name: str, form: AttentionForm, given: Conditions, *, window: int) -> Choice:
    """Return what computes a form other than full under the backend called `name`.

    Raises:
        BackendError: if that backend has nothing for this form here; the message says why.
    """
    if name == "math":
        why = f"math: {form} attention by its definition, with the N x N matrix"
        return Choice(by_definition(form, window=window), why)
    return choose_linear(name) if form == "linear" else choose_local(name, given, window=window)


def choose_linear(name: str) -> Choice:
    """Return linear attention, which has one implementation beside its definition."""
    if name != "auto":
        raise BackendError(
            f"--attention {name} cannot run here: the encoder's linear attention has no softmax, "
            f"which {name} has built in; use --attention auto or math"
        )
    return Choice(linear.attend, "linear sums in fp32: no N x N matrix")


def choose_local(name: str, given: Conditions, *, window: int) -> Choice:
    """Return the kernel that attends within the blocks of local attention, or a sliding window."""
    if name == "flash" and given.device.type == "cuda":
        if not flash.has_window():
            raise BackendError(
                "--attention flash cannot run here: the varlen kernel of this PyTorch has no "
                "sliding window for the encoder's local attention; use --attention auto"
            )
        attend = partial(local.attend_unpadded, window=window)
        return Choice(attend, f"sliding window of varlen flash: asked for; window {window}")
    blocks = partial(local.attend, window=window)
    if name == "flash":
        attend = partial(blocks, kernel=flash.attend_where)
        return Choice(attend, f"CPU flash kernel (SDPA) in blocks: asked for; window {window}")
    slow = given.device.type == "cpu" and (given.dropout or (given.half and given.training))
    if name == "auto" and slow:
        attend = partial(blocks, kernel=formula.attend_where)
        why = f"dropout {given.dropout}" if given.dropout else "training in half precision"
        return Choice(attend, f"math in blocks: {why} is faster so on a CPU; window {window}")
    return Choice(blocks, f"SDPA in blocks: no N x N matrix; window {window}")
