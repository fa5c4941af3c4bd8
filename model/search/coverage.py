"""The coverage penalty (Wu et al. 2016, equation 14): translations are to look at all their source.

    score = log P / n ** length_penalty + beta sum_i log(min(sum_j p_ij, 1))

p_ij is the attention of the j-th target piece to the i-th of the source, the end of the source left
out: the mean over the heads of cross-attention in the layer that is the nearest to an alignment.
A sum counts as 1e-10 at least, so that one piece does not decide alone.

A search finds hypotheses without it; then those of the whole beam are fed in once more (teacher
forcing) and ranked anew.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tfm.data.tokenizer import BOS
from tfm.model.attention.alignment import alignment_layer, heard
from tfm.model.attention.padding import Padding
from tfm.model.search.beams import Hypothesis
from tfm.model.search.prepared import Prepared
from tfm.model.search.scorer import batches_by_length, pad

LEAST = 1e-10  # attention that a source piece counts as having had, if it had less


def rank_by_coverage(
    members: Sequence[Prepared],
    sources: Sequence[Sequence[int]],
    found: Sequence[Sequence[Hypothesis]],
    *,
    penalty: float,
    batch_tokens: int,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source with the penalty in their scores, the best first.

    Args:
        members: of an ensemble, or one; the mean of their attention counts.
        sources: ids, EOS included.
        penalty: beta.
        batch_tokens: most positions of either side in one pass of the network.
    """
    pairs = [(i, h) for i, hypotheses in enumerate(found) for h in hypotheses]
    ranked: list[list[Hypothesis]] = [[] for _ in sources]
    widths = [max(len(sources[i]), len(h.tokens) + 1) for i, h in pairs]
    with torch.inference_mode():
        for batch in batches_by_length(widths, batch_tokens):
            chosen = [pairs[place] for place in batch]
            terms = coverage(members, [sources[i] for i, _ in chosen], [h for _, h in chosen])
            for (i, h), term in zip(chosen, terms.tolist(), strict=True):
                ranked[i].append(replace(h, score=h.score + penalty * term))
    # Batches come in the order of lengths: equal scores are told apart by the tokens.
    return [sorted(each, key=lambda h: (h.truncated, -h.score, h.tokens)) for each in ranked]


def coverage(
    members: Sequence[Prepared],
    sources: Sequence[Sequence[int]],
    hypotheses: Sequence[Hypothesis],
) -> Tensor:
    """Return sum_i log(min(sum_j p_ij, 1)) of each hypothesis, B."""
    device = members[0].device
    source_ids, source = pad(sources, device)
    steps = [[BOS, *h.tokens][: len(h.token_log_probabilities)] or [BOS] for h in hypotheses]
    target_ids, target = pad(steps, device)
    each = []
    for member in members:
        layers = member.network.decoder
        layer = list(layers)[alignment_layer(len(layers)) - 1]
        with heard(layer.cross_attention) as weights:
            member.network.decode(
                target_ids, member.encode(source_ids, source), source=source, target=target
            )
        each.append(weights[0].mean(1))
    there = _within(target)[:, :, None]  # B T 1
    covered = (torch.stack(each).mean(0) * there).sum(1)  # B S
    logs = covered.clamp(min=LEAST, max=1.0).log()
    pieces = torch.arange(logs.shape[1], device=device) < source.lengths[:, None] - 1
    return torch.where(pieces, logs, 0.0).sum(1)


def _within(padding: Padding) -> Tensor:
    """Return where there is no padding, B L."""
    return torch.arange(padding.longest, device=padding.lengths.device) < padding.lengths[:, None]
