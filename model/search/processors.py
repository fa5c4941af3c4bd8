"""What a hypothesis may go on with: rules of search, as functions of tensors.

A processor sees the log probabilities of the next ids and the live hypotheses. Rules rule ids out
(-inf) and leave the others as they are, so that log P stays what the model says. The penalty
changes what hypotheses are ranked by; log P of a hypothesis is the model's all the same.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from tfm.data.tokenizer import EOS
from tfm.model.decoding import DecodingSettings
from tfm.model.search.beams import Beams

Processor = Callable[[Tensor, Beams], Tensor]  # log P of each next id, B N V, to what counts


def rules(settings: DecodingSettings) -> list[Processor]:
    """Return the rules that `settings` ask for: none, if they ask for none."""
    found = []
    if settings.min_length > 1:
        found.append(no_end_before(settings.min_length))
    if settings.no_repeat_ngram:
        found.append(no_repeated_ngram(settings.no_repeat_ngram))
    return found


def what_counts(
    next_ids: Tensor, beams: Beams, settings: DecodingSettings, rules: Sequence[Processor]
) -> Tensor:
    """Return what each next id counts, B N V: log P of the model, unless rules or a penalty say
    otherwise. Without a penalty it is `next_ids` itself, which the rules change."""
    if settings.repetition_penalty != 1:
        next_ids = penalise_repetition(next_ids, beams, settings.repetition_penalty)
    for process in rules:
        next_ids = process(next_ids, beams)
    return next_ids


def forbid(ids: Collection[int], device: torch.device) -> Processor:
    """Return the rule that rules out `ids`."""
    banned = torch.tensor(sorted(ids), dtype=torch.int64, device=device)
    return lambda next_ids, _: next_ids.index_fill_(2, banned, -torch.inf)


def no_end_before(length: int) -> Processor:
    """Return the rule that a translation has at least `length` ids, EOS included."""

    def process(next_ids: Tensor, beams: Beams) -> Tensor:
        if beams.length + 1 < length:
            next_ids[:, :, EOS] = -torch.inf
        return next_ids

    return process


def no_repeated_ngram(n: int) -> Processor:
    """Return the rule that no n ids in a row occur twice (Paulus et al. 2018, section 2.5)."""

    def process(next_ids: Tensor, beams: Beams) -> Tensor:
        ids = beams.tokens[:, :, 1:]  # B N t
        if beams.length < n:
            return next_ids
        last = ids[:, :, beams.length - n + 1 :]  # the n - 1 that an n-gram would begin with
        followed = ids[:, :, n - 1 :]  # B N t-n+1: the last id of each n-gram so far
        begins = ids.unfold(2, n - 1, 1)[:, :, : followed.shape[2]] if n > 1 else last[:, :, None]
        again = (begins == last[:, :, None]).all(3)
        bars = torch.where(again, -torch.inf, torch.inf).to(next_ids.dtype)
        return next_ids.scatter_reduce_(2, followed, bars.expand(followed.shape), "amin")

    return process


def penalise_repetition(next_ids: Tensor, beams: Beams, penalty: float) -> Tensor:
    """Return log P' of each id, B N V: those that the hypothesis has already are less probable.

    Keskar et al. 2019 (CTRL), section 4.1, divide the logits x of such ids by the penalty before
    softmax. What that does depends on a constant in the logits that softmax does not see; and a
    negative one would become more probable. So x are the logits whose mean is 0, that is log P less
    its mean, and a negative one is multiplied:

        P' = softmax(x'), x' = x / penalty if x > 0 else x penalty, of the ids that are there
    """
    x = next_ids - next_ids.mean(2, keepdim=True)
    ids = beams.tokens[:, :, 1:]
    there = x.gather(2, ids)
    there = torch.where(there > 0, there / penalty, there * penalty)
    return x.scatter_(2, ids, there).log_softmax(2)
