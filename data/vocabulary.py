"""Training one SentencePiece model: which text it learns from, and which size the text allows."""

import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from tfm.data.errors import DataError
from tfm.data.pieces import BOS, EOS, PAD, UNK, PieceModel, escape

PART = 1000  # characters; SentencePiece skips sentences over 4,192 bytes, so longer ones are cut


class Trained(NamedTuple):
    """A model, and in one line what had to be changed to train it."""

    model: PieceModel
    note: str | None


def train_pieces(
    texts: Iterable[str], *, kind: Literal["unigram", "bpe"], vocab_size: int, name: str = "corpus"
) -> Trained:
    """Train a model of `vocab_size` pieces, or of the most that the text allows, reproducibly.

    Args:
        name: what messages call the text.

    Raises:
        DataError: if there is no text, or `vocab_size` is too small for its characters.
    """
    lines = list(_training_lines(texts))
    if not lines:
        raise DataError(f"the {name} has no text to train a tokenizer on")
    lines = _without_rare_characters(lines, max(100, vocab_size // 4))
    try:
        return Trained(_run(lines, kind, vocab_size), None)
    except RuntimeError as error:  # SentencePiece's only one: what is wrong stands in the message
        message = str(error)
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        raise DataError(
            f"tokenizer.vocab_size is {vocab_size}, but the {name} needs at least {needed[1]}: "
            "4 special pieces, 256 bytes and one for each of its characters"
        )
    if largest := re.search(r"set it to a value <= (\d+)", message):
        size = int(largest[1])
        note = f"the {name} is too small for {vocab_size} pieces; took the most that work, {size}"
        return Trained(_run(lines, kind, size), note)
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


def _without_rare_characters(lines: list[str], most: int) -> list[str]:
    """Make all characters but the `most` frequent ones spaces: they are encoded as bytes.

    Thousands of rare characters would leave no room for words. SentencePiece's own
    `character_coverage` cannot bound their number.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    rare = {ord(char): " " for char, _ in counts.most_common()[most:]}
    return [line.translate(rare) for line in lines] if rare else lines


def _run(lines: list[str], kind: str, vocab_size: int) -> PieceModel:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=vocab_size,
        character_coverage=1.0,  # the rare ones are gone
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
