"""Beam search, over ids only: it knows neither text nor pieces.

The space of a source sentence is every sequence of at most `longest` target ids that ends in EOS,
with `longest` from `DecodingSettings.longest`. A hypothesis of n ids, EOS included, scores

    score = log P(target | source) / n ** length_penalty

with P' in place of P where repetition is penalised (`processors`), and with a term for what of the
source it does not attend to, if that is asked for (`coverage`). Rules make the space smaller.

The result is the best finished hypotheses after `longest` steps of `beams`. A sentence leaves its
batch earlier only when that cannot change its result. So a translation depends neither on `n_best`
nor on the other sentences of its batch, and a beam as wide as the space finds the best there is.

A beam of 1 is greedy search: the best id at every step, up to the first EOS. (It has no second
hypothesis for the length penalty to weigh against.)

Where the rules let no hypothesis go on, and none has ended, the best of the last ones is the
result, marked as truncated.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from tfm.data.errors import SettingsError
from tfm.data.tokenizer import BOS, PAD
from tfm.model.search.beams import Beams, Hypothesis
from tfm.model.search.constraints import (
    NONE,
    Constraints,
    constrained,
    longest,
    most_met_first,
    required_of,
)
from tfm.model.search.coverage import rank_by_coverage
from tfm.model.search.diverse import DiverseShortlist
from tfm.model.search.ensemble import Ensemble
from tfm.model.search.prepared import Prepared, prepare
from tfm.model.search.processors import Processor, forbid, rules, what_counts
from tfm.model.search.required import Required
from tfm.model.search.sampling import sample_batch
from tfm.model.search.scorer import Scorer, batches_by_length, log_softmax, pad, require_numbers
from tfm.model.search.shortlist import Shortlist
from tfm.model.settings import DecodingSettings
from tfm.model.transformer import Transformer

__all__ = ["Hypothesis", "batches_by_length", "beam_search", "force_score", "search"]

Start = Callable[[Sequence[Sequence[int]]], Scorer]  # the sources of one batch to its scorer


def beam_search(
    model: Transformer | Prepared | Ensemble,
    sources: Sequence[Sequence[int]],
    settings: DecodingSettings,
    *,
    forbidden: Collection[int] = (),
    constraints: Sequence[Constraints] | None = None,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best translations of each source, best first.

    Args:
        model: in eval mode. Whoever searches often prepares it once.
        sources: ids, EOS included. Any number: they are sorted by length and cut into batches of
            at most `settings.batch_tokens` ids times the beam.
        forbidden: target ids that no translation may have. The probabilities of the others stay
            those of the model.
        constraints: what is to hold for each source alone.
        n_best: how many to return. They are fewer only where the space is that small. Cut ones
            (`truncated`) come after all finished ones. With `settings.sampling`, so many are drawn.

    Raises:
        SettingsError: if `n_best` is above `settings.beam`, unless that many samples are drawn,
            without `settings.mbr`.
        CheckpointError: if the model computes something that is not a number.
    """
    ensemble = model if isinstance(model, Ensemble) else Ensemble([prepare(model)])
    _require_n_best(settings, n_best)
    found = search(
        ensemble.start,
        sources,
        settings,
        processors=[forbid(forbidden, ensemble.device)],
        constraints=constraints,
        n_best=settings.beam if settings.coverage_penalty else n_best,
    )
    if not settings.coverage_penalty:
        return found
    ranked = rank_by_coverage(
        ensemble.members,
        sources,
        found,
        penalty=settings.coverage_penalty,
        batch_tokens=settings.batch_tokens,
    )
    asked = constraints or [NONE] * len(ranked)
    return [most_met_first(*each)[:n_best] for each in zip(ranked, asked, strict=True)]


def search(
    start: Start,
    sources: Sequence[Sequence[int]],
    settings: DecodingSettings,
    *,
    processors: Sequence[Processor] = (),
    constraints: Sequence[Constraints] | None = None,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """Do what `beam_search` does with the scorers that `start` makes, one for each batch.

    `processors` see the log probabilities of the next ids in turn, before the best are chosen, and
    rule ids out by -inf. The rules of `settings` come after them.
    """
    _require_n_best(settings, n_best)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    run = sample_batch if settings.sampling else _search_batch
    budget = settings.batch_tokens // (n_best if settings.sampling else settings.beam)
    processors = [*processors, *rules(settings)]
    with torch.inference_mode():
        for batch in batches_by_length([len(source) for source in sources], budget):
            chosen = [sources[i] for i in batch]
            asked = [NONE if constraints is None else constraints[i] for i in batch]
            found = run(start(chosen), chosen, settings, processors, asked, n_best)
            for i, hypotheses in zip(batch, found, strict=True):
                results[i] = hypotheses
    return results


def force_score(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 4096,
) -> list[list[float]]:
    """Return log P of each id of each target, given its source and the ids before it.

    Args:
        model: in eval mode.
        sources: ids, EOS included.
        targets: ids without BOS; with EOS if its probability counts.
        batch_tokens: most positions of either side in one pass of the network.
    """
    assert not model.training, "dropout would make scores random"
    results: list[list[float]] = [[] for _ in sources]
    widths = [max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]
    with torch.inference_mode():
        for batch in batches_by_length(widths, batch_tokens):
            chosen = [targets[i] for i in batch]
            scores = _force_batch(model, [sources[i] for i in batch], chosen).tolist()
            for i, ids, row in zip(batch, chosen, scores, strict=True):
                results[i] = row[: len(ids)]
    return results


def _require_n_best(settings: DecodingSettings, n_best: int) -> None:
    drawn = settings.sampling and settings.mbr == "none"
    if n_best < 1 or (n_best > settings.beam and not drawn):
        most = "" if drawn else f" and at most `beam` ({settings.beam})"
        raise SettingsError(f"`n_best` must be at least 1{most}, but is {n_best}.")


def _search_batch(
    scorer: Scorer,
    sources: Sequence[Sequence[int]],
    settings: DecodingSettings,
    processors: Sequence[Processor],
    constraints: Sequence[Constraints],
    n_best: int,
) -> list[list[Hypothesis]]:
    """Search all sources side by side: the order of events of every step."""
    processors = constrained(processors, constraints, scorer.device)
    beams = Beams.start(longest(settings, sources, constraints), scorer.device)
    required = required_of(constraints, settings)
    if required is not None:
        processors = [required.no_early_end, *processors]
    shortlist = _shortlist(settings, len(sources), n_best, scorer.device, required)
    while len(beams.sentences):
        next_ids = scorer.log_probabilities(beams)
        require_numbers(next_ids)
        counting = what_counts(next_ids, beams, settings, processors)
        last, beams = beams, shortlist.advance(beams, counting, next_ids)
        full = beams.longest == beams.length
        if full.any():
            shortlist.add_truncated(beams.select(full))
        leaving = full | shortlist.settled(beams)
        if leaving.any():
            shortlist.add_stuck(last, leaving)
            staying = (~leaving).nonzero().squeeze(1)
            beams = beams.select(staying)
            scorer.keep(staying)
        if settings.beam > 1 or leaving.any():  # else every row goes on in its place
            scorer.reorder(beams.rows.flatten())
    return shortlist.kept


def _shortlist(
    settings: DecodingSettings,
    sources: int,
    n_best: int,
    device: torch.device,
    required: Required | None,
) -> Shortlist | DiverseShortlist:
    beam, length_penalty = settings.beam, settings.length_penalty
    if settings.beam_groups == 1:
        return Shortlist(
            sources,
            beam=beam,
            length_penalty=length_penalty,
            n_best=n_best,
            device=device,
            allocate=None if required is None else required.allocate,
        )
    return DiverseShortlist(
        sources,
        groups=settings.beam_groups,
        strength=settings.diversity,
        beam=beam,
        length_penalty=length_penalty,
        n_best=n_best,
        device=device,
    )


def _force_batch(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Tensor:
    """Return log P of every target id by teacher forcing, B T; under padding, anything."""
    device = model.target_embedding.weight.device
    source_ids, source = pad(sources, device)
    target_in, target = pad([[BOS, *ids[:-1]] for ids in targets], device)
    target_out, _ = pad([ids or [PAD] for ids in targets], device)
    logits = model(source_ids, target_in, source=source, target=target)
    return log_softmax(logits).gather(2, target_out[..., None]).squeeze(2)
