"""Ids to batches: sentences of similar length together, within a budget of tokens.

A corpus is a few flat arrays, so that millions of pairs take little more than their ids. The order
of batches is a pure function of corpus, budget, seed and epoch: resuming needs no saved sampler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from tfm.data.corpus import Pair
from tfm.data.errors import DataError
from tfm.data.settings import DataSettings
from tfm.data.tokenizer import BOS, EOS, PAD, Tokenizer

Ints = npt.NDArray[np.int64]
CHUNK = 4096  # pairs encoded at a time


@dataclass(frozen=True)
class Side:
    """The ids of one side of a corpus, end to end, without BOS and EOS.

    Args:
        ids: int32, all pieces.
        offsets: int64, one more than there are sentences; sentence i is offsets[i] to [i + 1].
    """

    ids: npt.NDArray[np.int32]
    offsets: Ints

    @cached_property
    def lengths(self) -> Ints:
        """The number of pieces of each sentence; counted once, for a corpus may be large."""
        return np.diff(self.offsets)

    def sentence(self, i: int) -> npt.NDArray[np.int32]:
        """Return the ids of sentence `i`."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def lengths_of(self, indices: Ints) -> Ints:
        """Return the number of pieces of the sentences `indices`, in time that fits a batch."""
        return self.offsets[indices + 1] - self.offsets[indices]

    def followed_by(self, other: "Side") -> "Side":
        """Return the sentences of this side, and then those of the other."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Side(np.concatenate([self.ids, other.ids]), offsets)

    def first(self, count: int) -> "Side":
        """Return the first `count` sentences, or all."""
        offsets = self.offsets[: count + 1]
        return Side(self.ids[: offsets[-1]], offsets)

    def padded(self, indices: Ints, *, before: int | None = None, after: int | None = None) -> Ints:
        """Return the sentences `indices`, with the id `before` or `after` each, padded: [B, L]."""
        begin, end = int(before is not None), int(after is not None)
        lengths = self.lengths_of(indices)
        rows = np.repeat(np.arange(len(indices)), lengths)
        columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        batch = np.full((len(indices), int(lengths.max()) + begin + end), PAD, dtype=np.int64)
        batch[rows, columns + begin] = self.ids[np.repeat(self.offsets[indices], lengths) + columns]
        if before is not None:
            batch[:, 0] = before
        if after is not None:
            batch[np.arange(len(indices)), lengths + begin] = after
        return batch


@dataclass(frozen=True)
class EncodedCorpus:
    """The pairs that training sees, as ids.

    Args:
        dropped: how many others there were, by reason.
        gaps: where those stood in the corpus, in its order, counted from 0.
    """

    source: Side
    target: Side
    dropped: dict[str, int] = field(default_factory=dict)
    gaps: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    @property
    def source_lengths(self) -> Ints:
        """The number of source pieces of each pair."""
        return self.source.lengths

    @property
    def target_lengths(self) -> Ints:
        """The number of target pieces of each pair."""
        return self.target.lengths

    @property
    def lines(self) -> Ints:
        """Where each pair stood in the corpus, counted from 1."""
        return np.delete(np.arange(len(self) + len(self.gaps)), np.asarray(self.gaps, int)) + 1

    def first(self, count: int) -> "EncodedCorpus":
        """Return the first `count` pairs, or all."""
        return EncodedCorpus(self.source.first(count), self.target.first(count))

    def followed_by(self, other: "EncodedCorpus") -> "EncodedCorpus":
        """Return the pairs of this corpus, and then those of the other."""
        source, target = self.source, self.target
        source, target = source.followed_by(other.source), target.followed_by(other.target)
        return EncodedCorpus(source, target, self.dropped)

    def backward(self) -> "EncodedCorpus":
        """Return each pair the other way round."""
        return EncodedCorpus(self.target, self.source, self.dropped)

    def both_directions(self) -> "EncodedCorpus":
        """Return the pairs, and behind them each pair the other way round."""
        return self.followed_by(self.backward())


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as rows of ids, padded on the right with PAD. All arrays are int64.

    Args:
        source: pieces + EOS, [B, S].
        source_lengths: how many of each row are not padding, EOS counted, [B].
        target_in: BOS + pieces, [B, T].
        target_out: pieces + EOS, [B, T]: what the model is to say after each of `target_in`.
        target_lengths: how many of each row are not padding, BOS or EOS counted, [B].
        indices: where the pairs stand in the corpus, [B].
    """

    source: Ints
    source_lengths: Ints
    target_in: Ints
    target_out: Ints
    target_lengths: Ints
    indices: Ints

    @property
    def tokens(self) -> int:
        """How many positions of both sides are not padding."""
        return int(self.source_lengths.sum() + self.target_lengths.sum())

    def rows(self, which: slice) -> "Batch":
        """Return some of the pairs as a batch that has no more padding than they need."""
        sources, targets = self.source_lengths[which], self.target_lengths[which]
        return Batch(
            source=self.source[which, : sources.max()],
            source_lengths=sources,
            target_in=self.target_in[which, : targets.max()],
            target_out=self.target_out[which, : targets.max()],
            target_lengths=targets,
            indices=self.indices[which],
        )


def encode_corpus(
    pairs: Iterable[Pair], tokenizer: Tokenizer, settings: DataSettings
) -> EncodedCorpus:
    """Encode a stream of pairs; leave out blank ones and those longer than `max_length` pieces.

    Raises:
        DataError: when no pair is left.
    """
    source, target = _GrowingSide(), _GrowingSide()
    dropped = {"empty": 0, "too long": 0}
    gaps: list[int] = []
    pairs, begin = iter(pairs), 0
    while chunk := list(islice(pairs, CHUNK)):
        filled = [i for i, pair in enumerate(chunk) if pair.source.strip() and pair.target.strip()]
        sources = tokenizer.encode_source_batch([chunk[i].source for i in filled])
        targets = tokenizer.encode_target_batch([chunk[i].target for i in filled])
        kept = {
            i: ids
            for i, *ids in zip(filled, sources, targets, strict=True)
            if max(map(len, ids)) <= settings.max_length
        }
        source.extend([ids for ids, _ in kept.values()])
        target.extend([ids for _, ids in kept.values()])
        dropped["empty"] += len(chunk) - len(filled)
        dropped["too long"] += len(filled) - len(kept)
        gaps += [begin + i for i in range(len(chunk)) if i not in kept]
        begin += len(chunk)
    corpus = EncodedCorpus(source.finish(), target.finish(), dropped, gaps)
    if not len(corpus):
        raise DataError(
            f"no pair is left of {len(gaps)}: {dropped['empty']} with a blank side, "
            f"{dropped['too long']} longer than data.max_length = {settings.max_length} pieces"
        )
    return corpus


def epoch_batches(
    corpus: EncodedCorpus, *, batch_tokens: int, seed: int, epoch: int, among: Ints | None = None
) -> list[Ints]:
    """Return the batches of one epoch as arrays of indices; every pair is in exactly one.

    A batch's size times its longest side, EOS counted, is at most `batch_tokens`; a single pair
    longer than that goes alone. The result depends on the arguments only.

    Args:
        among: the pairs to make batches of; None for all.
    """
    rng = np.random.default_rng([seed, epoch])
    pairs = np.arange(len(corpus)) if among is None else among
    widths = np.maximum(corpus.source.lengths_of(pairs), corpus.target.lengths_of(pairs)) + 1
    # Pairs of one width are shuffled, and a first batch of any size moves all borders, so batches
    # differ from epoch to epoch. Blurring the widths too would cost 4 % more padding (Multi30k).
    order = np.lexsort((rng.random(len(pairs)), widths))
    first = int(rng.integers(batch_tokens)) + 1
    batches = _cut(pairs[order], widths[order], first=first, batch_tokens=batch_tokens)
    return [batches[i] for i in rng.permutation(len(batches))]


def make_batch(corpus: EncodedCorpus, indices: Ints) -> Batch:
    """Return the pairs `indices` of `corpus` as one padded batch."""
    return Batch(
        source=corpus.source.padded(indices, after=EOS),
        source_lengths=corpus.source.lengths_of(indices) + 1,
        target_in=corpus.target.padded(indices, before=BOS),
        target_out=corpus.target.padded(indices, after=EOS),
        target_lengths=corpus.target.lengths_of(indices) + 1,
        indices=indices,
    )


class _GrowingSide:
    """A side in the making: arrays of ids and lengths, so that no sentence stays a list."""

    def __init__(self) -> None:
        self._ids = [np.empty(0, dtype=np.int32)]
        self._lengths = [np.zeros(1, dtype=np.int64)]

    def extend(self, sentences: list[list[int]]) -> None:
        self._ids.append(np.fromiter(chain.from_iterable(sentences), dtype=np.int32))
        self._lengths.append(np.fromiter(map(len, sentences), dtype=np.int64))

    def finish(self) -> Side:
        return Side(np.concatenate(self._ids), np.cumsum(np.concatenate(self._lengths)))


def _cut(order: Ints, widths: Ints, *, first: int, batch_tokens: int) -> list[Ints]:
    """Cut `order` into runs within the budget; `widths` are in the same order, ascending.

    The first run has the budget `first`, so that the borders fall elsewhere in each epoch.
    """
    batches, start, budget = [], 0, first
    while start < len(order):
        longest = widths[start : start + budget // int(widths[start]) + 1]
        cost = longest * np.arange(1, len(longest) + 1)  # grows, so the limit can be searched for
        count = max(1, int(np.searchsorted(cost, budget, side="right")))
        batches.append(order[start : start + count])
        start, budget = start + count, batch_tokens
    return batches
