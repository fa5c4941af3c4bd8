"""Word alignments of translations in batches, from the attention that `inspect-attention` shows.

The map is that of `tfm.model.inspection.report.align`: the cross-attention of one decoder layer,
the mean over its heads, with pieces merged into words. Here it costs one forced pass for a batch
of translations, in which nothing else is recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tfm.data.tokenizer import BOS, EOS, Tokenizer
from tfm.model.attention.alignment import alignment_layer, heard
from tfm.model.inspection.capture import Floats
from tfm.model.inspection.report import Link
from tfm.model.inspection.sentence import merge_words, source_sentence, target_sentence
from tfm.model.search.beam import batches_by_length
from tfm.model.search.scorer import pad
from tfm.model.transformer import Transformer
from tfm.model.translation import Candidate, Part
from tfm.model.translator import Translator


@dataclass(frozen=True)
class Alignment:
    """Which words of the source the words of a translation were read from.

    Attributes:
        source, target: the words, as `tfm.data.words` cuts them.
        soft: target words x (source words + 1). A row sums to 1; the last column is the share of
            the end of the sentence.
    """

    source: list[str]
    target: list[str]
    soft: Floats

    @property
    def hard(self) -> list[Link]:
        """The source word that each target word attends to most, the end of the sentence aside."""
        if not self.source:
            return []
        return [Link(int(best), i) for i, best in enumerate(self.soft[:, :-1].argmax(1))]


def align_all(translator: Translator, candidates: Sequence[Candidate]) -> list[Alignment]:
    """Return the alignment of each translation; that of a text in parts is made of theirs.

    Of an ensemble, the maps of its networks are averaged.
    """
    parts = [part for candidate in candidates for part in candidate.parts]
    maps = [_cross_maps(m, parts, translator.decoding.batch_tokens) for m in translator.models]
    means = [np.asarray(np.mean(each, axis=0), np.float32) for each in zip(*maps, strict=True)]
    found = iter(_align(translator.tokenizer, *pair) for pair in zip(parts, means, strict=True))
    return [_joined([next(found) for _ in candidate.parts]) for candidate in candidates]


def _align(tokenizer: Tokenizer, part: Part, weights: Floats) -> Alignment:
    source = source_sentence(tokenizer, part.text, [*part.source, EOS])
    target = target_sentence(tokenizer, [*part.target, EOS])
    words = merge_words(weights, target, source)[:-1]
    return Alignment(source.word_texts, target.word_texts, words)


def _joined(parts: Sequence[Alignment]) -> Alignment:
    """Put maps one after the other: no word of one part looks at another part."""
    source = [word for part in parts for word in part.source]
    target = [word for part in parts for word in part.target]
    soft = np.zeros((len(target), len(source) + 1), np.float32)
    row = column = 0
    for part in parts:
        rows, columns = slice(row, row + len(part.target)), len(part.source)
        soft[rows, column : column + columns] = part.soft[:, :-1]
        soft[rows, -1] = part.soft[:, -1]
        row, column = row + len(part.target), column + columns
    return Alignment(source, target, soft)


def _cross_maps(model: Transformer, parts: Sequence[Part], budget: int) -> list[Floats]:
    """Return the map of each part, target pieces + 1 by source pieces + 1, the ends being last."""
    maps: list[Floats] = [np.zeros((0, 0), np.float32)] * len(parts)
    widths = [max(len(part.source), len(part.target)) + 1 for part in parts]
    with torch.inference_mode():
        for batch in batches_by_length(widths, budget):
            weights = _forced_weights(model, [parts[i] for i in batch]).cpu().numpy()
            for i, each in zip(batch, weights, strict=True):
                maps[i] = each[: len(parts[i].target) + 1, : len(parts[i].source) + 1]
    return maps


def _forced_weights(model: Transformer, parts: Sequence[Part]) -> Tensor:
    """Return the mean cross-attention of the heads of the layer that aligns, B T S in fp32."""
    device = model.target_embedding.weight.device
    source_ids, source = pad([[*part.source, EOS] for part in parts], device)
    target_ids, target = pad([[BOS, *part.target] for part in parts], device)
    layer = list(model.decoder)[alignment_layer(len(model.decoder)) - 1]
    with heard(layer.cross_attention) as weights:
        memory = model.encode(source_ids, source)
        model.decode(target_ids, memory, source=source, target=target)
    return weights[0].mean(1)
