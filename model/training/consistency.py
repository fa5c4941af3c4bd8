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
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.data.pieces import BOS, EOS
from tfm.model.settings import TrainingSettings


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


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the sum over N of KL(P || Q) in nats.

    Args:
        log_p, log_q: log probabilities, N V.
    """
    return F.kl_div(log_q, log_p, reduction="sum", log_target=True)


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
