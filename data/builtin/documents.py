"""Documents of the built-in corpus: sentences in a row, whose last ones need the first ones.

A document opens with what it is about ("The doctor has a key."), goes on with sentences of the
corpus, and ends with what is done with it ("The girl looks for it. The doctor needs it."). German
says ihn, sie or es, by the gender of the noun far above. To translate "it", a model has to carry
that across all the nouns in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from tfm.data.builtin.auxiliaries import HAVE
from tfm.data.builtin.corpus import Split, builtin_pairs
from tfm.data.builtin.draw_phrases import Dice
from tfm.data.builtin.forms import Noun
from tfm.data.builtin.function_words import IT, THE, A
from tfm.data.builtin.meaning import Clause, NounPhrase, Sentence
from tfm.data.builtin.nouns import NOUNS, PEOPLE
from tfm.data.builtin.sentences import BuiltinPair, realise
from tfm.data.builtin.verbs import VERB
from tfm.data.errors import DataError
from tfm.data.words import word_spans

DOCUMENTS: dict[Split, int] = {"train": 5_000, "valid": 100, "test": 200}
MOST_DOCUMENTS = 100_000
SENTENCES = 8  # of a document, where nothing else is said
FRAME = 3  # of them open and close the document
MOST_SENTENCES = 1_000

_SEEDS: dict[Split, int] = {"train": 20260401, "valid": 20260402, "test": 20260403}
_PEOPLE = tuple(noun for noun in NOUNS if noun.is_any_of(PEOPLE) and not noun.relation)
_THINGS = tuple(n for n in NOUNS if n.is_any_of(("text", "thing", "vehicle")) and n.countable)
_ACTIONS = tuple(VERB[base] for base in ("need", "sell", "bring", "look"))


@dataclass(frozen=True)
class Document:
    """A document and its translation, with the German pronoun of its two last sentences."""

    pair: BuiltinPair
    pronoun: str


def builtin_documents(
    split: Split,
    count: int | None = None,
    *,
    sentences: int = SENTENCES,
    at_most: int | None = None,
) -> list[Document]:
    """Return the first `count` documents of a split, all distinct, each of so many sentences.

    With `at_most` the sentences of each are drawn, from `sentences` to so many.

    Its sentences between opening and closing are those of the same split of the corpus. The same on
    every machine; a shorter list is the beginning of a longer one.

    Raises:
        DataError: for a number of documents or sentences that is out of range.
    """
    wanted = DOCUMENTS[split] if count is None else count
    if not 1 <= wanted <= MOST_DOCUMENTS:
        raise DataError(
            f"builtin-documents: there are 1 to {MOST_DOCUMENTS} documents, "
            f"but {wanted} were asked for."
        )
    at_most = sentences if at_most is None else at_most
    if not FRAME <= sentences <= at_most <= MOST_SENTENCES:
        asked = f"{sentences}" if sentences == at_most else f"{sentences}-{at_most}"
        raise DataError(
            f"builtin-documents: a document has {FRAME} to {MOST_SENTENCES} sentences, "
            f"but {asked} were asked for."
        )
    return list(islice(draw_documents(split, range(sentences, at_most + 1)), wanted))


def draw_documents(split: Split, sizes: Sequence[int]) -> Iterator[Document]:
    """Draw documents without end, each with one of `sizes` as the number of its sentences."""
    dice = Dice(_SEEDS[split])
    between = _between(split)
    seen = set()
    while True:
        opening, closing, pronoun = draw_frame(dice)
        size = dice.pick(sizes) if len(sizes) > 1 else sizes[0]  # one size draws as ever
        middle = [dice.pick(between) for _ in range(size - FRAME)]
        document = Document(join([realise(opening), *middle, *map(realise, closing)]), pronoun)
        if document.pair.source not in seen:
            seen.add(document.pair.source)
            yield document


@cache
def _between(split: Split) -> list[BuiltinPair]:
    return builtin_pairs(split)


def draw_frame(dice: Dice) -> tuple[Sentence, list[Sentence], str]:
    """Draw who has what, what two do with it, and what "it" is in German."""
    owner, thing = dice.pick(_PEOPLE), dice.pick(_THINGS)
    opening = Sentence(
        Clause(subject=NounPhrase(THE, owner), verb=HAVE, object=NounPhrase(A, thing))
    )
    people = distinct(dice, _PEOPLE)
    return opening, [draw_closing(dice, who, thing) for who in people], IT[thing.gender].accusative


def draw_closing(dice: Dice, who: Noun, thing: Noun) -> Sentence:
    """Draw what somebody does with `thing`, which is only called "it"."""
    verb = dice.pick(
        [
            verb
            for verb in _ACTIONS
            if who.is_any_of(verb.subjects) and thing.is_any_of(verb.objects)
        ]
    )
    return Sentence(Clause(subject=NounPhrase(THE, who), verb=verb, object=IT[thing.gender]))


def distinct(dice: Dice, nouns: Sequence[Noun]) -> list[Noun]:
    """Draw two different nouns."""
    first = dice.pick(nouns)
    return [first, dice.pick([noun for noun in nouns if noun is not first])]


def join(parts: Sequence[BuiltinPair]) -> BuiltinPair:
    """Put sentences side by side, with a space between them, and their alignments together."""
    alignment: list[tuple[int, int]] = []
    source_words = target_words = 0
    for part in parts:
        alignment += [(s + source_words, t + target_words) for s, t in part.alignment]
        source_words += len(word_spans(part.source))
        target_words += len(word_spans(part.target))
    return BuiltinPair(
        " ".join(part.source for part in parts),
        " ".join(part.target for part in parts),
        tuple(alignment),
    )
