"""The tokenizer: exact round trips for any text, reproducible training, errors in one line."""

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer

from tfm.data import tokenizer as tokenizer_module
from tfm.data.corpus import Pair
from tfm.data.errors import DataError
from tfm.data.settings import TokenizerSettings
from tfm.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, train_tokenizer

NASTY = [
    "",
    " ",
    "   ",
    " a",
    "a ",
    "a  b",
    "\u2581",
    "\u2581\u2581a \u2581",
    "<s> </s> <unk> <pad> <0x0A>",
    "</s>",
    "\U0010fffd\U0010fffc\u2581\U0010fffd",
    "\u00a0a\u00a0",
    "a\u2028b\u2029c\u0085d\ve\ff\rg\nh\0i\tj",
    "ﬁ ① Å Å e\u0301 ＡＢ",  # what NFKC would change
    "👩‍👩‍👧 🇩🇪 ❤️",
    "\u2585",
    "\ufeff\ufffd\uffff",
    "\U0010ffff",
    "x" * 20_000 + " y" * 20_000,
]
LETTERS = random.Random(0)
WORDS = ["the", "dog", *("".join(LETTERS.choices("adeghnorstu", k=5)) for _ in range(100))]


def some_pairs(count: int = 300, seed: int = 0) -> list[Pair]:
    rng = random.Random(seed)
    sides = [" ".join(rng.choices(WORDS, k=8)) for _ in range(2 * count)]
    return [Pair(a, b[::-1]) for a, b in zip(sides[::2], sides[1::2], strict=True)]


def trained(pairs: list[Pair] | None = None, **settings: object) -> Tokenizer:
    chosen = TokenizerSettings(**{"vocab_size": 350, **settings})  # type: ignore[arg-type]
    return train_tokenizer(some_pairs() if pairs is None else pairs, chosen)


@pytest.fixture(scope="module", params=["unigram", "bpe", "separate"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "separate":
        return trained(separate=True)
    return trained(kind=request.param)


SIDES: list[Callable[[Tokenizer, str], str]] = [
    lambda t, text: t.decode_source(t.encode_source(text)),
    lambda t, text: t.decode_target(t.encode_target(text)),
]


@pytest.mark.parametrize("text", NASTY)
def test_round_trip_of_nasty_text(tokenizer: Tokenizer, text: str) -> None:
    assert [side(tokenizer, text) for side in SIDES] == [text, text]


FRAGMENTS = st.sampled_from([*NASTY[:-1], *WORDS, " ", "<", ">"])
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(FRAGMENTS).map("".join)


@settings(max_examples=300)
@given(text=ANY_TEXT)
def test_round_trip_of_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert [side(tokenizer, text) for side in SIDES] == [text, text]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_round_trip_when_the_corpus_is_nasty_too(kind: str) -> None:
    """What looks special is text in training as well, however often it occurs."""
    special = [Pair(f"the {text} dog", text) for text in NASTY] * 50
    tokenizer = trained(some_pairs() + special, kind=kind, vocab_size=600)
    for text in NASTY:
        assert [side(tokenizer, text) for side in SIDES] == [text, text]
    names = tokenizer.target_pieces(range(tokenizer.target_size))
    assert len(set(names)) == len(names)
    # Only bytes stand for control characters, so pieces can be printed one line a sentence.
    assert not {unicodedata.category(char) for char in "".join(names)} & {"Cc", "Zl", "Zp"}


def test_special_text_never_gives_special_ids(tokenizer: Tokenizer) -> None:
    for text in ("<pad>", "<unk>", "<s>", "</s>"):
        assert not {PAD, UNK, BOS, EOS} & set(tokenizer.encode_target(text))


def test_special_ids_are_fixed_and_dropped(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.target_pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    ids = tokenizer.encode_target("the dog")
    assert tokenizer.decode_target([BOS, *ids, EOS, PAD, UNK]) == "the dog"


@settings(max_examples=200)
@given(data=st.data())
def test_whatever_a_model_writes_can_be_decoded_to_one_line(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    allowed = sorted(set(range(tokenizer.target_size)) - tokenizer.line_break_ids)
    text = tokenizer.decode_target(data.draw(st.lists(st.sampled_from(allowed))))
    text.encode()
    assert "\n" not in text and "\r" not in text


def test_only_line_breaks_are_forbidden(tokenizer: Tokenizer) -> None:
    names = sorted(tokenizer.target_pieces(tokenizer.line_break_ids))
    assert names == ["<0x0A>", "<0x0D>"]


def test_batches_equal_single_texts(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_source_batch(NASTY) == [tokenizer.encode_source(t) for t in NASTY]
    assert tokenizer.encode_target_batch(NASTY) == [tokenizer.encode_target(t) for t in NASTY]
    assert tokenizer.encode_source_batch([]) == []


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"half a surrogate pair \(U\+D800\)"):
        tokenizer.encode_source("a\ud800b")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_training_is_reproducible(kind: str) -> None:
    assert trained(kind=kind).fingerprint == trained(kind=kind).fingerprint
    assert trained(kind=kind).fingerprint != trained(some_pairs(seed=1), kind=kind).fingerprint


def test_a_large_corpus_is_sampled_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "SAMPLE", 100)
    assert trained().fingerprint == trained().fingerprint
    rare = [Pair("q" * 8, "q" * 8)] * 900  # after the first 100: a sample sees them, a head not
    assert trained(some_pairs(100) + rare).encode_source("qqqq") != trained().encode_source("qqqq")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_too_large_a_vocabulary_becomes_the_largest_that_works(kind: str) -> None:
    tokenizer = trained(vocab_size=50_000, kind=kind)
    assert tokenizer.note is not None and "\n" not in tokenizer.note
    assert "50000" in tokenizer.note and str(tokenizer.source_size) in tokenizer.note
    again = trained(vocab_size=tokenizer.source_size, kind=kind)
    assert again.note is None and again.source_size == tokenizer.source_size
    assert trained(vocab_size=tokenizer.source_size + 1, kind=kind).note is not None


def test_a_vocabulary_that_fits_is_taken_as_asked() -> None:
    assert (trained().source_size, trained().note) == (350, None)


@pytest.mark.parametrize("letters", ["", "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_too_small_a_vocabulary_names_the_smallest_that_works(kind: str, letters: str) -> None:
    pairs = [*some_pairs(), Pair(letters, letters)]
    with pytest.raises(DataError, match=r"vocab_size is 100, but .* at least (\d+)") as error:
        trained(pairs, vocab_size=100, kind=kind)
    smallest = int(str(error.value).split("at least ")[1].split(":")[0])
    assert trained(pairs, vocab_size=smallest, kind=kind).source_size == smallest
    with pytest.raises(DataError):
        trained(pairs, vocab_size=smallest - 1, kind=kind)


@pytest.mark.parametrize("pairs", [[], [Pair("", "")], [Pair(" ", "\t\0"), Pair("", "\u2028")]])
def test_no_text_is_an_error(pairs: list[Pair]) -> None:
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        trained(pairs)


@pytest.mark.parametrize("text", ["a", "ä" * 5000, "a\tb\u2585\0", "\u2581"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_one_line_is_enough(text: str, kind: str) -> None:
    tokenizer = trained([Pair(text, text)], kind=kind)
    assert SIDES[0](tokenizer, text) == text


def test_rare_characters_of_a_large_alphabet_become_bytes() -> None:
    """Thousands of characters must not take the place of words."""
    rare = [Pair("the dog " + chr(0x4E00 + i), "the cat") for i in range(3000)]
    tokenizer = trained(some_pairs() + rare, vocab_size=500)
    single = [n for n in tokenizer.source_pieces(range(260, 500)) if len(n) == 1]
    assert tokenizer.note is None and len(single) <= 126
    assert tokenizer.source_pieces(tokenizer.encode_source("the dog")) == ["▁the", "▁dog"]
    assert SIDES[0](tokenizer, rare[-1].source) == rare[-1].source


@pytest.mark.parametrize("separate", [False, True])
def test_saved_and_loaded_it_is_the_same(separate: bool, tmp_path: Path) -> None:
    tokenizer = trained(separate=separate)
    path = tmp_path / "m30k.model"
    tokenizer.save(path)
    files = {True: ["m30k.source.model", "m30k.target.model"], False: ["m30k.model"]}
    assert sorted(p.name for p in tmp_path.iterdir()) == files[separate]
    loaded = Tokenizer.load(path)
    assert loaded.fingerprint == tokenizer.fingerprint and loaded.joint is not separate
    text = "the dog \u2581 sees"
    assert loaded.encode_source(text) == tokenizer.encode_source(text)
    assert loaded.encode_target(text) == tokenizer.encode_target(text)


def test_the_last_saved_is_what_is_loaded(tmp_path: Path) -> None:
    for separate in (False, True, False, True):
        trained(separate=separate).save(tmp_path / "x.model")
        assert Tokenizer.load(tmp_path / "x.model").joint is not separate


def test_separate_vocabularies_learn_one_side_each() -> None:
    tokenizer = trained(separate=True)
    backwards = "eht god"
    assert len(tokenizer.encode_target(backwards)) < len(tokenizer.encode_source(backwards))


def test_damaged_and_foreign_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.model"
    with pytest.raises(DataError, match="x.model: .*no such file"):
        Tokenizer.load(path)
    trained().save(path)
    data = path.read_bytes()
    for damaged in (b"", b"hello", data[:-7], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="x.model: not a SentencePiece model, or damaged"):
            Tokenizer.load(path)
    prefix = str(tmp_path / "foreign")
    lines = iter([pair.source for pair in some_pairs()])
    SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_prefix=prefix,
        vocab_size=50,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    with pytest.raises(DataError, match="foreign.model: a SentencePiece model with other"):
        Tokenizer.load(tmp_path / "foreign.model")


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none/x.model: cannot be written"):
        trained().save(tmp_path / "none" / "x.model")


def test_the_report_counts_what_it_says() -> None:
    tokenizer = trained()
    pairs = [Pair("the dog", "eht \u4e00")]
    report = tokenizer.measure(pairs)
    pieces = tokenizer.encode_source("the dog")
    assert report.pairs == 1 and report.joint
    assert report.source.size == 350
    assert report.source.pieces_per_word == len(pieces) / 2
    assert (report.source.byte_rate, report.source.unknown_rate) == (0, 0)
    assert report.target.byte_rate == 3 / len(tokenizer.encode_target("eht \u4e00"))
    assert report.source.round_trip_rate == report.target.round_trip_rate == 1


def test_multi30k_round_trip(multi30k: Path) -> None:
    lines = (multi30k / "val.de").read_text(encoding="utf-8").split("\n")[:-1]
    tokenizer = trained([Pair(line, line) for line in lines[:500]], vocab_size=2000)
    decoded = [tokenizer.decode_target(ids) for ids in tokenizer.encode_target_batch(lines)]
    assert decoded == lines
