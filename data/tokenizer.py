"""Text to ids and back: one joint or two separate SentencePiece models, trained reproducibly."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tfm.data.corpus import Pair
from tfm.data.errors import DataError
from tfm.data.lines import atomic_writer, reason
from tfm.data.pieces import BOS, EOS, PAD, UNK, Fit, PieceModel
from tfm.data.settings import TokenizerSettings
from tfm.data.vocabulary import train_pieces

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Tokenizer",
    "TokenizerReport",
    "train_tokenizer",
]

SAMPLE = 500_000  # pairs a tokenizer is trained on; of a larger corpus, a seeded sample


class TokenizerReport(NamedTuple):
    """How well a tokenizer fits a corpus, side by side."""

    joint: bool
    pairs: int  # that it was measured on
    source: Fit
    target: Fit


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
        self.source = source
        self.target = source if target is None else target
        self.note = note
        self.source_size = len(self.source)
        self.target_size = len(self.target)
        # A translation is one line: search never chooses a target id whose text has LF or CR.
        self.line_break_ids = self.target.containing(b"\n\r")
        self.forbidden_ids = self.line_break_ids | {PAD, UNK, BOS}

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
            _write(path, self.source)
            return
        source, target = _separate(path)
        _write(source, self.source)
        _write(target, self.target)
        path.unlink(missing_ok=True)

    def encode_source(self, text: str) -> list[int]:
        """Return the ids of a source text."""
        return self.source.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of a target text."""
        return self.target.encode(text)

    def encode_source_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source text."""
        return self.source.encode_batch(texts)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target text."""
        return self.target.encode_batch(texts)

    def decode_source(self, ids: Iterable[int]) -> str:
        """Return the text of source ids; special ids are dropped, bad UTF-8 becomes U+FFFD."""
        return self.source.decode(ids)

    def decode_target(self, ids: Iterable[int]) -> str:
        """Return the text of target ids; special ids are dropped, bad UTF-8 becomes U+FFFD."""
        return self.target.decode(ids)

    def source_pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the names of source ids, for display: U+2581 is a space, `<0xE2>` a byte."""
        return self.source.pieces(ids)

    def target_pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the names of target ids, for display: U+2581 is a space, `<0xE2>` a byte."""
        return self.target.pieces(ids)

    def measure(self, pairs: Sequence[Pair]) -> TokenizerReport:
        """Encode and decode `pairs`, and report what to know before training a model on them."""
        return TokenizerReport(
            joint=self.joint,
            pairs=len(pairs),
            source=self.source.measure([pair.source for pair in pairs]),
            target=self.target.measure([pair.target for pair in pairs]),
        )

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model or of both, in hexadecimal."""
        if self.joint:
            return self.source.fingerprint
        both = self.source.fingerprint + self.target.fingerprint
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
    kind, size = settings.kind, settings.vocab_size
    if not settings.separate:
        texts = [text for pair in sample for text in pair]
        trained = train_pieces(texts, kind=kind, vocab_size=size)
        return Tokenizer(trained.model, note=trained.note)
    source = train_pieces([p.source for p in sample], kind=kind, vocab_size=size, name="source")
    target = train_pieces([p.target for p in sample], kind=kind, vocab_size=size, name="target")
    notes = [note for note in (source.note, target.note) if note]
    return Tokenizer(source.model, target.model, note="; ".join(notes) or None)


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
