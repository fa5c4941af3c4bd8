"""The attention weights of one sentence pair, and the proof that they are the ones the model used.

A fused kernel never forms the weights. They are recomputed here: for the length of a `with` block
the backend of every attention module is replaced by a recorder that applies the module's definition
in fp32 (the formula, unless the architecture says local or linear), and the finished translation is
fed in once more (teacher forcing). The recorder also asks the replaced backend for its output on
the same queries, keys and values, and measures the difference.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tfm.data.tokenizer import BOS
from tfm.model.attention.choice import KINDS, Kind
from tfm.model.attention.multihead import Attend, MultiHeadAttention, Weights
from tfm.model.attention.padding import Padding
from tfm.model.transformer import Transformer

Floats = npt.NDArray[np.float32]

# Largest difference that rounding explains, as a share of the largest value. A wrong mask or scale
# gives differences near 1.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


class Recorder:
    """A backend that computes by the definition and keeps the weights of each call.

    Args:
        definition: what computes the weights.
        backend: the one it stands in for, asked for its output on the same input at each call.
        dtype: what that backend computes in.
    """

    def __init__(self, definition: Weights, backend: Attend, dtype: torch.dtype) -> None:
        self.definition = definition
        self.backend = backend
        self.dtype = dtype
        self.weights: list[Tensor] = []  # B H T S per call
        self.errors: list[float] = []  # largest difference from the backend's output, per call
        self.scales: list[float] = []  # the largest of the values, which no output exceeds

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
    ) -> Tensor:
        weights = self.definition(q, k, causal=causal, keys=keys)
        output = weights @ v
        self.weights.append(weights)
        fused = self.backend(
            *(x.to(self.dtype) for x in (q, k, v)),
            causal=causal,
            queries=queries,
            keys=keys,
            dropout=dropout,
        )
        self.errors.append(largest_difference(fused, output))
        self.scales.append(float(v.abs().max()))
        return output


@contextmanager
def recorded(
    model: Transformer, *, dtype: torch.dtype = torch.float32
) -> Iterator[dict[Kind, list[Recorder]]]:
    """Let recorders, one per layer and kind, stand in for the backends of `model` in the block."""
    modules = attention_modules(model)
    replaced = {
        kind: [Recorder(module.weights, module.attend, dtype) for module in modules[kind]]
        for kind in KINDS
    }
    try:
        for kind in KINDS:
            for module, recorder in zip(modules[kind], replaced[kind], strict=True):
                module.attend = recorder
        yield replaced
    finally:
        for kind in KINDS:
            for module, recorder in zip(modules[kind], replaced[kind], strict=True):
                module.attend = recorder.backend


def attention_modules(model: Transformer) -> dict[Kind, list[MultiHeadAttention]]:
    """Return the attention modules of each kind, first layer first."""
    return {
        "encoder": [layer.self_attention for layer in model.encoder],
        "decoder": [layer.self_attention for layer in model.decoder],
        "cross": [layer.cross_attention for layer in model.decoder],
    }


@dataclass(frozen=True)
class Verification:
    """How far the backend that translates is from the recorded pass.

    Attributes:
        precision: what the model translates in.
        attention: by kind, the largest difference of an attention output, softmax(Q K^T) V.
        logits: the largest difference of a logit after the whole network.
        relative: the largest of these differences as shares of the largest value there.
        tolerance: what `relative` may be at most.
        same_choices: whether both find the same piece most likely at every step.
    """

    precision: str
    attention: dict[Kind, float]
    logits: float
    relative: float
    tolerance: float
    same_choices: bool

    @property
    def passed(self) -> bool:
        """Whether the recorded maps are the ones the backend used, up to rounding."""
        return self.relative <= self.tolerance  # False for NaN

    @property
    def largest(self) -> float:
        """The largest difference of an attention output, over all kinds."""
        return max(self.attention.values())


@dataclass(frozen=True)
class Capture:
    """Weights in fp32, indexed [layer, head, query, key], and what the pass predicted.

    Row t of `decoder` and `cross` is the step that predicts target piece t, the end of the sentence
    included. The columns of `decoder` are that step's inputs: BOS, then the pieces before t.
    """

    encoder: Floats  # L H S S
    decoder: Floats  # L H T T
    cross: Floats  # L H T S
    log_probabilities: Floats  # T: log P(target piece t | source, pieces before t)
    verification: Verification


@torch.inference_mode()
def capture(model: Transformer, source_ids: Sequence[int], target_ids: Sequence[int]) -> Capture:
    """Record all attention of the pair by teacher forcing in fp32 and check it.

    Args:
        source_ids, target_ids: pieces with EOS at the end, without BOS.
    """
    device, dtype = model.target_embedding.weight.device, model.target_embedding.weight.dtype
    source = torch.tensor([source_ids], device=device)
    target = torch.tensor([[BOS, *target_ids[:-1]]], device=device)
    paddings = {
        "source": Padding.from_lengths([len(source_ids)], device=device),
        "target": Padding.from_lengths([len(target_ids)], device=device),
    }
    with evaluating(model):
        used = model(source, target, **paddings)  # 1 T V
        exact_model = in_fp32(model)
        with recorded(exact_model, dtype=dtype) as recorders:
            exact = exact_model(source, target, **paddings)
    chosen = torch.tensor(target_ids, device=device)
    log_probabilities = exact[0].log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)
    maps = {
        kind: torch.cat([recorder.weights[0] for recorder in recorders[kind]]).cpu().numpy()
        for kind in KINDS
    }
    return Capture(
        **maps,
        log_probabilities=log_probabilities.cpu().numpy(),
        verification=_verify(recorders, used, exact, dtype),
    )


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of any element, in fp32; NaN if there is a NaN."""
    return float((a.float() - b.float()).abs().max())


@contextmanager
def evaluating(model: Transformer) -> Iterator[None]:
    """Put `model` into eval mode (no dropout) for the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def in_fp32(model: Transformer) -> Transformer:
    """Return `model` itself if its weights are fp32, else a copy in fp32."""
    if model.target_embedding.weight.dtype == torch.float32:
        return model
    return copy.deepcopy(model).float()


def _verify(
    recorders: dict[Kind, list[Recorder]], used: Tensor, exact: Tensor, dtype: torch.dtype
) -> Verification:
    errors = {kind: [e for r in recorders[kind] for e in r.errors] for kind in KINDS}
    scales = [scale for kind in KINDS for r in recorders[kind] for scale in r.scales]
    logits = largest_difference(used, exact)
    differences = [*(e for kind in KINDS for e in errors[kind]), logits]
    scales.append(float(exact.abs().max()))
    smallest = np.finfo(np.float32).tiny  # where all values are 0, so are the differences
    return Verification(
        attention={kind: float(np.max(errors[kind])) for kind in KINDS},
        logits=logits,
        relative=float(np.max(np.divide(differences, np.maximum(scales, smallest)))),
        precision=str(dtype).removeprefix("torch."),
        tolerance=TOLERANCES[dtype],
        same_choices=bool((used.argmax(-1) == exact.argmax(-1)).all()),
    )
