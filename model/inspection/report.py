"""What the inspector finds out about one sentence pair, and how it does so."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tfm.data.counts import counted
from tfm.data.errors import UserError
from tfm.data.tokenizer import EOS, Tokenizer
from tfm.model.attention.alignment import alignment_layer
from tfm.model.attention.choice import AttentionPlan
from tfm.model.attention.forms import AttentionForm
from tfm.model.checkpoint import WEIGHTS
from tfm.model.inspection.capture import Capture, Floats, capture
from tfm.model.inspection.sentence import (
    Sentence,
    merge_words,
    source_sentence,
    target_sentence,
)
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer
from tfm.model.translator import Translator

LARGEST = 1 << 28  # bytes of maps: 512 pieces a side in a base model


@dataclass(frozen=True)
class Selection:
    """The layer and head that the readable views show, counted from 1; no head is their mean."""

    layer: int
    head: int | None = None


@dataclass(frozen=True)
class Link:
    """A source word and the target word aligned to it, counted from 0."""

    source: int
    target: int


@dataclass(frozen=True)
class Origin:
    """Which model a report is of: the name of its directory and the SHA-256 of its weights."""

    name: str
    sha256: str

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Describe a model directory."""
        with (directory / WEIGHTS).open("rb") as file:
            return cls(directory.resolve().name, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class AttentionReport:
    """All attention of one translation; see `Capture` for the axes."""

    source: Sentence
    target: Sentence
    inputs: tuple[str, ...]  # the decoder's input pieces, BOS first: the columns of its own maps
    capture: Capture
    selection: Selection
    backend: str  # what the maps were checked against, in words
    encoder_forms: tuple[AttentionForm, ...] = ("full",)  # of its layers, the first layer first
    window: int = 0  # of those with local attention
    origin: Origin | None = None

    @property
    def layers(self) -> int:
        """The number of decoder layers."""
        return len(self.capture.cross)

    @property
    def heads(self) -> int:
        """The number of heads in each layer."""
        return int(self.capture.cross.shape[1])

    @cached_property
    def cross_words(self) -> Floats:
        """Cross-attention between words, L H (target words + 1) (source words + 1)."""
        return merge_words(self.capture.cross, self.target, self.source)

    @property
    def selected(self) -> Floats:
        """The selected map of words: target words + 1 by source words + 1."""
        layer = self.cross_words[self.selection.layer - 1]
        head = self.selection.head
        chosen: Floats = layer.mean(0) if head is None else layer[head - 1]
        return chosen

    @property
    def selection_text(self) -> str:
        """The selection in words."""
        head = self.selection.head
        heads = f"head {head} of {self.heads}" if head else f"mean of {counted(self.heads, 'head')}"
        return f"decoder layer {self.selection.layer} of {self.layers}, {heads}"

    @property
    def alignment(self) -> list[Link]:
        """The source word that each target word attends to most, in the order of the target."""
        return align(
            self.capture.cross, self.target, self.source, layer=alignment_layer(self.layers)
        )


def align(cross: Floats, target: Sentence, source: Sentence, *, layer: int) -> list[Link]:
    """Align each target word to the source word that its own steps attend to most.

    The heads of `layer` (counted from 1) are averaged and pieces merged into words; the end of the
    sentence takes no part. Reading the step *after* a piece instead (Shift-Att, Chen et al. 2020)
    found far less in the layers that `alignment_layer` chooses: there its error was 88.5 percent
    instead of 8.4, and 73.2 instead of 41.2. Both models are pre-norm; post-norm was not measured.
    """
    if not target.words or not source.words:
        return []
    words = merge_words(cross[layer - 1].mean(0), target, source)[:-1, :-1]
    return [Link(int(best), i) for i, best in enumerate(words.argmax(1))]


def inspect_pair(
    model: Transformer,
    tokenizer: Tokenizer,
    text: str,
    target: str | Sequence[int],
    *,
    layer: int | None = None,
    head: int | None = None,
    backend: str = "the model's own attention",
) -> AttentionReport:
    """Report all attention in translating `text` as `target`, its text or its ids without EOS.

    Args:
        layer, head: what the readable views show, counted from 1; by default the layer that
            alignments are read from, and the mean of its heads.
        backend: what to call the attention that the model has and the maps are checked against.

    Raises:
        UserError: for a blank or too long text, or a layer or head that the model has not.
    """
    if not text.strip():
        raise UserError("TEXT is blank; give a sentence in the source language")
    selection = _select(model.settings, layer, head)
    source_ids = [*tokenizer.encode_source(text), EOS]
    target_ids = [*(tokenizer.encode_target(target) if isinstance(target, str) else target), EOS]
    _require_room(model.settings, len(source_ids), len(target_ids))
    sentence = target_sentence(tokenizer, target_ids)
    return AttentionReport(
        source=source_sentence(tokenizer, text, source_ids),
        target=sentence,
        inputs=("<s>", *sentence.pieces[:-1]),
        capture=capture(model, source_ids, target_ids),
        selection=selection,
        backend=backend,
        encoder_forms=model.settings.encoder_forms,
        window=model.settings.window,
    )


def inspect_attention(
    translator: Translator,
    text: str,
    target: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> AttentionReport:
    """Report all attention in translating `text`, as `target` or as `translator` itself does.

    The other arguments are those of `inspect_pair`.

    Raises:
        UserError: as `inspect_pair` does, and for a text that is translated in parts.
    """
    tokenizer = translator.tokenizer
    limit = translator.settings.data.max_length
    if (length := len(tokenizer.encode_source(text))) > limit:
        raise UserError(
            f"TEXT has {length} pieces, but the model translates at most {limit} at a time "
            "(data.max_length); give a shorter text"
        )
    written: str | Sequence[int] = target or ""
    if target is None and text.strip():
        (translation,) = translator.translate_all([text])
        written = translation.ids
        if translation.truncated:
            translator.warn(
                "the translation was cut at decoding.max_length: the model did not write the </s> "
                "that ends its map"
            )
    return inspect_pair(
        translator.model,
        tokenizer,
        text,
        written,
        layer=layer,
        head=head,
        backend=kernels(translator.plan),
    )


def kernels(plan: AttentionPlan) -> str:
    """Name the kernels of `plan`, without the reasons that it gives after a colon."""
    names = dict.fromkeys(reason.partition(":")[0] for _, reason in plan.used())
    return " and ".join(names)


def _select(settings: ModelSettings, layer: int | None, head: int | None) -> Selection:
    layers, heads = settings.decoder_layers, settings.heads
    if layer is not None and not 1 <= layer <= layers:
        raise UserError(f"--layer {layer}: the decoder has layers 1 to {layers}")
    if head is not None and not 1 <= head <= heads:
        raise UserError(f"--head {head}: each layer has heads 1 to {heads}")
    return Selection(alignment_layer(layers) if layer is None else layer, head)


def _require_room(settings: ModelSettings, S: int, T: int) -> None:
    weights = settings.encoder_layers * S * S + settings.decoder_layers * (T * T + T * S)
    size = 4 * settings.heads * weights
    if size > LARGEST:
        raise UserError(
            f"{S} source and {T} target pieces make {size >> 20} MiB of attention maps; at most "
            f"{LARGEST >> 20} MiB are made: give a shorter text"
        )
