"""Noun phrases and prepositional phrases in English and German: articles, endings, case."""

from typing import Literal, NamedTuple

from tfm.data.builtin.forms import Case, Determiner, Noun, Number, Pronoun
from tfm.data.builtin.function_words import BARE, CONTRACTIONS, NO, THE, A
from tfm.data.builtin.meaning import Nominal, NounPhrase, PrepositionalPhrase

Slot = Literal["masculine", "feminine", "neuter", "plural"]

_CASES: tuple[Case, ...] = ("nominative", "accusative", "dative")
# The strong endings: of dieser, and of an adjective that nothing before it has declined.
_STRONG: dict[Slot, tuple[str, str, str]] = {
    "masculine": ("er", "en", "em"),
    "feminine": ("e", "e", "er"),
    "neuter": ("es", "es", "em"),
    "plural": ("e", "e", "en"),
}
_DEFINITE_ARTICLE: dict[Slot, tuple[str, str, str]] = {
    "masculine": ("der", "den", "dem"),
    "feminine": ("die", "die", "der"),
    "neuter": ("das", "das", "dem"),
    "plural": ("die", "die", "den"),
}


class Word(NamedTuple):
    """A word of a sentence and the concepts it expresses.

    Words of the two languages that share a concept translate each other: this is the gold
    alignment. A function word without a counterpart has no concept.
    """

    text: str
    concepts: tuple[str, ...] = ()


def words(text: str, concept: str) -> list[Word]:
    """Return the words of `text`, all expressing one concept."""
    return [Word(part, (concept,)) for part in text.split()]


def english_nominal(nominal: Nominal, role: str, *, subject: bool = False) -> list[Word]:
    """Put a noun phrase or pronoun into English; only pronouns tell subject from object."""
    if isinstance(nominal, Pronoun):
        form = nominal.english if subject else nominal.english_object
        return [Word(form, (role + ".noun",))]
    singular = nominal.number == "singular"
    noun, determiner = nominal.noun, nominal.determiner
    phrase = [Word(noun.english if singular else noun.english_plural, (role + ".noun",))]
    if nominal.adjective is not None:
        phrase.insert(0, Word(nominal.adjective.english, (role + ".adjective",)))
    article = determiner.english if singular else determiner.english_plural
    if determiner is A:
        article = indefinite_article(phrase[0].text)
    if article:
        phrase.insert(0, Word(article, (role + ".determiner",)))
    return phrase


def indefinite_article(following: str) -> str:
    """Return "an" before a vowel, "a" otherwise (the lexicon has no "hour" or "unit")."""
    return "an" if following[0] in "aeiou" else "a"


def german_nominal(
    nominal: Nominal, role: str, case: Case, *, negation: str | None = None
) -> list[Word]:
    """Put a noun phrase or pronoun into German, in the given case.

    `negation` is the concept of a negation that an indefinite phrase absorbs: nicht + ein = kein.
    """
    if isinstance(nominal, Pronoun):
        return [Word(pronoun_form(nominal, case), (role + ".noun",))]
    determiner, noun = nominal.determiner, nominal.noun
    concepts: tuple[str, ...] = (role + ".determiner",)
    if negation is not None:
        determiner, concepts = NO, (role + ".determiner", negation)
    slot: Slot = noun.gender if nominal.number == "singular" else "plural"
    phrase = []
    if determiner is not BARE:
        phrase.append(Word(determiner_form(determiner, slot, case), concepts))
    if nominal.adjective is not None:
        ending = adjective_ending(determiner, slot, case)
        phrase.append(Word(nominal.adjective.german_stem + ending, (role + ".adjective",)))
    phrase.append(Word(noun_form(noun, nominal.number, case), (role + ".noun",)))
    return phrase


def pronoun_form(pronoun: Pronoun, case: Case) -> str:
    """Return ich, mich, mir; du, dich, dir; er, ihn, ihm ..."""
    return (pronoun.nominative, pronoun.accusative, pronoun.dative)[_CASES.index(case)]


def noun_form(noun: Noun, number: Number, case: Case) -> str:
    """Decline a noun: weak nouns outside the nominative, -n in the dative plural."""
    if number == "singular":
        return noun.german if case == "nominative" else noun.german_oblique
    return noun.german_dative_plural if case == "dative" else noun.german_plural


def determiner_form(determiner: Determiner, slot: Slot, case: Case) -> str:
    """Decline a determiner: der, dieser, the ein words; numerals stay as they are."""
    if determiner.paradigm == "der":
        return _DEFINITE_ARTICLE[slot][_CASES.index(case)]
    return determiner.german + determiner_ending(determiner, slot, case)


def determiner_ending(determiner: Determiner, slot: Slot, case: Case) -> str:
    """Return the strong ending, which numerals never have and ein words lack in three places."""
    if determiner.paradigm == "none":
        return ""
    bare = slot == "masculine" and case == "nominative" or slot == "neuter" and case != "dative"
    if determiner.paradigm == "ein" and bare:
        return ""
    return _STRONG[slot][_CASES.index(case)]


def adjective_ending(determiner: Determiner, slot: Slot, case: Case) -> str:
    """Return strong, weak or mixed endings by the one rule behind them.

    If the determiner shows no ending the adjective shows the strong one (ein alter Mann, frisches
    Brot, zwei alte Männer). Otherwise it is weak: -e in the nominative singular and wherever the
    accusative looks the same, -en elsewhere (der alte Mann, mit einem alten Mann).
    """
    if not determiner_ending(determiner, slot, case):
        return _STRONG[slot][_CASES.index(case)]
    accusative_alike = case == "accusative" and slot in ("feminine", "neuter")
    weak_e = slot != "plural" and (case == "nominative" or accusative_alike)
    return "e" if weak_e else "en"


def english_prepositional(phrase: PrepositionalPhrase, role: str) -> list[Word]:
    """Put a prepositional phrase into English."""
    preposition = words(phrase.preposition.english, role + ".preposition")
    return preposition + english_nominal(phrase.complement, role)


def german_prepositional(phrase: PrepositionalPhrase, role: str) -> list[Word]:
    """Put a prepositional phrase into German: its case, and im, ins, am, zum, zur."""
    preposition, complement = phrase.preposition, phrase.complement
    rest = german_nominal(complement, role, preposition.case)
    first = Word(preposition.german, (role + ".preposition",))
    if isinstance(complement, NounPhrase) and complement.determiner is THE:
        contracted = CONTRACTIONS.get((first.text, rest[0].text))
        if contracted:
            return [Word(contracted, first.concepts + rest[0].concepts), *rest[1:]]
    return [first, *rest]
