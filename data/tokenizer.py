"""Text to ids and back: one joint or two separate SentencePiece models, trained reproducibly."""

import hashlib
import io
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from tfm.data.corpus import Pair
from tfm.data.errors import DataError
from tfm.data.lines import atomic_writer, reason
from tfm.data.pieces import BOS, EOS, PAD, UNK, PieceModel, escape
from tfm.data.settings import TokenizerSettings

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "train_tokenizer"]

SAMPLE = 500_000  # pairs a tokenizer is trained on; of a larger corpus, a seeded sample
PART = 1000  # characters; SentencePiece skips sentences over 4,192 bytes, so longer ones are cut


class Tokenizer:
    """A source and a target SentencePiece model, which are one and the same if `joint`.

    No method adds BOS or EOS. Decoding is the exact inverse of encoding for any text, text that
    looks like `</s>` or contains U+2581 included.

    Args:
        source: the model of source text.
        target: the model of target text; None for a joint vocabulary.
        note: what training had to change in the settings, in one line.
    """

    def __init__(
        self, source: PieceModel, target: PieceModel | None = None, *, note: str | None = None
    ) -> None:
        self.joint = target is None
        self._source = source
        self._target = source if target is None else target
        self.note = note
        self.source_size = len(self._source)
        self.target_size = len(self._target)
        # A translation is one line: search never chooses a target id whose text has LF or CR.
        self.line_break_ids = self._target.containing(b"\n\r")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the joint model `path`, or X.source.model and X.target.model for X.model.

        Raises:
            DataError: for a missing, damaged or foreign model, naming the file.
        """
        source, target = _separate(path)
        if not path.exists() and source.exists():
            return cls(_read(source), _read(target))
        return cls(_read(path))

    def save(self, path: Path) -> None:
        """Write what `load` reads, and remove what would hide it (an older joint model)."""
        if self.joint:
            _write(path, self._source)
            return
        source, target = _separate(path)
        _write(source, self._source)
        _write(target, self._target)
        path.unlink(missing_ok=True)

    def encode_source(self, text: str) -> list[int]:
        """Return the ids of a source text."""
        return self._source.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of a target text."""
        return self._target.encode(text)

    def encode_source_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source text."""
        return self._source.encode_batch(texts)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target text."""
        return self._target.encode_batch(texts)

    def decode_source(self, ids: Iterable[int]) -> str:
        """Return the text of source ids; special ids are dropped, bad UTF-8 becomes U+FFFD."""
        return self._source.decode(ids)

    def decode_target(self, ids: Iterable[int]) -> str:
        """Return the text of target ids; special ids are dropped, bad UTF-8 becomes U+FFFD."""
        return self._target.decode(ids)

    def source_pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the names of source ids, for display: U+2581 is a space, `<0xE2>` a byte."""
        return self._source.pieces(ids)

    def target_pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the names of target ids, for display: U+2581 is a space, `<0xE2>` a byte."""
        return self._target.pieces(ids)

    def source_id(self, piece: str) -> int | None:
        """Return the source id named `piece`, or None: the inverse of `source_pieces`."""
        return self._source.id_of(piece)

    def target_id(self, piece: str) -> int | None:
        """Return the target id named `piece`, or None: the inverse of `target_pieces`."""
        return self._target.id_of(piece)

    def source_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the (start, end) characters of each piece of `encode_source(text)`."""
        return self._source.spans(text)

    def target_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the (start, end) characters of each piece of `encode_target(text)`."""
        return self._target.spans(text)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model or of both, in hexadecimal."""
        if self.joint:
            return self._source.fingerprint
        both = self._source.fingerprint + self._target.fingerprint
        return hashlib.sha256(both.encode()).hexdigest()


def _separate(path: Path) -> tuple[Path, Path]:
    stem, suffix = path.stem, path.suffix
    return path.with_name(f"{stem}.source{suffix}"), path.with_name(f"{stem}.target{suffix}")


def _read(path: Path) -> PieceModel:
    try:
        return PieceModel(path.read_bytes(), where=str(path))
    except OSError as error:
        raise DataError(f"{path}: tokenizer cannot be read: {reason(error)}") from None


def _write(path: Path, model: PieceModel) -> None:
    with atomic_writer(path, binary=True) as file:
        file.write(model.data)


def train_tokenizer(pairs: Iterable[Pair], settings: TokenizerSettings) -> Tokenizer:
    """Train a tokenizer on the text of `pairs`, reproducibly.

    Where the text is too small for `vocab_size`, the largest vocabulary that works is taken and
    `note` says so. A corpus of over 500,000 pairs is sampled with a fixed seed.

    Raises:
        DataError: if there is no text, or `vocab_size` is too small for its characters.
    """
    sample = _sample(pairs)
    notes: list[str] = []
    if not settings.separate:
        lines = [text for pair in sample for text in pair]
        model = _train(lines, settings, "", notes)
        return Tokenizer(model, note="; ".join(notes) or None)
    source = _train([pair.source for pair in sample], settings, "source ", notes)
    target = _train([pair.target for pair in sample], settings, "target ", notes)
    return Tokenizer(source, target, note="; ".join(notes) or None)


def _sample(pairs: Iterable[Pair]) -> list[Pair]:
    """Return all pairs, or a uniform sample of SAMPLE (Vitter 1985, algorithm R)."""
    sample: list[Pair] = []
    rng = random.Random(0)
    for i, pair in enumerate(pairs):
        if i < SAMPLE:
            sample.append(pair)
        elif (slot := rng.randrange(i + 1)) < SAMPLE:
            sample[slot] = pair
    return sample


def _train(
    texts: list[str], settings: TokenizerSettings, side: str, notes: list[str]
) -> PieceModel:
    lines = list(_training_lines(texts))
    if not lines:
        raise DataError(
            f"the corpus has no {side}text to train a tokenizer on: every line is blank"
        )
    coverage = _character_coverage(lines, settings.vocab_size)
    try:
        return _run(lines, settings.kind, settings.vocab_size, coverage)
    except RuntimeError as error:
        message = str(error)
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        raise DataError(
            f"tokenizer.vocab_size is {settings.vocab_size}, but the {side}text needs at least "
            f"{needed[1]}: 4 special pieces, 256 bytes and its characters"
        )
    if largest := re.search(r"set it to a value <= (\d+)", message):
        size = int(largest[1])
        notes.append(
            f"the {side}text is too small for a vocabulary of {settings.vocab_size}: "
            f"{size} is the largest that works and was used"
        )
        return _run(lines, settings.kind, size, coverage)
    raise RuntimeError(message)


def _training_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the text as SentencePiece is to learn from it.

    It skips whole sentences with TAB, NUL or U+2585 (its marks for unknown text). These, and all
    control characters, are made spaces here: they are encoded as bytes, never as part of a piece.
    """
    controls = _Controls()
    for text in texts:
        text = escape(text.translate(controls))
        for start in range(0, len(text), PART):
            if part := text[start : start + PART].strip(" "):
                yield part


class _Controls(dict[int, str]):
    """A translation table that fills itself: control characters and line separators to spaces."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        control = unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char == "\u2585"
        self[code] = " " if control else char
        return self[code]


def _character_coverage(lines: Iterable[str], vocab_size: int) -> float:
    """Return the share of characters that get a piece; the others are written as bytes.

    An alphabet of letters has room for all. Thousands of characters, most of them rare, would leave
    no pieces for words: then SentencePiece's default for large alphabets.
    """
    alphabet: set[str] = set()
    for line in lines:
        alphabet.update(line)
    return 1.0 if len(alphabet) <= vocab_size // 4 else 0.9995


def _run(lines: list[str], kind: str, vocab_size: int, coverage: float) -> PieceModel:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=vocab_size,
        character_coverage=coverage,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=16,  # partial sums are added in this many parts: the result depends on it
        shuffle_input_sentence=False,
        minloglevel=2,  # 2 is errors only, and those come as exceptions
    )
    return PieceModel(model.getvalue(), where="the tokenizer just trained")
