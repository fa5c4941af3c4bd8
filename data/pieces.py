"""One SentencePiece model, used so that ids stand for exactly the text they were made from.

SentencePiece writes a space as U+2581 and so cannot tell one from the other. A text's own U+2581 is
therefore escaped by two private-use characters before encoding, and put back after decoding. With
identity normalisation and byte fallback, the bytes of a text's pieces are then the bytes of the
escaped text behind one dummy space: decoding is joining bytes.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sentencepiece import SentencePieceProcessor

from tfm.data.errors import DataError
from tfm.data.phrases import PieceIndex

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPACE = "\u2581"
_MARK, _OTHER = "\U0010fffd", "\U0010fffc"  # the last two private-use characters of Unicode
_BYTES = 0xDC00  # no text that can be encoded has a character from here to 0xDCFF
_ESCAPES = str.maketrans({SPACE: _MARK + _OTHER, _MARK: _MARK + _MARK})
_ESCAPED = re.compile(f"{_MARK}([{_MARK}{_OTHER}])")
# Text that a model with another normalisation, or without byte fallback, does not give back.
_PROBE = f"  \ufb01 {SPACE}\u00a0\u2028</s>\t\U0001f9ea e\u0301 \n"


def escape(text: str) -> str:
    """Return `text` without U+2581, reversibly."""
    return text.translate(_ESCAPES) if SPACE in text or _MARK in text else text


def unescape(text: str) -> str:
    """Undo `escape`; a lone mark, which only a model can write, stays."""
    if _MARK not in text:
        return text
    return _ESCAPED.sub(lambda match: _MARK if match[1] == _MARK else SPACE, text)


class Fit(NamedTuple):
    """How well a model fits a text."""

    size: int  # pieces in the vocabulary
    pieces_per_word: float  # a word is what stands between white space
    unknown_rate: float  # share of the pieces that are UNK: none, thanks to byte fallback
    byte_rate: float  # share of the pieces that are bytes, of characters without a piece
    round_trip_rate: float  # share of the texts that decode to what was encoded


class PieceModel:
    """A SentencePiece model with the fixed ids PAD, UNK, BOS, EOS = 0, 1, 2, 3.

    Encoding is the model's best segmentation, with neither BOS nor EOS.

    Raises:
        DataError: when `data` is no such model; `where` is what the message calls it.
    """

    def __init__(self, data: bytes, *, where: str) -> None:
        self.data = data
        try:
            self._model = SentencePieceProcessor(model_proto=data)
            if not data or self._model.get_piece_size() <= EOS:
                raise RuntimeError("no pieces")
            self._bytes = [self._piece_bytes(i) for i in range(len(self))]
        except (RuntimeError, TypeError, ValueError):  # ValueError: a piece that is no UTF-8
            raise DataError(
                f"{where}: not a SentencePiece model, or damaged; train it again"
            ) from None
        self._require_ours(where)

    def __len__(self) -> int:
        return int(self._model.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; SentencePiece spreads a long list over all cores."""
        ids: list[list[int]] = self._model.encode([_utf8(text) for text in texts], out_type=int)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`: the exact inverse of `encode`, and total.

        Special ids are dropped. Bytes that form no UTF-8, which only a model can write, become
        U+FFFD.
        """
        text = b"".join([self._bytes[i] for i in ids]).decode(errors="replace")
        return unescape(text.removeprefix(" "))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the name of each id: text with U+2581 for a space, `<0xE2>` for a byte, `</s>`."""
        return [str(self._model.id_to_piece(int(i))) for i in ids]

    @cached_property
    def is_bpe(self) -> bool:
        """Whether the model is BPE: its scores count the merges; unigram's are logarithms."""
        return all(score == int(score) for _, _, score in self.scored_pieces())

    @cached_property
    def crosses_spaces(self) -> bool:
        """Whether some piece has a space that is not its first character."""
        return any(SPACE in piece[1:] for piece, _, _ in self.scored_pieces())

    @cached_property
    def begins_word(self) -> npt.NDArray[np.bool_]:
        """For each id, whether its piece begins with a space."""
        return np.array([piece[:1] == b" " for piece in self._bytes])

    @cached_property
    def index(self) -> PieceIndex:
        """The pieces by how they begin, to find those that would spell a word."""
        return PieceIndex(self._bytes)

    def bytes_of(self, text: str) -> bytes:
        """Return `text` as it stands in the bytes of pieces."""
        return escape(text).encode()

    def scored_pieces(self) -> list[tuple[str, int, float]]:
        """Return name, id and score of each piece, best score first.

        A byte is called as in `spell`; it has the score 0, for nothing competes with it.
        """
        model = self._model
        ids = [i for i in range(len(self)) if not (model.is_control(i) or model.is_unknown(i))]
        pieces = [
            (self.spell([i]), i, 0.0 if model.is_byte(i) else model.get_score(i)) for i in ids
        ]
        return sorted(pieces, key=lambda piece: -piece[2])

    def spell(self, ids: Iterable[int]) -> str:
        """Return the names of `ids` end to end: a space is U+2581, a byte half a surrogate pair.

        Bytes stand for characters that the model has no piece of, and take no part in merges.
        """
        model = self._model
        return "".join(
            chr(_BYTES + self._bytes[i][0]) if model.is_byte(i) else model.id_to_piece(i)
            for i in map(int, ids)
        )

    def id_of(self, piece: str) -> int | None:
        """Return the id named `piece`, or None."""
        i = int(self._model.piece_to_id(piece))
        return i if i != UNK or piece == self._model.id_to_piece(UNK) else None

    def containing(self, characters: bytes) -> frozenset[int]:
        """Return the ids whose text has any of the ASCII `characters`."""
        return frozenset(i for i, piece in enumerate(self._bytes) if set(piece) & set(characters))

    def measure(self, texts: Sequence[str]) -> Fit:
        """Encode and decode `texts` and report how it went."""
        encoded = self.encode_batch(texts)
        pieces = [i for ids in encoded for i in ids]
        exact = sum(self.decode(ids) == text for ids, text in zip(encoded, texts, strict=True))
        return Fit(
            size=len(self),
            pieces_per_word=len(pieces) / max(sum(len(text.split()) for text in texts), 1),
            unknown_rate=pieces.count(UNK) / max(len(pieces), 1),
            byte_rate=sum(map(self._model.is_byte, pieces)) / max(len(pieces), 1),
            round_trip_rate=exact / max(len(texts), 1),
        )

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def _piece_bytes(self, i: int) -> bytes:
        if self._model.is_control(i) or self._model.is_unknown(i):
            return b""
        piece: str = self._model.id_to_piece(i)
        if self._model.is_byte(i):
            return bytes.fromhex(piece[3:5])  # <0x0A>
        return piece.replace(SPACE, " ").encode()

    def _require_ours(self, where: str) -> None:
        model = self._model
        special = (model.pad_id(), model.unk_id(), model.bos_id(), model.eos_id())
        if special != (PAD, UNK, BOS, EOS) or self.decode(self.encode(_PROBE)) != _PROBE:
            raise DataError(
                f"{where}: a SentencePiece model with other special ids or another normalisation "
                "than tfm's; train one with `tfm tokenizer train`"
            )


def _utf8(text: str) -> bytes:
    try:
        return escape(text).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"text with half a surrogate pair (U+{ord(text[error.start]):04X}) has no UTF-8 form: "
            f"{text[max(error.start - 20, 0) : error.start]!r}..."
        ) from None
