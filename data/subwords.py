"""Subword regularisation: in each epoch the words of a corpus are cut into other pieces.

No piece crosses a space, so that words are segmented one by one, and each word that occurs is
looked at once. What is drawn is a pure function of seed and epoch: resuming needs no saved state.
SentencePiece's own sampling cannot be used for that, as its random numbers differ from process to
process whatever its seed. Decoding gives back exactly the same text.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tfm.data.batching import EncodedCorpus, Side
from tfm.data.bpe_dropout import BpeDropout
from tfm.data.errors import SettingsError
from tfm.data.pieces import PieceModel
from tfm.data.spans import Ids, Ints
from tfm.data.tokenizer import Tokenizer
from tfm.data.unigram_sampling import UnigramSampling

CHUNK = 2**16  # words segmented at a time: what numpy works on stays in the cache


class Sampler(Protocol):
    """Draws segmentations of words that it knows by their indices."""

    def sample(self, words: Ids, rng: np.random.Generator) -> tuple[Ids, Ints]:
        """Return the ids of `words`, end to end, and how many each word has."""
        ...


def require_sampling(tokenizer: Tokenizer, *, dropout: float, alpha: float) -> None:
    """Refuse a way of sampling that does not fit the kind of the tokenizer.

    Raises:
        SettingsError: names both and the remedy.
    """
    for model in (tokenizer.source, tokenizer.target):
        key, value, other = (
            ("subword_alpha", alpha, "subword_dropout")
            if model.is_bpe
            else ("subword_dropout", dropout, "subword_alpha")
        )
        if value:
            kind = "bpe" if model.is_bpe else "unigram"
            raise SettingsError(
                f"[training]: `{key}` is {value}, but the tokenizer is a {kind} model; "
                f"set `{other}` instead, or train a tokenizer of the other `tokenizer.kind`."
            )
        if (dropout or alpha) and model.crosses_spaces:
            raise SettingsError(
                "[training]: `subword_dropout` and `subword_alpha` need a tokenizer whose pieces "
                "do not cross spaces; train one with `tfm tokenizer train`."
            )


def resegmented(
    corpus: EncodedCorpus, tokenizer: Tokenizer, *, dropout: float, alpha: float, seed: int
) -> Callable[[int], EncodedCorpus]:
    """Return a function that gives `corpus` in the pieces of an epoch.

    Sentences may be longer than the best segmentation, which `data.max_length` looks at.

    Args:
        dropout: p of BPE-dropout, for a BPE tokenizer.
        alpha: of unigram sampling, for a unigram tokenizer; one of the two is 0. If both are, every
            epoch sees `corpus` as it is.
    """
    if not (dropout or alpha):
        return lambda _: corpus
    sides: list[tuple[WordTable, Sampler]] = []
    for side, model in ((corpus.source, tokenizer.source), (corpus.target, tokenizer.target)):
        table = WordTable(side, model)
        if dropout:
            sides.append((table, BpeDropout(model, table.words, dropout)))
        else:
            sides.append((table, UnigramSampling(model, table.words, alpha)))

    def of_epoch(epoch: int) -> EncodedCorpus:
        source, target = (
            table.sample(sampler, np.random.default_rng([seed, epoch, number]))
            for number, (table, sampler) in enumerate(sides, start=1)
        )
        return EncodedCorpus(source, target, corpus.dropped)

    return of_epoch


class WordTable:
    """One side of a corpus as words: each distinct one once, and where they stand.

    Attributes:
        words: as `PieceModel.spell` gives them.
        sequence: indices into `words`, of all sentences end to end.
        offsets: sentence i is offsets[i] to offsets[i + 1] of `sequence`.
    """

    def __init__(self, side: Side, model: PieceModel) -> None:
        begins = model.begins_word[side.ids]
        begins[side.offsets[:-1]] = True
        starts = np.flatnonzero(begins)
        known: dict[bytes, int] = {}
        data, width = side.ids.tobytes(), side.ids.itemsize
        ends = np.append(starts[1:], len(side.ids))
        spans = zip((starts * width).tolist(), (ends * width).tolist(), strict=True)
        self.sequence = np.fromiter(
            (known.setdefault(data[start:end], len(known)) for start, end in spans),
            dtype=np.int32,
            count=len(starts),
        )
        self.words = [model.spell(np.frombuffer(key, dtype=side.ids.dtype)) for key in known]
        self.offsets = np.searchsorted(starts, side.offsets)

    def sample(self, sampler: Sampler, rng: np.random.Generator) -> Side:
        """Return all sentences in pieces that `sampler` draws."""
        chunks = range(0, len(self.sequence), CHUNK)
        parts = [sampler.sample(self.sequence[i : i + CHUNK], rng) for i in chunks]
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(counts for _, counts in parts)]))
        return Side(np.concatenate([ids for ids, _ in parts]), ends[self.offsets])
