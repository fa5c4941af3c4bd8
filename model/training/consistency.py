"""Two views of a batch that are to agree: R-Drop and SimCut.

The rows of a batch stand twice in one forward pass. P are the distributions over the next piece
that the first copy gives, Q those of the second. Summed over target tokens the loss is

    r-drop   (CE(P) + CE(Q)) / 2 + alpha / 4 (KL(P || Q) + KL(Q || P))

    the copies differ by their dropout alone (Liang et al. 2021, arXiv 2106.14448, equation 4). The
    paper's loss is twice that: halved, it counts a token once, as without views.

    simcut   CE(P) + alpha KL(P || Q)

    where tokens of the second copy are cut out of source and target input: their embeddings are
    zero with probability p (Gao et al. 2022, arXiv 2206.02368, equation 7).

Gradients flow into both copies of both. CE has label smoothing, KL has not.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tfm.data.pieces import BOS, EOS
from tfm.model.settings import TrainingSettings
from tfm.model.training.cross_entropy import (
    Differentiated,
    Distributions,
    Losses,
    cross_entropy,
    subtract_wanted,
)


@dataclass(frozen=True)
class TwoViews:
    """How two views of a batch are made, and what they weigh in the loss.

    Args:
        first, second: the weights of CE(P) and CE(Q); their sum is 1.
        forward, backward: those of KL(P || Q) and KL(Q || P).
        cutoff: how probable it is that a token is cut out of the second view.
    """

    first: float
    second: float
    forward: float
    backward: float
    cutoff: float

    @classmethod
    def r_drop(cls, alpha: float) -> Self:
        """Return the views and weights of R-Drop."""
        return cls(0.5, 0.5, alpha / 4, alpha / 4, cutoff=0.0)

    @classmethod
    def simcut(cls, alpha: float, *, cutoff: float) -> Self:
        """Return the views and weights of SimCut."""
        return cls(1.0, 0.0, alpha, 0.0, cutoff=cutoff)

    @classmethod
    def of(cls, settings: TrainingSettings) -> Self | None:
        """Return what `settings` ask for; None for one view."""
        match settings.consistency:
            case "none":
                return None
            case "r-drop":
                return cls.r_drop(settings.consistency_weight)
            case "simcut":
                return cls.simcut(settings.consistency_weight, cutoff=settings.cutoff)


def compare_views(
    logits: Tensor, targets: Tensor, views: TwoViews, smoothing: float
) -> Differentiated:
    """Return the loss of two views and its gradient; the nats are weighted as the cross-entropy.

    Args:
        logits: 2 N V, of P and of Q.
        targets: N.
    """
    (p, q), normalisers = Distributions.of(logits)
    first, second = (
        cross_entropy(view, normaliser, targets, smoothing)
        for view, normaliser in zip(logits, normalisers, strict=True)
    )
    apart = logits[0] - logits[1]  # N V
    apart -= (normalisers[0] - normalisers[1])[:, None]  # log P - log Q
    for_p = _gradient(p, q, apart, certain=views.first, away=views.forward, to=views.backward)
    apart.neg_()
    for_q = _gradient(q, p, apart, certain=views.second, away=views.backward, to=views.forward)
    gradient = torch.stack([for_p.gradient, for_q.gradient])
    for view, weight in zip(gradient, (views.first, views.second), strict=True):
        subtract_wanted(view, targets, smoothing, weight=weight)
    loss = views.first * first.loss + views.second * second.loss
    loss = loss + views.forward * for_p.divergence + views.backward * for_q.divergence
    return Differentiated(
        Losses(loss, views.first * first.nats + views.second * second.nats), gradient
    )


class _Apart(NamedTuple):
    gradient: Tensor  # N V
    divergence: Tensor  # KL(own || other), summed over N; 0 where it weighs nothing


def _gradient(
    own: Tensor, other: Tensor, apart: Tensor, *, certain: float, away: float, to: float
) -> _Apart:
    """Return the gradient of the logits of `own`, but for what cross-entropy wants of them.

    The parts of certain CE(own) + away KL(own || other) + to KL(other || own) are

        certain own,   away own (apart - KL(own || other)),   to (own - other).

    Args:
        own, other: probabilities, N V.
        apart: log own - log other.
    """
    if not away:
        return _Apart((certain + to) * own - to * other, own.new_zeros(()))
    weighted = own * apart
    divergence = weighted.sum(-1, keepdim=True)  # N 1
    gradient = own * (certain + to - away * divergence)
    gradient.add_(weighted, alpha=away).sub_(other, alpha=to)
    return _Apart(gradient, divergence.sum())


def kept_in_second_view(ids: Tensor, cutoff: float) -> Tensor:
    """Draw which tokens of the second view are not cut out; BOS and EOS never are.

    What is drawn follows from torch's generator of the device.

    Args:
        ids: B L.

    Returns:
        2B L, with the first view, which keeps all, before the second.
    """
    drawn = torch.rand(ids.shape, device=ids.device) >= cutoff
    kept = drawn | (ids == BOS) | (ids == EOS)
    return torch.cat([torch.ones_like(kept), kept])
