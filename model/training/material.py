"""What a run learns from: corpora read and encoded, with a tokenizer, and a record of both."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfm.data.batching import EncodedCorpus, encode_corpus, epoch_batches
from tfm.data.corpus import Pair, Split, fingerprint, read_pairs
from tfm.data.counts import counted
from tfm.data.errors import DataError, SettingsError
from tfm.data.subwords import require_sampling
from tfm.data.tokenizer import Tokenizer, train_tokenizer
from tfm.model.settings import Override, Settings
from tfm.model.training.identity import CorpusRecord, Identity, identify
from tfm.model.training.reporting import Reporter
from tfm.model.training.schedule import phases
from tfm.model.training.validation import ValidationSet


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the user asks for: corpora as strings, the machine by names that may be `auto`.

    Args:
        overrides: where settings are to be chosen, those that are given all the same, as
            `Settings.read` takes them; None if `settings` holds.
        more_steps: how many steps a run that is continued is to take beyond those it has done; None
            for the number in the settings, which a new run takes anyway.
        started: when, by `time.monotonic`: a limited time counts from there.
    """

    settings: Settings
    train: str
    valid: str | None
    directory: Path
    tokenizer: Path | None = None
    overrides: Sequence[str | Override] | None = None
    more_steps: int | None = None
    started: float = field(default_factory=time.monotonic)
    device: str = "auto"
    precision: str = "auto"
    attention: str = "auto"

    def up_to(self, steps: int) -> "Order":
        """Return the same order for `steps` steps in all."""
        training = replace(self.settings.training, steps=steps)
        return replace(self, settings=replace(self.settings, training=training))

    def pairs(self, corpus: str, split: Split) -> Iterator[Pair]:
        """Stream the pairs of a corpus in the run's languages."""
        data = self.settings.data
        return read_pairs(corpus, source=data.source, target=data.target, split=split)


class Material(NamedTuple):
    """Everything that training reads; in memory, the training corpus as ids only."""

    tokenizer: Tokenizer
    corpus: EncodedCorpus
    valid: ValidationSet | None
    train_record: CorpusRecord
    valid_record: CorpusRecord | None

    def identify(self, settings: Settings) -> Identity:
        """Return what must not change when a run with this material continues."""
        return identify(
            settings,
            tokenizer=self.tokenizer.fingerprint,
            train=self.train_record,
            valid=self.valid_record,
        )


def gather(order: Order, *, tokenizer: Path | None, reporter: Reporter) -> Material:
    """Read and check the corpora, load `tokenizer` or train one, and encode.

    Raises:
        DataError: if a corpus or the tokenizer cannot be read, or no pair is left to train on.
        SettingsError: if the tokenizer cannot do what the settings ask for.
    """
    settings = order.settings
    require_pairs(order)
    # Reading both corpora first finds what is wrong with them before any work is done.
    valid_pairs = None if order.valid is None else list(order.pairs(order.valid, "valid"))
    train_print = fingerprint(order.pairs(order.train, "train"))
    if tokenizer is not None:
        pieces = Tokenizer.load(tokenizer)
    else:
        with naming("training", order.train):
            pieces = train_tokenizer(order.pairs(order.train, "train"), settings.tokenizer)
        if pieces.note:
            reporter.on_note(f"tokenizer: {pieces.note}")
    training = settings.training
    for key in ("both_directions_steps", "backward_steps"):
        if getattr(training, key) and not pieces.joint:
            raise SettingsError(
                f"[training]: `{key}` needs one vocabulary for both languages, but the tokenizer "
                f"has two; train one with tokenizer.separate = false, or set it to 0."
            )
    require_sampling(pieces, dropout=training.subword_dropout, alpha=training.subword_alpha)
    with naming("training", order.train):
        corpus = encode_corpus(order.pairs(order.train, "train"), pieces, settings.data)
    train_record = CorpusRecord.of(order.train, train_print, corpus)
    if order.valid is None or valid_pairs is None:
        return Material(pieces, corpus, None, train_record, None)
    with naming("validation", order.valid):
        valid = validation_set(valid_pairs, pieces, settings)
    valid_record = CorpusRecord.of(order.valid, fingerprint(valid_pairs), valid.corpus)
    return Material(pieces, corpus, valid, train_record, valid_record)


def require_pairs(order: Order) -> None:
    """Refuse a corpus without any pair; only the first one is read.

    Raises:
        DataError: if there is none, or the corpus cannot be read.
    """
    roles: tuple[tuple[str, str | None, Split], ...] = (
        ("training", order.train, "train"),
        ("validation", order.valid, "valid"),
    )
    for role, corpus, split in roles:
        if corpus is not None and next(order.pairs(corpus, split), None) is None:
            raise DataError(f"{role} corpus {corpus}: is empty; give one with sentence pairs")


@contextmanager
def naming(role: str, corpus: str) -> Iterator[None]:
    """Name the corpus in errors of code that sees pairs only."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{role} corpus {corpus}: {error}") from None


def validation_set(pairs: list[Pair], tokenizer: Tokenizer, settings: Settings) -> ValidationSet:
    """Encode all pairs for the loss, and keep the first ones for BLEU.

    Blank pairs are in neither, nor are those that the loss leaves out as too long: translating a
    line of many thousand pieces at once could take all memory in the midst of a run.

    Raises:
        SettingsError: if BLEU is to choose the best model, but no sentence is to be translated.
    """
    count = settings.training.validate_sentences
    if count == 0 and settings.training.metric == "bleu":
        raise SettingsError(
            "[training]: `validate_sentences` is 0, so `metric` must be 'loss', but is 'bleu'."
        )
    filled = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
    sources = tokenizer.encode_source_batch([pair.source for pair in filled])
    limit = settings.data.max_length
    short = [pair for pair, ids in zip(filled, sources, strict=True) if len(ids) <= limit]
    return ValidationSet(encode_corpus(pairs, tokenizer, settings.data), short[:count])


def describe_material(material: Material, order: Order) -> Iterator[str]:
    """Yield lines that tell what training learns from, corpora called as the user calls them."""
    for name, corpus, record in (
        ("training", order.train, material.train_record),
        ("validation", order.valid, material.valid_record),
    ):
        if record is not None:
            dropped = [f"{count:,} {why}" for why, count in record.dropped.items() if count]
            left_out = f"; left out: {', '.join(dropped)}" if dropped else ""
            yield f"{name}: {counted(record.pairs, 'pair')} of {corpus}{left_out}"
    tokenizer = material.tokenizer
    if tokenizer.joint:
        yield f"vocabulary: {tokenizer.source_size:,} pieces, joint"
    else:
        sizes = (tokenizer.source_size, tokenizer.target_size)
        yield "vocabulary: {:,} source and {:,} target pieces".format(*sizes)
    yield from describe_phases(order.settings)
    yield describe_batches(material.corpus, order.settings)


def describe_phases(settings: Settings) -> Iterator[str]:
    """Yield a line for each phase, if there are several."""
    data, training = settings.data, settings.training
    found = phases(training)
    forth, back = f"{data.source} to {data.target}", f"{data.target} to {data.source}"
    says = {
        "both directions": f"{forth} and {back}",
        "backward": f"{back}; then the targets are translated back, to learn from that too",
        "forward": f"{forth}; then the sources are translated, to learn from that too",
        "last": forth,
    }
    if len(found) > 1:
        for name, steps in found:
            share = f"{steps / training.steps:.0%} of the schedule: "
            yield (share if training.time else f"{counted(steps, 'step')} of ") + says[name]


def describe_batches(corpus: EncodedCorpus, settings: Settings) -> str:
    """Return how many batches an epoch has and how much of them is padding."""
    training = settings.training
    batches = epoch_batches(corpus, batch_tokens=training.batch_tokens, seed=training.seed, epoch=0)
    sides = (corpus.source_lengths + 1, corpus.target_lengths + 1)  # BOS or EOS
    real = sum(int(side.sum()) for side in sides)
    padded = sum(len(batch) * int(np.max(side[batch])) for batch in batches for side in sides)
    return f"an epoch: {counted(len(batches), 'batch')}, {1 - real / padded:.1%} padding"
