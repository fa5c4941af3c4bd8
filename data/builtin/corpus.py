"""The splits of the built-in corpus: endless draws, sorted by which combinations they contain."""

import zlib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Literal, NamedTuple

from tfm.data.builtin.draw_phrases import Dice
from tfm.data.builtin.draw_sentences import draw_sentence
from tfm.data.builtin.meaning import Sentence, combinations
from tfm.data.builtin.sentences import BuiltinPair, realise
from tfm.data.errors import DataError

Split = Literal["train", "valid", "test"]

DEFAULT_COUNTS: dict[Split, int] = {"train": 20_000, "valid": 500, "test": 500}
# The grammar could go on, but a stated end makes every count either valid or refused.
MAXIMUM_COUNTS: dict[Split, int] = {"train": 100_000, "valid": 2_000, "test": 2_000}

_SEEDS: dict[Split, int] = {"train": 20260301, "valid": 20260302, "test": 20260303}
_HELD_OUT_OF = 16  # one combination in 16 belongs to test, one to valid
_LONGEST = 16  # English words, punctuation not counted


class Drawn(NamedTuple):
    """A pair and the meaning it came from, which says what combinations it holds."""

    meaning: Sentence
    pair: BuiltinPair


def builtin_pairs(split: Split, count: int | None = None) -> list[BuiltinPair]:
    """Return the first `count` pairs of a split of the built-in corpus, all distinct.

    Without `count`: 20,000 pairs to train, 500 to validate and 500 to test. Every pair of valid
    and test holds a combination of words (adjective with noun, verb with subject or object) that
    train never has. The same on every machine; a shorter list is the beginning of a longer one.

    Raises `DataError` for a count below 1 or above the maximum of the split.
    """
    maximum = MAXIMUM_COUNTS[split]
    wanted = DEFAULT_COUNTS[split] if count is None else count
    if not 1 <= wanted <= maximum:
        raise DataError(
            f"builtin: the {split} split has 1 to {maximum} pairs, but {wanted} were asked for."
        )
    return [drawn.pair for drawn in islice(draw_split(split), wanted)]


def home_of(combination: tuple[str, str, str]) -> Split:
    """Return the split that a combination belongs to; train is the home of most.

    The rule is a checksum of the words, so it depends on no order and no table, and a new word
    leaves the others where they are.
    """
    remainder = zlib.crc32(" ".join(combination).encode()) % _HELD_OUT_OF
    return "test" if remainder == 0 else "valid" if remainder == 1 else "train"


def split_of(sentence: Sentence) -> Split | None:
    """Return the split of a sentence, or None if it mixes combinations of valid and test."""
    homes = {home_of(combination) for combination in combinations(sentence)} - {"train"}
    return None if len(homes) > 1 else homes.pop() if homes else "train"


@cache
def _train_forms() -> frozenset[tuple[str, str]]:
    """Return the word forms of the default train split: all that valid and test may use."""
    return frozenset(form for pair in builtin_pairs("train") for form in _forms(pair))


def _forms(pair: BuiltinPair) -> list[tuple[str, str]]:
    """Return the words of both sides, each with the language it belongs to."""
    sides = (("en", pair.source), ("de", pair.target))
    return [(side, word.rstrip(",.?")) for side, text in sides for word in text.split()]


def draw_split(split: Split) -> Iterator[Drawn]:
    """Draw the pairs of a split with their meanings, without end."""
    dice = Dice(_SEEDS[split])
    seen = set()
    while True:
        sentence = draw_sentence(dice)
        if split_of(sentence) != split:
            continue
        pair = realise(sentence)
        if pair.source in seen or len(pair.source.split()) > _LONGEST:
            continue
        if split != "train" and not _train_forms().issuperset(_forms(pair)):
            continue
        seen.add(pair.source)
        yield Drawn(sentence, pair)
