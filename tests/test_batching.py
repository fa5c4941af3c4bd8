"""Batches hold every pair once, keep their budget, and depend on the seed and epoch alone."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.batching import EncodedCorpus, Side, encode_corpus, epoch_batches, make_batch
from tfm.data.corpus import Pair
from tfm.data.errors import DataError
from tfm.data.settings import DataSettings, TokenizerSettings
from tfm.data.tokenizer import BOS, EOS, PAD, Tokenizer, train_tokenizer


def corpus_of(source: list[int], target: list[int]) -> EncodedCorpus:
    """Return a corpus of the given lengths; ids count up from 4, so that each is known again."""
    sides = []
    for lengths in (source, target):
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sides.append(Side(np.arange(4, 4 + offsets[-1], dtype=np.int32), offsets))
    return EncodedCorpus(*sides)


def captions(count: int) -> EncodedCorpus:
    """Return a corpus with lengths like those of Multi30k's captions in pieces."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.gamma(9, 1.7, count), 4, 60).astype(int)
    target = np.clip(source * rng.normal(1.05, 0.17, count), 3, 70).astype(int)
    return corpus_of(source.tolist(), target.tolist())


def widths(corpus: EncodedCorpus) -> np.ndarray:
    return np.maximum(corpus.source_lengths, corpus.target_lengths) + 1


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)


@given(LENGTHS, st.integers(1, 300), st.integers(0, 5), st.integers(0, 5))
def test_each_pair_once_and_within_the_budget(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    corpus = corpus_of([a for a, _ in lengths], [b for _, b in lengths])
    batches = epoch_batches(corpus, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(corpus)))
    for batch in batches:
        cost = widths(corpus)[batch].max() * len(batch)
        assert cost <= batch_tokens or len(batch) == 1


def as_lists(batches: list[np.ndarray]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_a_pure_function_of_seed_and_epoch() -> None:
    corpus = captions(500)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        return as_lists(epoch_batches(corpus, batch_tokens=500, seed=seed, epoch=epoch))

    first = batches(1, 1)
    np.random.seed(7)
    batches(1, 2)
    assert batches(1, 1) == first
    assert len({str(b) for b in (first, batches(1, 2), batches(2, 1), batches(2, 2))}) == 4


@pytest.mark.parametrize("count", [300, 29_000])
def test_composition_changes_from_epoch_to_epoch(count: int) -> None:
    corpus = captions(count)
    epochs = [
        {frozenset(b) for b in as_lists(epoch_batches(corpus, batch_tokens=1000, seed=1, epoch=e))}
        for e in (0, 1)
    ]
    assert len(epochs[0] & epochs[1]) < 0.1 * len(epochs[0])


def test_order_does_not_follow_length() -> None:
    corpus = captions(5000)
    batches = epoch_batches(corpus, batch_tokens=1000, seed=1, epoch=0)
    lengths = [widths(corpus)[batch].mean() for batch in batches]
    assert abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.3


def test_little_padding_and_little_time() -> None:
    corpus = captions(29_000)
    start = time.perf_counter()
    batches = epoch_batches(corpus, batch_tokens=4096, seed=1, epoch=0)
    assert time.perf_counter() - start < 0.5  # about 0.01 s on an idle machine
    real = padded = 0
    for indices in batches:
        for lengths in (corpus.source_lengths[indices] + 1, corpus.target_lengths[indices] + 1):
            real += int(lengths.sum())
            padded += int(lengths.max()) * len(lengths)
    assert 1 - real / padded < 0.1
    full = sum(len(batch) * widths(corpus)[batch].max() > 0.9 * 4096 for batch in batches)
    assert full >= len(batches) - 2


def test_a_batch_row_by_row() -> None:
    corpus = corpus_of([2, 3, 1], [1, 1, 4])
    batch = make_batch(corpus, np.array([2, 0]))
    assert batch.source.tolist() == [[9, EOS, PAD], [4, 5, EOS]]
    assert batch.source_lengths.tolist() == [2, 3]
    assert batch.target_in.tolist() == [[BOS, 6, 7, 8, 9], [BOS, 4, PAD, PAD, PAD]]
    assert batch.target_out.tolist() == [[6, 7, 8, 9, EOS], [4, EOS, PAD, PAD, PAD]]
    assert batch.target_lengths.tolist() == [5, 2]
    assert batch.indices.tolist() == [2, 0]
    arrays = vars(batch).values()
    assert all(array.dtype == np.int64 for array in arrays)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pairs = [Pair("the dog sees the cat", "der Hund sieht die Katze")] * 10
    return train_tokenizer(pairs, TokenizerSettings(vocab_size=290))


def test_encoding_keeps_order_and_counts_what_it_drops(tokenizer: Tokenizer) -> None:
    good = [Pair("the dog", "der Hund"), Pair("the cat", "die Katze")]
    bad = [Pair("", "x"), Pair("x", " \u00a0\u2028"), Pair("dog " * 50, "x"), Pair("x", "y" * 99)]
    pairs = [good[0], *bad, good[1]]
    corpus = encode_corpus(iter(pairs), tokenizer, DataSettings(max_length=20))
    assert len(corpus) == 2
    assert corpus.dropped == {"empty": 2, "too long": 2}
    for i, pair in enumerate(good):
        assert corpus.source.sentence(i).tolist() == tokenizer.encode_source(pair.source)
        assert corpus.target.sentence(i).tolist() == tokenizer.encode_target(pair.target)
    assert corpus.source.ids.dtype == np.int32
    assert corpus.target_lengths.tolist() == [len(tokenizer.encode_target(p.target)) for p in good]


def test_a_pair_of_exactly_the_longest_length_stays(tokenizer: Tokenizer) -> None:
    length = len(tokenizer.encode_source("xxxxx"))
    for limit, kept in ((length, 2), (length - 1, 1)):
        pairs = [Pair("xxxxx", "x"), Pair("x", "x")]
        assert len(encode_corpus(pairs, tokenizer, DataSettings(max_length=limit))) == kept


def test_more_pairs_than_are_encoded_at_a_time(tokenizer: Tokenizer) -> None:
    pairs = [Pair("the dog " * (i % 3), "der Hund") for i in range(10_000)]
    corpus = encode_corpus(pairs, tokenizer, DataSettings())
    assert corpus.dropped["empty"] == 3334 and len(corpus) == 6666
    batch = make_batch(corpus, np.array([len(corpus) - 1]))
    assert tokenizer.decode_source(batch.source[0]) == pairs[9998].source


@pytest.mark.parametrize("pairs", [[], [Pair("", "x")], [Pair("x" * 99, "y")]])
def test_nothing_left_is_an_error(pairs: list[Pair], tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no pair is left of [0-9]+: .* data.max_length = 9 "):
        encode_corpus(pairs, tokenizer, DataSettings(max_length=9))


def test_lengths_are_counted_once_for_all_epochs() -> None:
    corpus = corpus_of([3, 5, 2], [4, 4, 1])
    first = corpus.source_lengths
    for epoch in range(2):
        for batch in epoch_batches(corpus, batch_tokens=12, seed=1, epoch=epoch):
            make_batch(corpus, batch)
    assert corpus.source_lengths is first
    assert first.tolist() == [3, 5, 2]
