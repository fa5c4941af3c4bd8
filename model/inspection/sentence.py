"""One side of a translation as text, words and pieces, and the way from pieces to words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tfm.data.tokenizer import Tokenizer
from tfm.data.words import word_spans
from tfm.model.inspection.capture import Floats

Span = tuple[int, int]  # first character and the one after the last

END = "</s>"  # how the end of the sentence is named among the words, and in the pieces


@dataclass(frozen=True)
class Sentence:
    """A sentence as the model sees it: its pieces, with EOS as the last.

    Attributes:
        text: what a reader sees.
        ids, pieces, spans: of each piece, EOS included, whose span is empty.
        words: the spans of words and punctuation marks in `text`.
    """

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    spans: tuple[Span, ...]
    words: tuple[Span, ...]

    @property
    def word_texts(self) -> list[str]:
        """The words, in order, without the white space between them."""
        return [self.text[start:end] for start, end in self.words]

    @property
    def labels(self) -> list[str]:
        """The words and the end of the sentence: what the axes of a map of words are labelled."""
        return [*self.word_texts, END]

    @property
    def word_of_piece(self) -> list[int]:
        """The word that most of each piece belongs to; -1 for EOS."""
        return [*(int(i) for i in self.membership()[:-1].argmax(1)), -1]

    def membership(self) -> Floats:
        """Return how much of each piece belongs to each word, and to the end: pieces x words + 1.

        Each row sums to 1. A piece that reaches over several words is shared out by characters; one
        that is white space alone belongs to the word after it.
        """
        shares = np.zeros((len(self.pieces), len(self.words) + 1), np.float32)
        for i, span in enumerate(self.spans[:-1]):
            overlaps = [_overlap(span, word) for word in self.words]
            if sum(overlaps):
                shares[i, :-1] = np.asarray(overlaps) / sum(overlaps)
            else:
                shares[i, self._next_word(span)] = 1
        shares[-1, -1] = 1
        return shares

    def _next_word(self, span: Span) -> int:
        after = [i for i, word in enumerate(self.words) if word[0] >= span[0]]
        return after[0] if after else max(len(self.words) - 1, 0)


def source_sentence(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> Sentence:
    """Describe a source text whose `ids` end with EOS."""
    return _describe(text, ids, tokenizer.source_pieces, tokenizer.decode_source)


def target_sentence(tokenizer: Tokenizer, ids: Sequence[int]) -> Sentence:
    """Describe a target by its ids, EOS at the end: a model may split text as no encoder would."""
    text = tokenizer.decode_target(ids)
    return _describe(text, ids, tokenizer.target_pieces, tokenizer.decode_target)


def _describe(
    text: str,
    ids: Sequence[int],
    pieces: Callable[[Sequence[int]], list[str]],
    decode: Callable[[Sequence[int]], str],
) -> Sentence:
    spans = [*_spans(text, ids[:-1], decode), (len(text), len(text))]
    return Sentence(text, tuple(ids), tuple(pieces(ids)), tuple(spans), tuple(word_spans(text)))


def _spans(text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Span]:
    """Return the characters of each piece: what it adds to the text of the pieces before it.

    A byte piece that completes no character gets the span of the character it is a part of.
    """
    ends = [_common_prefix(text, decode(ids[: i + 1])) for i in range(len(ids))]
    spans = []
    for start, end in zip([0, *ends], ends, strict=False):
        if end <= start:
            start, end = min(start, len(text) - 1), min(start + 1, len(text))
        spans.append((max(start, 0), end))
    return spans


def _common_prefix(a: str, b: str) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _overlap(a: Span, b: Span) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))


def merge_words(weights: Floats, queries: Sentence, keys: Sentence) -> Floats:
    """Merge maps of pieces, ... T S, into maps of words: sum over keys, mean over queries.

    That keeps each row a distribution (Clark et al. 2019). The end of each sentence
    stays as the last row and column.
    """
    rows = queries.membership()
    count = np.maximum(rows.sum(0), np.finfo(np.float32).tiny)
    rows = (rows / count).astype(np.float32)  # the mean over a word's pieces
    merged: Floats = np.swapaxes(rows, 0, 1) @ weights @ keys.membership()
    return merged
