"""From a meaning to a pair: clauses joined, punctuated and spelled, with their gold alignment."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfm.data.builtin.english import english_clause
from tfm.data.builtin.function_words import AND, BUT
from tfm.data.builtin.german import german_main_clause, german_subordinate_clause
from tfm.data.builtin.meaning import Sentence
from tfm.data.builtin.phrases import Word, words

_COMMA = Word(",", ("comma",))
_GERMAN_COMMA = Word(",")  # German sets off every subordinate clause; English only a fronted one


@dataclass(frozen=True)
class BuiltinPair:
    """An English sentence, its German translation and which words translate each other.

    `alignment` holds sorted pairs (source word, target word), counted from 0 over the words and
    punctuation marks that `tfm.data.words.word_spans` finds.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


def realise(sentence: Sentence) -> BuiltinPair:
    """Put a meaning into both languages."""
    end = Word("?" if sentence.is_question else ".", ("end",))
    source = [*english_sentence(sentence), end]
    target = [*german_sentence(sentence), end]
    return BuiltinPair(spell(source), spell(target), align(source, target))


def english_sentence(sentence: Sentence) -> list[Word]:
    """Join the clauses in English: a comma after a fronted clause and before "but"."""
    main = english_clause(sentence.main, "main")
    if sentence.second is None or sentence.conjunction is None:
        return main
    conjunction = words(sentence.conjunction.english, "conjunction")
    second = english_clause(sentence.second, "second")
    if sentence.second_first:
        return [*conjunction, *second, _COMMA, *main]
    comma = [_COMMA] if sentence.conjunction is BUT else []
    return [*main, *comma, *conjunction, *second]


def german_sentence(sentence: Sentence) -> list[Word]:
    """Join the clauses in German.

    "und" and "aber" join two main clauses; every other conjunction sends the verb of its clause
    to the end, and a fronted clause is the first constituent, so that the main verb follows it.
    """
    if sentence.second is None or sentence.conjunction is None:
        return german_main_clause(sentence.main, "main")
    conjunction = words(sentence.conjunction.german, "conjunction")
    if sentence.conjunction in (AND, BUT):
        comma = [_COMMA] if sentence.conjunction is BUT else []
        second = german_main_clause(sentence.second, "second")
        return [*german_main_clause(sentence.main, "main"), *comma, *conjunction, *second]
    second = german_subordinate_clause(sentence.second, "second")
    if sentence.second_first:
        main = german_main_clause(sentence.main, "main", inverted=True)
        return [*conjunction, *second, _COMMA, *main]
    return [*german_main_clause(sentence.main, "main"), _GERMAN_COMMA, *conjunction, *second]


def spell(sentence: Iterable[Word]) -> str:
    """Write the words with a capital first letter and no space before punctuation."""
    text = ""
    for word in sentence:
        text += word.text if word.text in ",.?" or not text else " " + word.text
    return text[0].upper() + text[1:]


def align(source: list[Word], target: list[Word]) -> tuple[tuple[int, int], ...]:
    """Pair the positions of words that share a concept."""
    places: dict[str, list[int]] = {}
    for index, word in enumerate(source):
        for concept in word.concepts:
            places.setdefault(concept, []).append(index)
    return tuple(
        sorted(
            {
                (index, other)
                for other, word in enumerate(target)
                for concept in word.concepts
                for index in places.get(concept, ())
            }
        )
    )
