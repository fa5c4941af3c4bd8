"""Subword regularisation: the papers' distributions, exact text, and (seed, epoch) for ever."""

import hashlib
import io
import itertools
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer

from tfm.data.batching import EncodedCorpus, Side, encode_corpus
from tfm.data.bpe_dropout import BpeDropout
from tfm.data.corpus import Pair, read_pairs
from tfm.data.errors import SettingsError
from tfm.data.pieces import PieceModel
from tfm.data.settings import DataSettings, TokenizerSettings
from tfm.data.subwords import Sampler, WordTable, require_sampling, resegmented
from tfm.data.tokenizer import PAD, Tokenizer, train_tokenizer
from tfm.data.unigram_sampling import UnigramSampling
from tfm.model.checkpoint import weights_of
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run
from tfm.model.training.state import Progress

PAIRS = list(read_pairs("builtin:400", source="en", target="de", split="train"))
NASTY = [
    "a  b",
    " ",
    "\u2581 \u2581x",
    "\U0010fffd\u2581",
    "a\tb\nc\0",
    "\u00a0ﬁ👩‍👩‍👧",
    "</s> <0x41>",
]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(PAIRS, TokenizerSettings(vocab_size=600, kind="bpe"))


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return train_tokenizer(PAIRS, TokenizerSettings(vocab_size=600))


@pytest.fixture(params=["bpe", "unigram"])
def either(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer


def side_of(sentences: Sequence[list[int]]) -> Side:
    ids = np.array([i for sentence in sentences for i in sentence], dtype=np.int32)
    return Side(ids, np.cumsum([0, *map(len, sentences)], dtype=np.int64))


def sampler_for(model: PieceModel, words: Sequence[str], *, amount: float) -> Sampler:
    kind = BpeDropout if model.is_bpe else UnigramSampling
    return kind(model, words, amount)


def sampled(model: PieceModel, texts: list[str], *, amount: float, seed: int) -> list[list[int]]:
    side = side_of(model.encode_batch(texts))
    table = WordTable(side, model)
    rng = np.random.default_rng(seed)
    found = table.sample(sampler_for(model, table.words, amount=amount), rng)
    return [found.sentence(i).tolist() for i in range(len(texts))]


def frequencies(model: PieceModel, word: str, *, amount: float, count: int) -> Counter[str]:
    """Sample the segmentation of a word many times; a segmentation reads `▁wo|rd`."""
    rows = sampled(model, [word] * count, amount=amount, seed=1)
    return Counter("|".join(model.pieces(row)) for row in rows)


def assert_distributed(found: Counter[str], expected: dict[str, float]) -> None:
    """Compare by total variation; a wrong distribution is off by far more than chance."""
    total = found.total()
    names = found.keys() | expected.keys()
    distance = sum(abs(found[name] / total - expected.get(name, 0.0)) for name in names) / 2
    assert distance < 0.03, found.most_common(5)


# The distributions


def algorithm_1(score: dict[str, float], word: str, p: float, rng: random.Random) -> str:
    """Segment a word as Provilkov et al. 2020, algorithm 1, has it, step by step."""
    split = list("\u2581" + word)
    while True:
        merges = [i for i in range(len(split) - 1) if split[i] + split[i + 1] in score]
        merges = [i for i in merges if rng.random() >= p]
        if not merges:
            return "|".join(split)
        i = max(merges, key=lambda i: (score[split[i] + split[i + 1]], -i))
        split[i : i + 2] = [split[i] + split[i + 1]]


@pytest.mark.parametrize("word", ["children", "Geschichte", "aaaa"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_bpe_dropout_is_the_papers_algorithm(bpe: Tokenizer, word: str, p: float) -> None:
    rng = random.Random(0)
    runs = 20_000
    score = {piece: value for piece, _, value in bpe.source.scored_pieces()}
    slow = Counter(algorithm_1(score, word, p, rng) for _ in range(runs))
    found = frequencies(bpe.source, word, amount=p, count=runs)
    assert len(slow) > 2 or word == "aaaa"
    assert_distributed(found, {name: count / runs for name, count in slow.items()})


def segmentations(model: PieceModel, word: str) -> dict[str, float]:
    """Return log P of every segmentation of a word, by trying all cuts."""
    score = {piece: value for piece, _, value in model.scored_pieces()}
    text = "\u2581" + word
    found = {}
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        places = [0, *(i for i, cut in enumerate(cuts, start=1) if cut), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(places)]
        if all(piece in score for piece in pieces):
            found["|".join(pieces)] = sum(score[piece] for piece in pieces)
    return found


@pytest.mark.parametrize("word", ["children", "der", "aaaa"])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_sampling_is_the_papers_distribution(
    unigram: Tokenizer, word: str, alpha: float
) -> None:
    """Kudo 2018, section 3.3: P(x)^alpha, normalised over all segmentations."""
    weights = {x: math.exp(alpha * p) for x, p in segmentations(unigram.source, word).items()}
    assert len(weights) > 3 or word == "aaaa"
    total = sum(weights.values())
    found = frequencies(unigram.source, word, amount=alpha, count=20_000)
    assert_distributed(found, {x: weight / total for x, weight in weights.items()})


def test_without_dropout_the_pieces_are_sentencepieces_own(bpe: Tokenizer) -> None:
    texts = [text for pair in PAIRS for text in pair] + NASTY
    assert sampled(bpe.source, texts, amount=0.0, seed=1) == bpe.source.encode_batch(texts)


def test_with_a_large_alpha_the_pieces_are_sentencepieces_own(unigram: Tokenizer) -> None:
    texts = [text for pair in PAIRS for text in pair] + NASTY
    found = sampled(unigram.source, texts, amount=1e4, seed=1)
    assert found == unigram.source.encode_batch(texts)


# Text


FRAGMENTS = st.sampled_from([*NASTY, *PAIRS[0].source.split(), *PAIRS[1].target.split(), " "])
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.lists(
    FRAGMENTS, min_size=1
).map("".join)


@settings(max_examples=100)
@given(texts=st.lists(ANY_TEXT.filter(str.strip), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_any_text_survives_any_segmentation(
    bpe: Tokenizer, unigram: Tokenizer, texts: list[str], seed: int
) -> None:
    for model, amount in ((bpe.source, 0.5), (unigram.source, 0.1)):
        rows = sampled(model, texts, amount=amount, seed=seed)
        assert [model.decode(row) for row in rows] == texts


def corpus_of(tokenizer: Tokenizer) -> EncodedCorpus:
    return encode_corpus(PAIRS, tokenizer, DataSettings())


def epochs(tokenizer: Tokenizer, *, seed: int) -> Callable[[int], EncodedCorpus]:
    dropout, alpha = (0.1, 0.0) if tokenizer.source.is_bpe else (0.0, 0.2)
    return resegmented(corpus_of(tokenizer), tokenizer, dropout=dropout, alpha=alpha, seed=seed)


@pytest.mark.parametrize("separate", [False, True], ids=["joint", "separate"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_both_sides_of_every_pair_keep_their_text(kind: Any, separate: bool) -> None:
    settings = TokenizerSettings(vocab_size=500, kind=kind, separate=separate)
    tokenizer = train_tokenizer(PAIRS, settings)
    corpus = epochs(tokenizer, seed=1)(0)
    texts = [
        Pair(
            tokenizer.decode_source(corpus.source.sentence(i)),
            tokenizer.decode_target(corpus.target.sentence(i)),
        )
        for i in range(len(corpus))
    ]
    assert texts == PAIRS


# Epochs


def digest(corpus: EncodedCorpus) -> str:
    arrays = (corpus.source.ids, corpus.source.offsets, corpus.target.ids, corpus.target.offsets)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def test_each_epoch_and_seed_has_its_own_pieces_and_the_same_ones_again(either: Tokenizer) -> None:
    digests = {digest(epochs(either, seed=seed)(epoch)) for seed in (1, 2) for epoch in (0, 1)}
    assert len(digests) == 4
    assert digest(corpus_of(either)) not in digests
    of_epoch = epochs(either, seed=1)
    of_epoch(0)
    assert digest(of_epoch(1)) == digest(epochs(either, seed=1)(1)), "whatever came before"


def test_the_sides_do_not_share_their_draws(bpe: Tokenizer) -> None:
    same = encode_corpus([Pair(p.source, p.source) for p in PAIRS], bpe, DataSettings())
    corpus = resegmented(same, bpe, dropout=0.3, alpha=0.0, seed=1)(0)
    assert corpus.source.ids.tolist() != corpus.target.ids.tolist()


def test_another_process_draws_the_same(
    either: Tokenizer, tmp_path: Path, environment: dict[str, str]
) -> None:
    """SentencePiece's own sampling does not, for one and the same seed."""
    either.save(tmp_path / "t.model")
    program = """
import hashlib
from pathlib import Path
from tfm.data.batching import encode_corpus
from tfm.data.corpus import read_pairs
from tfm.data.settings import DataSettings
from tfm.data.subwords import resegmented
from tfm.data.tokenizer import Tokenizer

tokenizer = Tokenizer.load(Path("t.model"))
pairs = read_pairs("builtin:400", source="en", target="de", split="train")
corpus = encode_corpus(pairs, tokenizer, DataSettings())
dropout, alpha = (0.1, 0.0) if tokenizer.source.is_bpe else (0.0, 0.2)
corpus = resegmented(corpus, tokenizer, dropout=dropout, alpha=alpha, seed=5)(3)
print(hashlib.sha256(corpus.source.ids.tobytes() + corpus.target.ids.tobytes()).hexdigest())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    here = epochs(either, seed=5)(3)
    ids = here.source.ids.tobytes() + here.target.ids.tobytes()
    assert done.stdout.strip() == hashlib.sha256(ids).hexdigest(), done.stderr


# In training


@pytest.mark.parametrize(
    ("kind", "option", "other"),
    [
        ("unigram", {"subword_dropout": 0.1}, "subword_alpha"),
        ("bpe", {"subword_alpha": 0.1}, "subword_dropout"),
    ],
)
def test_the_other_kind_of_tokenizer_is_refused_before_anything_is_written(
    small_order: Callable[..., Any], tmp_path: Path, kind: str, option: dict[str, float], other: str
) -> None:
    [key] = option
    order = small_order(tmp_path / "run", kind=kind, **option)
    message = rf"^.*`{key}` is 0.1, but .* {kind} model.*`{other}`.*$"
    with pytest.raises(SettingsError, match=message), prepare(order, Silence()):
        pass
    assert not (tmp_path / "run").exists()


def test_pieces_across_spaces_are_refused() -> None:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(pair.source for pair in PAIRS),
        model_writer=model,
        vocab_size=400,
        split_by_whitespace=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "minloglevel": 2},
    )
    tokenizer = Tokenizer(PieceModel(model.getvalue(), where="test"))
    require_sampling(tokenizer, dropout=0.0, alpha=0.0)
    with pytest.raises(SettingsError, match="do not cross spaces"):
        require_sampling(tokenizer, dropout=0.0, alpha=0.1)


OPTIONS: list[dict[str, Any]] = [
    {"kind": "bpe", "subword_dropout": 0.2},
    {"kind": "unigram", "subword_alpha": 0.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["bpe", "unigram"])
def test_resuming_is_exact(
    assert_resume_is_exact: Callable[..., None], options: dict[str, Any]
) -> None:
    assert_resume_is_exact(**options)


@pytest.mark.parametrize("options", OPTIONS, ids=["bpe", "unigram"])
def test_training_sees_other_pieces_and_validation_does_not(
    train_small: Callable[..., Run], tmp_path: Path, options: dict[str, Any]
) -> None:
    runs = [
        train_small(tmp_path / "sampled", **options),
        train_small(tmp_path / "plain", kind=options["kind"]),
    ]
    one, other = (weights_of(run.learner.model)["target_embedding.weight"] for run in runs)
    assert not one.equal(other)
    valid = [run.valid for run in runs]
    assert valid[0] and valid[1] and digest(valid[0].corpus) == digest(valid[1].corpus)
    seen = []
    for run in runs:
        stream = replace(run, progress=Progress()).stream()
        batches = stream.take(3 * len(stream.epoch_order))
        found = [batch.source[batch.indices == 5] for batch in batches if 5 in batch.indices]
        seen.append({tuple(row[row != PAD]) for [row] in found})
    assert len(seen[0]) > 1 and len(seen[1]) == 1, "epochs differ with it only"
