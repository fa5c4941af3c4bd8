"""One training step: batches -> loss -> backward -> clip -> refuse what is not finite -> Adam."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tfm.data.batching import Batch
from tfm.data.errors import UserError
from tfm.model.checkpoint import weights_of
from tfm.model.layer_calls import DIRECT, LayerCalls
from tfm.model.settings import TrainingSettings
from tfm.model.training.consistency import TwoViews
from tfm.model.training.cross_entropy import Losses
from tfm.model.training.distributed import ALONE, Ranks
from tfm.model.training.micro_batches import accumulate, count_target_tokens
from tfm.model.training.moving_average import MovingAverage
from tfm.model.training.objective import DeviceBatch, Objective
from tfm.model.training.randomness import seed_step
from tfm.model.training.schedule import Stretch, phase_of
from tfm.model.transformer import Transformer

EPSILON = 1e-9  # Adam's (paper, section 5.3)
SMALLEST_SCALE = 1.0  # an fp16 loss scale below it means that gradients overflow for good


class Diverged(UserError):
    """The loss or the gradient is no finite number; the weights are those before that step."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy


class StepResult(NamedTuple):
    """What one step saw; `loss` and `nats` are sums over its target tokens."""

    loss: float  # with label smoothing and, on two views, their divergence
    nats: float  # without
    gradient_norm: float  # before clipping
    target_tokens: int
    tokens: int  # source and target, without padding


@dataclass
class Learner:
    """A network with its optimizer, and where and how precisely it computes.

    Steps and validation call `objective`, which may be wrapped (by a compiler); `model` is the
    network itself, for its weights and for search. `ranks` are the processes that take each step
    together.
    """

    model: Transformer
    objective: nn.Module
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler  # a no-op but for fp16
    device: torch.device
    dtype: torch.dtype
    average: MovingAverage | None = None  # of the weights, if there is to be one
    too_large: int | None = None  # positions of the smallest batch that memory was too small for
    ranks: Ranks = ALONE

    @classmethod
    def create(
        cls,
        model: Transformer,
        settings: TrainingSettings,
        *,
        device: torch.device,
        dtype: torch.dtype,
        ranks: Ranks = ALONE,
    ) -> "Learner":
        """Prepare `model`, which is on `device`, for training in `dtype`."""
        model.training_calls = layer_calls(settings)
        scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        objective = Objective(
            model, label_smoothing=settings.label_smoothing, views=TwoViews.of(settings)
        )
        optimizer = build_optimizer(model, settings)
        average = MovingAverage(model, settings.ema_decay) if settings.ema_decay else None
        return cls(model, objective, optimizer, scaler, device, dtype, average, ranks=ranks)

    def losses(self, batch: Batch) -> Losses:
        """Run the objective on one batch."""
        on_device = DeviceBatch.from_batch(batch, self.device)
        with self.autocast():
            losses: Losses = self.objective(on_device)
        return losses

    def restart(self) -> None:
        """Forget the moments and the average, and keep the weights."""
        self.optimizer.state.clear()
        if self.average:
            self.average.set(weights_of(self.model))

    def averaged(self) -> AbstractContextManager[None]:
        """Let the model have its averaged weights, where there is an average, for a context."""
        return self.average.applied() if self.average else nullcontext()

    def autocast(self) -> torch.autocast:
        """Compute matrix products in the run's precision; weights stay fp32."""
        return torch.autocast(
            self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32
        )


def layer_calls(settings: TrainingSettings) -> LayerCalls:
    """Return how a step is to run the layers."""
    calls = DIRECT.compiled() if settings.compile else DIRECT
    return calls.checkpointed() if settings.gradient_checkpointing else calls


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """Return AdamW, which is Adam for a weight decay of 0. Biases and norms never decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=EPSILON,
        fused=True,
    )


def train_step(
    learner: Learner,
    batches: Sequence[Batch],
    settings: TrainingSettings,
    *,
    step: int,
    learning_rate: float,
    stretch: Stretch | None = None,
) -> StepResult:
    """Take one optimizer step on the mean loss per target token of all `batches` together.

    They are those of this rank; the mean, and what is returned, is over the batches of all ranks.
    It depends on its arguments only: the random numbers are those of (seed, step, rank).

    Args:
        stretch: the part of the recipe that it stands for, to the moving average; None: `step`.

    Raises:
        Diverged: before the weights change, if the loss or the gradient is not finite.
        TooLarge: if the GPU's memory is too small for a single pair.
    """
    ranks = learner.ranks
    target_tokens, source_tokens = count_all_tokens(ranks, batches)
    sums = accumulate(
        learner, batches, target_tokens, lambda: seed_step(settings.seed, step, rank=ranks.rank)
    )
    ranks.add_up(p.grad for p in learner.model.parameters() if p.grad is not None)
    learner.scaler.unscale_(learner.optimizer)
    norm = clip_gradient(learner.model, settings.clip)
    *own, gradient_norm = torch.stack([*sums, norm]).tolist()  # the one wait for the device
    loss, nats = ranks.totals(*own)
    result = StepResult(loss, nats, gradient_norm, target_tokens, source_tokens + target_tokens)
    _require_finite(learner, result, step=step)
    _update(learner, learning_rate)
    if learner.average:
        before, after = stretch or Stretch.of(step)
        place = phase_of(after, settings).place
        learner.average.update(place, counts=min(after - before, place))
    return result


def count_all_tokens(ranks: Ranks, batches: Sequence[Batch]) -> tuple[int, int]:
    """Return the target and source tokens of all ranks, of which this one has `batches`."""
    source_tokens = sum(int(batch.source_lengths.sum()) for batch in batches)
    target, source = ranks.totals(count_target_tokens(batches), source_tokens)
    return round(target), round(source)


def clip_gradient(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradient down to norm `limit` (0: leave it) and return its norm before that."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit:
        nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
    return norm


def _require_finite(learner: Learner, result: StepResult, *, step: int) -> None:
    loss, norm = result.loss, result.gradient_norm
    remedy = "lower training.learning_rate or raise training.warmup_steps, and run again"
    if not math.isfinite(loss):
        raise Diverged(f"step {step}: the loss is {loss}", remedy)
    if math.isfinite(norm):
        return
    if not learner.scaler.is_enabled():
        raise Diverged(f"step {step}: the norm of the gradient is {norm}", remedy)
    # fp16 overflows now and then: the scaler leaves the step out and lowers its scale.
    if learner.scaler.get_scale() < SMALLEST_SCALE:
        remedy = "use --precision bf16 or fp32"
        raise Diverged(f"step {step}: the gradient overflows fp16", remedy)


def _update(learner: Learner, learning_rate: float) -> None:
    for group in learner.optimizer.param_groups:
        group["lr"] = learning_rate
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    learner.optimizer.zero_grad(set_to_none=True)
