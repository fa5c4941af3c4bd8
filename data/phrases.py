"""Words that a translation must not have, however they are cut into pieces.

A word or phrase stands in a text where no letter or digit is next to it on either side, and where
it is spelled the same, capitals included. Whatever pieces a text begins with, `barred` names those
that may not follow: a piece that would complete the word, or bring it whole.

A piece that ends where the word does is barred even if letters might still follow. So of a longer
word with the same beginning only those spellings are left whose piece reaches over that end.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


def stands_in(phrase: bytes, text: bytes) -> bool:
    """Return whether a phrase stands in a text, with no letter or digit next to it."""
    start = text.find(phrase)
    while start >= 0:
        if not _ends_in_letter(text[:start]) and not _begins_with_letter(
            text[start + len(phrase) :]
        ):
            return True
        start = text.find(phrase, start + 1)
    return False


class PieceIndex:
    """The pieces of a vocabulary, found by how they begin.

    Args:
        pieces: the bytes of each id, a space as itself; empty for special ids.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._whole = sorted((piece, i) for i, piece in enumerate(pieces) if piece)
        inner = [(piece[n:], i) for i, piece in enumerate(pieces) for n in _word_starts(piece)]
        self._inner = sorted(inner)  # from each place within a piece at which a word begins

    def text(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of the pieces end to end."""
        return b"".join([self.pieces[i] for i in ids])

    def beginning(self, rest: bytes, *, inner: bool = False) -> Iterator[tuple[bytes, int]]:
        """Yield what follows `rest` in each piece that begins with it, and the id of the piece.

        Args:
            inner: look at pieces from each place at which a word begins, except the first one.
        """
        entries = self._inner if inner else self._whole
        for place in range(bisect_left(entries, (rest, -1)), len(entries)):
            piece, i = entries[place]
            if not piece.startswith(rest):
                return
            yield piece[len(rest) :], i


class ForbiddenPhrase:
    """A word or phrase, and which pieces would bring it into a text.

    Args:
        phrase: its bytes, without white space around it.
    """

    def __init__(self, phrase: bytes, index: PieceIndex) -> None:
        self.phrase, self.index = phrase, index
        self._inner = frozenset(self._completing(phrase, inner=True))
        self._after: dict[int, frozenset[int]] = {}

    def barred(self, text: bytes) -> set[int]:
        """Return the ids that may not follow `text`, the bytes of the pieces so far."""
        found = set(self._inner)
        for length in range(min(len(self.phrase) - 1, len(text)), -1, -1):
            head = text[: len(text) - length]
            if text[len(head) :] == self.phrase[:length] and not _ends_in_letter(head):
                found |= self._following(length)
        return found

    def _following(self, length: int) -> frozenset[int]:
        """Return the ids that complete the phrase after its first `length` bytes."""
        if length not in self._after:
            rest = self.phrase[length:]
            self._after[length] = frozenset(self._completing(rest, inner=False))
        return self._after[length]

    def _completing(self, rest: bytes, *, inner: bool) -> Iterator[int]:
        for more, i in self.index.beginning(rest, inner=inner):
            if not _begins_with_letter(more):
                yield i


def _ends_in_letter(text: bytes) -> bool:
    return text[-4:].decode(errors="replace")[-1:].isalnum()


def _begins_with_letter(text: bytes) -> bool:
    return text[:4].decode(errors="replace")[:1].isalnum()


def _word_starts(piece: bytes) -> Iterator[int]:
    """Yield the places within a piece, after the first, that come after no letter."""
    for n in range(1, len(piece)):
        if piece[n] & 0xC0 != 0x80 and not _ends_in_letter(piece[:n]):
            yield n
