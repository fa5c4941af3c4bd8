"""Sampling: translations drawn from the model's distribution, each id in turn.

The k-th sample of a source is made of random numbers that depend on the seed, the ids of the source
and k, and on nothing else. So a translation depends neither on the batch, nor on the order of the
lines, nor on how many samples are asked for; the same line gives the same samples wherever it
stands. Samples come in the order in which they are drawn, not the best first.

With the temperature T an id has the probability p ** (1 / T), normalised. The improbable ones are
left out by each cut that is on:

    top_k    all but the k most probable (Fan et al. 2018)
    top_p    all but the fewest most probable that have together at least p (Holtzman et al. 2020)
    epsilon  those below epsilon (Hewitt et al. 2022, section 4.1)

The most probable id always stays, and so do those as probable as the last one that a cut leaves.
Log P and the score of a sample are what the model says, without temperature and cuts.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tfm.data.tokenizer import EOS
from tfm.model.decoding import DecodingSettings
from tfm.model.search.beams import Beams, Hypothesis
from tfm.model.search.constraints import Constraints, constrained, longest, required_of
from tfm.model.search.processors import Processor, what_counts
from tfm.model.search.scorer import Scorer, require_numbers
from tfm.model.search.shortlist import read_out


def sample_batch(
    scorer: Scorer,
    sources: Sequence[Sequence[int]],
    settings: DecodingSettings,
    rules: Sequence[Processor],
    constraints: Sequence[Constraints],
    samples: int,
) -> list[list[Hypothesis]]:
    """Return the first `samples` samples of each source.

    Raises:
        SettingsError: if one requires words, for which hypotheses would have to compete.
    """
    required_of(constraints, settings)
    rules = constrained(rules, constraints, scorer.device)
    most = longest(settings, sources, constraints)
    beams = Beams.start(most, scorer.device).repeated(samples)
    numbers = torch.arange(samples, device=scorer.device).expand(len(sources), samples)
    draws = random_numbers(settings.sampling_seed, sources, samples, max(most))
    draws = draws.to(scorer.device)
    found: list[dict[int, Hypothesis]] = [{} for _ in sources]
    while len(beams.sentences):
        next_ids = scorer.log_probabilities(beams)
        require_numbers(next_ids)
        counting = what_counts(next_ids, beams, settings, rules)
        chance = draws[beams.sentences[:, None], numbers, beams.length]
        tokens = draw(counting, chance, settings)
        log_p = next_ids.gather(2, tokens[:, :, None]).squeeze(2)
        alive = beams.total > -torch.inf
        stuck = alive & (counting.amax(2) == -torch.inf)
        ended = alive & ~stuck & (tokens == EOS)
        longer = _append(beams, tokens, log_p)
        full = alive & ~stuck & ~ended & (longer.longest == longer.length)[:, None]
        _collect(found, numbers, beams, stuck, settings, truncated=True)
        _collect(found, numbers, longer, ended, settings, truncated=False)
        _collect(found, numbers, longer, full, settings, truncated=True)
        going = alive & ~stuck & ~ended & ~full
        order = going.sort(dim=1, descending=True, stable=True).indices
        order = order[:, : int(going.sum(1).amax())]  # B N: those that go on, in their order
        staying = going.any(1).nonzero().squeeze(1)
        beams = _go_on(longer, going, order).select(staying)
        numbers = numbers.gather(1, order)[staying]
        scorer.keep(staying)
        scorer.reorder(beams.rows.flatten())
    return [[each[number] for number in range(samples)] for each in found]


def draw(log_probabilities: Tensor, chance: Tensor, settings: DecodingSettings) -> Tensor:
    """Return an id for each hypothesis, B N, drawn with probabilities given as logs, B N V.

    Args:
        chance: B N, from 0 to below 1: the id at this share of the probability of all that is
            left, in the order of ids. Where all ids are ruled out, the id is any.
    """
    p = (log_probabilities / settings.temperature).softmax(-1, dtype=torch.float64)
    p = p.masked_fill(p < _least(p, settings), 0.0)
    sums = p.cumsum(2)
    places = torch.searchsorted(sums, chance[:, :, None] * sums[:, :, -1:], right=True)
    return places.squeeze(2).clamp(max=p.shape[2] - 1)


def random_numbers(
    seed: int, sources: Sequence[Sequence[int]], samples: int, length: int
) -> Tensor:
    """Return numbers from 0 to below 1, B N T: a generator for each source and each sample.

    It is Philox (Salmon et al. 2011), a function of a key and a counter that NumPy does not change.
    """
    rows = []
    for ids in sources:
        name = f"{seed}:{','.join(map(str, ids))}".encode()
        key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
        for number in range(samples):
            raw = np.random.Philox(key=key, counter=[0, 0, 0, number]).random_raw(length)
            rows.append(raw >> np.uint64(32))  # so that a product with a sum stays below it
    return torch.tensor(np.array(rows) / 2**32).view(len(sources), samples, length)


def _least(p: Tensor, settings: DecodingSettings) -> Tensor:
    """Return the probability of the least probable id that is left, B N 1."""
    most = p.amax(2, keepdim=True)
    least = torch.zeros_like(most)
    if settings.top_k:
        least = p.topk(min(settings.top_k, p.shape[2])).values[:, :, -1:]
    if settings.top_p < 1:
        ordered = p.sort(dim=2, descending=True).values
        needed = (ordered.cumsum(2) - ordered < settings.top_p).sum(2, keepdim=True)
        least = torch.maximum(least, ordered.gather(2, needed.clamp(min=1) - 1))
    if settings.epsilon:
        least = torch.maximum(least, most.clamp(max=settings.epsilon))
    return least


def _append(beams: Beams, tokens: Tensor, log_p: Tensor) -> Beams:
    return beams._replace(
        tokens=torch.cat([beams.tokens, tokens[:, :, None]], dim=2),
        token_log_probabilities=torch.cat(
            [beams.token_log_probabilities, log_p[:, :, None]], dim=2
        ),
        total=beams.total + log_p,
    )


def _go_on(beams: Beams, going: Tensor, order: Tensor) -> Beams:
    """Return the hypotheses in the given order, B N; those that do not go on are dead."""
    at = torch.arange(len(order), device=order.device)[:, None], order
    return beams._replace(
        tokens=beams.tokens[at],
        token_log_probabilities=beams.token_log_probabilities[at],
        total=beams.total.masked_fill(~going, -torch.inf)[at],
        rows=at[0] * going.shape[1] + order,
    )


def _collect(
    found: list[dict[int, Hypothesis]],
    numbers: Tensor,
    beams: Beams,
    which: Tensor,
    settings: DecodingSettings,
    *,
    truncated: bool,
) -> None:
    """File the hypotheses that `which`, B N, says under their source and number."""
    b, n = which.nonzero(as_tuple=True)
    if not len(b):
        return
    log_p = beams.token_log_probabilities[b, n]
    score = beams.total[b, n] / max(beams.length, 1) ** settings.length_penalty
    length = beams.length + 1 - (not truncated)  # BOS, and no EOS
    done = read_out(beams.tokens[b, n, :length], log_p, score, truncated=truncated)
    places = zip(beams.sentences[b].tolist(), numbers[b, n].tolist(), done, strict=True)
    for source, number, hypothesis in places:
        found[source][number] = hypothesis
