"""The gradient of a step: the sum over its batches, and over parts of those that do not fit.

A batch for which the GPU's memory is too small is split in two, again and again if need be. The
loss is a sum over target tokens, so that the parts give the gradient of the whole, up to rounding
and, as dropout draws for the parts what it would not for the whole, up to chance.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from tfm.data.batching import Batch
from tfm.data.errors import UserError
from tfm.model.training.cross_entropy import Losses

if TYPE_CHECKING:
    from tfm.model.training.step import Learner


class TooLarge(UserError):
    """The GPU's memory is too small for a single pair."""


def accumulate(
    learner: "Learner", batches: Sequence[Batch], target_tokens: int, begin: Callable[[], None]
) -> Losses:
    """Leave the gradient of the loss by `target_tokens`; return the sums, without gradient.

    When memory runs out within a batch, a part of its gradient may be there already: all batches
    are begun anew, this one and those as large in parts from then on (`learner.too_large`).

    Args:
        target_tokens: those of the whole step, of which other processes may have a part.
        begin: seeds the random numbers; called whenever the first batch is about to be run.

    Raises:
        TooLarge: if a single pair does not fit.
    """
    while True:
        parts = [part for batch in batches for part in split(batch, learner.too_large)]
        begin()
        sums = Losses(*torch.zeros(2, device=learner.device))
        failed = None
        for part in parts:
            try:
                _add(learner, part, target_tokens, sums)
            except torch.OutOfMemoryError:  # leaving this block frees what the traceback holds
                failed = part
                break
        if failed is None:
            return sums
        learner.optimizer.zero_grad(set_to_none=True)
        if learner.device.type == "cuda":
            torch.cuda.empty_cache()  # pieces of other sizes are in the way of larger ones
        require_divisible(failed)
        learner.too_large = positions(failed)


def _add(learner: "Learner", part: Batch, target_tokens: int, sums: Losses) -> None:
    found = learner.losses(part)
    learner.scaler.scale(found.loss / target_tokens).backward()  # type: ignore[no-untyped-call]
    sums.loss.add_(found.loss.detach())
    sums.nats.add_(found.nats)


def split(batch: Batch, too_large: int | None) -> Iterator[Batch]:
    """Yield parts of `batch` that have fewer than `too_large` positions, or one pair; None: it."""
    count = len(batch.indices)
    if too_large is None or positions(batch) < too_large or count == 1:
        yield batch
        return
    for rows in (slice(0, count // 2), slice(count // 2, count)):
        yield from split(batch.rows(rows), too_large)


def positions(batch: Batch) -> int:
    """Return how many ids a batch has, padding included: what memory is proportional to."""
    return batch.source.size + batch.target_in.size


def require_divisible(batch: Batch) -> None:
    """Refuse a batch that does not fit although it is a single pair.

    Raises:
        TooLarge: names its lengths and the remedies.
    """
    if len(batch.indices) == 1:
        raise TooLarge(
            f"out of GPU memory with a single pair of {batch.source.size:,} source and "
            f"{batch.target_in.size:,} target pieces; --precision bf16 or a larger GPU goes on, "
            f"or start anew with a smaller data.max_length or model"
        )


def count_target_tokens(batches: Sequence[Batch]) -> int:
    """Return how many ids the model is to predict, end of sentence included."""
    return sum(int(batch.target_lengths.sum()) for batch in batches)
