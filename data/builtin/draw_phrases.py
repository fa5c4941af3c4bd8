"""Draws of words and phrases that make sense together.

Everything comes from `Dice`, which uses only `random.Random.random`: of all methods Python promises
to keep just that one's sequence, and the corpus must be the same on every version.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from tfm.data.builtin.forms import Adjective, Determiner, Noun, PlaceKind, Preposition, Pronoun
from tfm.data.builtin.function_words import (
    AT,
    BARE,
    BEHIND,
    HE,
    IN,
    IN_FRONT_OF,
    INTO,
    IT,
    NEXT_TO,
    NUMERALS,
    ON,
    ONTO,
    PERSONAL,
    POSSESSIVES,
    SHE,
    THE,
    THEY,
    THIS,
    TO,
    TO_NEXT_TO,
    TO_UNDER,
    UNDER,
    WE,
    YOU,
    A,
    I,
)
from tfm.data.builtin.meaning import Nominal, NounPhrase, PrepositionalPhrase
from tfm.data.builtin.nouns import ADJECTIVES, NOUNS, PEOPLE

Item = TypeVar("Item")

_FURNITURE = ("furniture",)
_ROOMS = ("garden", "kitchen", "house", "school", "city", "park", "shop")
_BUILDINGS = ("house", "school", "shop", "station")
_CALLED_ON = ("school", "park", "shop", "station", "doctor", "teacher", "neighbor", "aunt")
# Which prepositions open which kind of place, and with which nouns.
PLACES: dict[PlaceKind, tuple[tuple[Preposition, tuple[str, ...]], ...]] = {
    "area": (
        (IN, _ROOMS),
        (IN, _ROOMS),
        (AT, ("station",)),
        (IN_FRONT_OF, _BUILDINGS),
        (BEHIND, _BUILDINGS),
    ),
    "home": ((IN, ("house", "city")), (BEHIND, _BUILDINGS), (NEXT_TO, _BUILDINGS)),
    "seat": ((ON, ("chair", "bed")), (NEXT_TO, _FURNITURE)),
    "furniture": ((ON, _FURNITURE), (UNDER, _FURNITURE), (NEXT_TO, _FURNITURE)),
    "goal": ((INTO, _ROOMS), (TO, _CALLED_ON)),
    "onto": ((ONTO, _FURNITURE), (TO_UNDER, _FURNITURE), (TO_NEXT_TO, _FURNITURE)),
}


class Dice:
    """A seeded source of choices."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return true with the given probability."""
        return self._random() < probability

    def pick(self, options: Sequence[Item]) -> Item:
        """Return one of `options`, each as likely as the others."""
        return options[int(self._random() * len(options))]


@cache
def nouns_of(classes: tuple[str, ...]) -> tuple[Noun, ...]:
    """Return the nouns that `classes` names, in the order of the lexicon."""
    return tuple(noun for noun in NOUNS if noun.is_any_of(classes))


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that can describe `noun`."""
    return tuple(adjective for adjective in ADJECTIVES if noun.is_any_of(adjective.nouns))


def draw_noun_phrase(dice: Dice, noun: Noun, determiners: Sequence[Determiner]) -> NounPhrase:
    """Draw determiner, number and adjective for `noun`."""
    determiner = dice.pick(determiners)
    if noun.relation and (not noun.countable or dice.chance(0.75)):
        determiner = dice.pick(POSSESSIVES)
    elif not noun.countable and determiner in (A, *NUMERALS):
        determiner = BARE
    elif not noun.ownable and determiner in POSSESSIVES:
        determiner = THE
    plural = determiner in NUMERALS or (
        noun.countable and determiner is not A and (determiner is BARE or dice.chance(0.2))
    )
    adjective = dice.pick(adjectives_for(noun)) if dice.chance(0.25) else None
    return NounPhrase(determiner, noun, "plural" if plural else "singular", adjective)


SUBJECT_DETERMINERS = (*[THE] * 10, *POSSESSIVES, A, A, A, THIS, THIS, *NUMERALS)
OBJECT_DETERMINERS = (*[THE] * 9, *POSSESSIVES, *[A] * 7, THIS, THIS, *NUMERALS, BARE)
# Behind a preposition: no numerals, which would make the numbers of a sentence pile up.
GOVERNED_DETERMINERS = (*[THE] * 9, *POSSESSIVES, A, A, THIS)
PLACE_DETERMINERS = (*[THE] * 12, *POSSESSIVES, A, A)
PRONOUNS: tuple[Pronoun, ...] = (I, I, YOU, YOU, HE, HE, SHE, SHE, WE, WE, THEY)


def draw_place(dice: Dice, kind: PlaceKind, subject: Nominal) -> PrepositionalPhrase:
    """Draw a place other than the subject; places are singular."""
    preposition, classes = dice.pick(PLACES[kind])
    taken = subject.noun if isinstance(subject, NounPhrase) else None
    noun = dice.pick([noun for noun in nouns_of(classes) if noun is not taken])
    determiner = dice.pick(PLACE_DETERMINERS)
    if not noun.ownable and determiner in POSSESSIVES:
        determiner = THE
    adjective = dice.pick(adjectives_for(noun)) if dice.chance(0.15) else None
    return PrepositionalPhrase(preposition, NounPhrase(determiner, noun, "singular", adjective))


def draw_other(
    dice: Dice,
    subject: Nominal,
    other: Nominal | None,
    classes: tuple[str, ...],
    determiners: Sequence[Determiner],
) -> Nominal:
    """Draw somebody or something else than `subject` and `other`, now and then as a pronoun."""
    if any(kind in classes for kind in PEOPLE) and dice.chance(0.2):
        pronoun = dice.pick(PRONOUNS)
        if not same_people(subject, pronoun):
            return pronoun
    taken = [phrase.noun for phrase in (subject, other) if isinstance(phrase, NounPhrase)]
    noun = dice.pick([noun for noun in nouns_of(classes) if noun not in taken])
    return draw_noun_phrase(dice, noun, determiners)


def same_people(subject: Nominal, pronoun: Pronoun) -> bool:
    """Say whether the pronoun could mean the subject itself and would have to be reflexive."""
    overlapping = (I, WE)
    return subject is pronoun or (subject in overlapping and pronoun in overlapping)


def it_or_they(thing: NounPhrase) -> Pronoun:
    """Return the pronoun for a thing: "it" in the gender of the German noun, or "they"."""
    return THEY if thing.number == "plural" else IT[thing.noun.gender]


def refer_to(nominal: Nominal) -> Pronoun | None:
    """Return the pronoun that takes up `nominal`, with the gender of the German noun.

    None for the girl and the child, where English "she" or "he" and German "es" part ways.
    """
    if isinstance(nominal, Pronoun):
        return nominal if nominal in PERSONAL else None
    if nominal.number == "plural" or nominal.noun.kind not in PEOPLE:
        return it_or_they(nominal)
    return {"masculine": HE, "feminine": SHE, "neuter": None}[nominal.noun.gender]
