"""`tfm bench documents`: what each form of encoder attention makes of long documents.

A network is trained with each form on built-in documents, whose last two sentences need the first
one. Measured is how well it translates documents of so many sentences, whether the pronouns of
these two are right, and what one document takes: time and memory, forward and backward.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from tfm.data.batching import Batch, encode_corpus, make_batch
from tfm.data.builtin.documents import FRAME, Document, builtin_documents
from tfm.data.corpus import Pair
from tfm.data.settings import DataSettings
from tfm.data.tokenizer import Tokenizer
from tfm.model.attention.forms import AttentionForm
from tfm.model.benchmarks.clock import Call, Cost, measure
from tfm.model.checkpoint import LoadedModel, load_model
from tfm.model.evaluation import score
from tfm.model.settings import Settings
from tfm.model.training.material import Order
from tfm.model.training.objective import DeviceBatch
from tfm.model.training.recipe import Machine
from tfm.model.training.step import Learner
from tfm.model.translator import Translator

KINDS: tuple[AttentionForm, ...] = ("full", "local", "linear")
PRONOUNS = ("ihn", "sie", "es")
CLOSING = 2  # sentences at the end that say "it"
LONGEST_SENTENCE = 40  # pieces, and more than any has


@dataclass(frozen=True)
class Experiment:
    """What is trained and measured.

    Args:
        settings: of the training of each kind, but for the form.
        documents: how many to train on; they have 3 to `longest` sentences.
        lengths: numbers of sentences to measure at; those beyond `longest` for time and memory.
        tested: how many documents are translated at each length.
    """

    settings: Settings
    documents: int
    longest: int
    lengths: Sequence[int]
    tested: int

    @property
    def corpus(self) -> str:
        """The documents to train on, as a corpus."""
        return f"builtin-documents:{self.documents}:{FRAME}-{self.longest}"

    def settings_of(self, kind: AttentionForm) -> Settings:
        """Return the settings of one kind. No document may be too long to be learned."""
        settings = self.settings
        pieces = max(settings.data.max_length, LONGEST_SENTENCE * self.longest)
        return replace(
            settings,
            data=replace(settings.data, max_length=pieces),
            model=replace(settings.model, encoder_attention=kind),
            decoding=replace(settings.decoding, beam=1, max_length=pieces),
        )


class Quality(NamedTuple):
    """How well documents of one length are translated, greedily; shares from 0 to 1."""

    bleu: float
    signature: str
    pronouns: float  # of the last two sentences, how many have the right pronoun and no other
    guessing: float  # how many would have it if all had the most frequent one


@dataclass(frozen=True)
class Row:
    """One kind at one length: the source pieces of a document, and what that one takes.

    The encoder is measured by itself, and the whole network with the loss; both with gradients.
    """

    kind: AttentionForm
    sentences: int
    pieces: int
    encoder: Cost
    network: Cost
    quality: Quality | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row by names that scripts may rely on."""
        row: dict[str, Any] = {
            "encoder": self.kind,
            "sentences": self.sentences,
            "pieces": self.pieces,
            "encoder_seconds": self.encoder.seconds,
            "encoder_peak_bytes": self.encoder.peak_bytes,
            "seconds": self.network.seconds,
            "peak_bytes": self.network.peak_bytes,
        }
        if self.quality is None:
            return row
        quality = self.quality
        return row | {
            "bleu": quality.bleu,
            "bleu_signature": quality.signature,
            "pronouns_right": quality.pronouns,
            "pronouns_by_guessing": quality.guessing,
        }


def measure_kind(kind: AttentionForm, experiment: Experiment, order: Order) -> Iterator[Row]:
    """Yield a row for each length, of the model that `order` has trained with one kind.

    It translates as `tfm translate` does by itself; steps are measured as they were taken.
    """
    machine = Machine.choose(order)
    translator = Translator.load(order.directory, device=order.device)
    trained = load_model(order.directory, device=machine.device)
    for sentences in experiment.lengths:
        quality = None
        if sentences <= experiment.longest:
            documents = builtin_documents("test", experiment.tested, sentences=sentences)
            quality = assess(translator, documents)
        batch = one_document(trained.tokenizer, sentences)
        encoder, network = passes(trained, machine, batch)
        yield Row(
            kind,
            sentences,
            int(batch.source_lengths.sum()),
            measure(encoder, machine.device),
            measure(network, machine.device),
            quality,
        )


def assess(translator: Translator, documents: Sequence[Document]) -> Quality:
    """Translate documents and compare with what they should be."""
    translations = translator.translate([document.pair.source for document in documents])
    bleu = score(translations, [document.pair.target for document in documents]).bleu
    right = sum(
        right_pronouns(translation, document.pronoun)
        for translation, document in zip(translations, documents, strict=True)
    )
    asked = [document.pronoun for document in documents]
    most = max(asked.count(pronoun) for pronoun in PRONOUNS)
    return Quality(
        bleu.value, bleu.signature, right / (CLOSING * len(documents)), most / len(documents)
    )


def right_pronouns(translation: str, pronoun: str) -> int:
    """Return in how many of the last two sentences `pronoun` is the only one for a thing."""
    last = re.split(r"(?<=[.?!]) ", translation)[-CLOSING:]
    found = [[word for word in re.findall(r"\w+", line) if word in PRONOUNS] for line in last]
    return found.count([pronoun])


def one_document(tokenizer: Tokenizer, sentences: int) -> Batch:
    """Return the first document of that length to train on, as a batch."""
    (document,) = builtin_documents("train", 1, sentences=sentences)
    pair = Pair(document.pair.source, document.pair.target)
    settings = DataSettings(max_length=LONGEST_SENTENCE * sentences)
    return make_batch(encode_corpus([pair], tokenizer, settings), np.arange(1))


def passes(trained: LoadedModel, machine: Machine, batch: Batch) -> tuple[Call, Call]:
    """Return forward and backward pass of the encoder by itself, and of the whole network.

    They give gradients of all weights, as in training, and keep none.
    """
    model = trained.model.train()
    model.use_attention(machine.plan)
    learner = Learner.create(
        model, trained.settings.training, device=machine.device, dtype=machine.dtype
    )
    document = DeviceBatch.from_batch(batch, machine.device)
    weights = list(model.parameters())

    def encoder() -> tuple[torch.Tensor | None, ...]:
        with learner.autocast():
            memory = model.encode(document.source, document.source_padding)
        return torch.autograd.grad(memory.float().sum(), weights, allow_unused=True)

    def network() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(learner.losses(batch).loss, weights)

    return encoder, network
