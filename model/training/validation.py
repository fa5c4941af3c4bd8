"""Measuring a model while it trains: loss on validation pairs, BLEU of real translations."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from tfm.data.batching import EncodedCorpus, epoch_batches, make_batch
from tfm.data.corpus import Pair
from tfm.data.tokenizer import EOS, Tokenizer
from tfm.model.evaluation import METRICS
from tfm.model.search.beam import batches_by_length, beam_search
from tfm.model.search.prepared import Prepared
from tfm.model.settings import DecodingSettings, Settings
from tfm.model.training.micro_batches import count_target_tokens
from tfm.model.training.step import Learner


@dataclass(frozen=True)
class ValidationSet:
    """The validation corpus, as ids for the loss and as raw text for BLEU."""

    corpus: EncodedCorpus
    pairs: Sequence[Pair]  # those that are translated; none is blank or too long


@dataclass(frozen=True)
class ValidationScores:
    """What a model is worth on the validation set."""

    loss: float  # per target token, with the run's label smoothing
    nats_per_token: float  # -log P per target token, without smoothing
    # Greedy translations, detokenised and cased, against raw references; None if none are made.
    bleu: float | None = None
    bleu_signature: str | None = None  # sacrebleu's: the conditions that the figure holds under
    bleu_search: str | None = None

    def better_than(self, other: "ValidationScores | None", metric: str) -> bool:
        """Return whether these scores beat `other` in `metric`, "bleu" or "loss".

        The loss is the one without smoothing; it also decides between equal BLEU scores.
        """
        if other is None:
            return True
        if metric == "bleu" and self.bleu is not None and other.bleu is not None:
            return (self.bleu, -self.nats_per_token) > (other.bleu, -other.nats_per_token)
        return self.nats_per_token < other.nats_per_token


class Sample(NamedTuple):
    """A sentence of the validation set, for reading."""

    source: str
    reference: str
    translation: str


class Validation(NamedTuple):
    """What a validation gave: scores, and the translations of a few sentences, always the same."""

    scores: ValidationScores
    samples: Sequence[Sample] = ()


def validate(
    learner: Learner,
    valid: ValidationSet,
    tokenizer: Tokenizer,
    settings: Settings,
    *,
    check: Callable[[], None],
) -> Validation:
    """Measure the model as it is. Weights and training mode stay untouched.

    Args:
        check: called before each batch; what it raises ends the validation.
    """
    model = learner.model
    was_training = model.training
    model.eval()
    try:
        loss, nats = validation_loss(learner, valid.corpus, settings, check)
        if not valid.pairs:
            return Validation(ValidationScores(loss, nats))
        texts = translate_greedily(learner, valid.pairs, tokenizer, settings.decoding, check)
    finally:
        model.train(was_training)
    references = [[pair.target for pair in valid.pairs]]
    bleu = METRICS["bleu"]
    score = float(bleu.corpus_score(texts, references).score)
    scores = ValidationScores(loss, nats, score, str(bleu.get_signature()), "greedy")
    return Validation(scores, pick(valid.pairs, texts, settings.training.validate_samples))


def pick(pairs: Sequence[Pair], translations: Sequence[str], count: int) -> list[Sample]:
    """Return `count` sentences, or all, evenly spaced so that they differ in kind."""
    count = min(count, len(pairs))
    places = [i * len(pairs) // count for i in range(count)]
    return [Sample(*pairs[i], translations[i]) for i in places]


def validation_loss(
    learner: Learner, corpus: EncodedCorpus, settings: Settings, check: Callable[[], None]
) -> tuple[float, float]:
    """Return the loss and the nats per target token over the whole corpus."""
    sums = torch.zeros(2, dtype=torch.float64, device=learner.device)
    tokens = 0
    batches = epoch_batches(corpus, batch_tokens=settings.training.batch_tokens, seed=0, epoch=0)
    with torch.no_grad():
        for indices in batches:
            check()
            batch = make_batch(corpus, indices)
            sums += torch.stack([*learner.losses(batch)])
            tokens += count_target_tokens([batch])
    loss, nats = (sums / tokens).tolist()
    return loss, nats


def translate_greedily(
    learner: Learner,
    pairs: Sequence[Pair],
    tokenizer: Tokenizer,
    settings: DecodingSettings,
    check: Callable[[], None],
) -> list[str]:
    """Return a greedy translation of each source: a fifth of the time of a beam of 5."""
    sources = tokenizer.encode_source_batch([pair.source for pair in pairs])
    greedy = replace(settings, beam=1)
    found = best_translations(learner, sources, greedy, tokenizer.forbidden_ids, check)
    return [tokenizer.decode_target(ids) for ids in found]


def best_translations(
    learner: Learner,
    sources: Sequence[Sequence[int]],
    settings: DecodingSettings,
    forbidden: Collection[int],
    check: Callable[[], None],
) -> list[list[int]]:
    """Return the ids of the best translation of each source. The network must be in eval mode.

    Args:
        sources: ids, without EOS.
        forbidden: ids that no translation has.
        check: called before each batch; what it raises ends the search.
    """
    best: list[list[int]] = [[]] * len(sources)
    prepared = Prepared(learner.model, dtype=learner.dtype)
    lengths = [len(ids) + 1 for ids in sources]
    for batch in batches_by_length(lengths, settings.batch_tokens // settings.beam):
        check()
        asked = [[*sources[i], EOS] for i in batch]
        found = beam_search(prepared, asked, settings, forbidden=forbidden)
        for i, [hypothesis] in zip(batch, found, strict=True):
            best[i] = hypothesis.tokens
    return best
