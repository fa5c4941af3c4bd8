"""German clauses: the verb bracket, the middle field between its two halves, and the first place.

A main clause has the finite verb second (first in a yes-no question), a subordinate clause has it
last; the other half of the verb (prefix, participle, infinitive) always closes the middle field.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tfm.data.builtin.auxiliaries import BE, HAVE, WILL
from tfm.data.builtin.forms import Agreement, Case, Pronoun, Time, Verb
from tfm.data.builtin.function_words import BARE, A
from tfm.data.builtin.meaning import Clause, Nominal, NounPhrase
from tfm.data.builtin.phrases import Word, german_nominal, german_prepositional, words


class Bracket(NamedTuple):
    """The two halves of the verb: `kommt ... an`, `hat ... gekauft`, `will ... schlafen`."""

    finite: Word
    right: list[Word]


def german_main_clause(clause: Clause, role: str, *, inverted: bool = False) -> list[Word]:
    """Put a main clause into German: one constituent, the finite verb, the middle field.

    `inverted` says that a subordinate clause already fills the first place.
    """
    finite, right = bracket(clause, role)
    first = [] if inverted else first_place(clause, role)
    subject_first = clause.first == "subject" and not inverted
    subject = [] if subject_first else german_subject(clause, role)
    return [*first, finite, *subject, *middle_field(clause, role), *right]


def german_subordinate_clause(clause: Clause, role: str) -> list[Word]:
    """Put a subordinate clause into German: the finite verb closes it.

    A separable prefix, which waits there in a main clause, joins it again: "weil er ankommt".
    """
    finite, right = bracket(clause, role)
    if clause.verb.prefix and right[0].text == clause.verb.prefix:
        end = [Word(right[0].text + finite.text, finite.concepts)]
    else:
        end = [*right, finite]
    return [*german_subject(clause, role), *middle_field(clause, role), *end]


def german_subject(clause: Clause, role: str) -> list[Word]:
    """Return the subject, in the nominative."""
    return german_nominal(clause.subject, role + ".subject", "nominative")


def first_place(clause: Clause, role: str) -> list[Word]:
    """Return what stands before the finite verb; a yes-no question leaves the place empty."""
    match clause.first:
        case "subject":
            return german_subject(clause, role)
        case "time":
            return german_time(clause.time, role)
        case "verb":
            return []
        case "question":
            assert clause.question is not None
            return words(clause.question.german, role + ".question")
        case "object":
            assert clause.object is not None
            return german_nominal(clause.object, role + ".object", clause.verb.object_case)


def bracket(clause: Clause, role: str) -> Bracket:
    """Conjugate the verb.

    The English past is told in the perfect with haben or sein, but sein and haben themselves in
    the preterite; modals and the future put the infinitive at the end.
    """
    verb, agreement = clause.verb, clause.subject.agreement
    meaning = (role + ".verb",)
    if clause.modal is not None or clause.tense == "future":
        auxiliary = WILL if clause.modal is None else clause.modal.german
        modality = Word(auxiliary.form(agreement), (role + ".modal",))
        return Bracket(modality, [Word(verb.infinitive, meaning)])
    if clause.tense == "past" and verb.preterite is None:
        finite = perfect_auxiliary(verb, agreement)
        return Bracket(Word(finite, meaning), [Word(verb.participle, meaning)])
    conjugation = verb.present
    if clause.tense == "past" and verb.preterite is not None:
        conjugation = verb.preterite
    finite = conjugation.form(agreement)
    return Bracket(Word(finite, meaning), words(verb.prefix, role + ".verb"))


def perfect_auxiliary(verb: Verb, agreement: Agreement) -> str:
    """Return the form of haben, or of sein for verbs of motion and change."""
    return (BE if verb.auxiliary == "sein" else HAVE).present.form(agreement)


def middle_field(clause: Clause, role: str) -> list[Word]:
    """Order what stands between the halves of the verb, the subject left out.

    Pronouns, time, recipient, frequency, what is known, nicht, company, manner, place, what is
    new, and last what belongs most closely to the verb: prepositional object, predicate, goal.
    """
    field = [*_pronouns(clause, role)]
    if clause.first != "time":
        field += german_time(clause.time, role)
    if isinstance(clause.recipient, NounPhrase):
        field += german_nominal(clause.recipient, role + ".recipient", "dative")
    if clause.frequency is not None:
        field += words(clause.frequency.german, role + ".frequency")
    target = _bare_object(clause)
    if target is not None and target.definite:
        field += _german_object(clause, target, role)
    if clause.negated and not absorbs_negation(clause):
        field += [Word("nicht", (role + ".negation",))]
    field += _adverbials(clause, role)
    if target is not None and not target.definite:
        field += _german_object(clause, target, role)
    return [*field, *_closest_to_verb(clause, role)]


def absorbs_negation(clause: Clause) -> bool:
    """Say whether nicht melts into an indefinite object: "kein Buch", "keine Milch"."""
    target = _bare_object(clause)
    return clause.negated and target is not None and target.determiner in (A, BARE)


def _bare_object(clause: Clause) -> NounPhrase | None:
    governed = clause.verb.preposition is not None or clause.first == "object"
    return clause.object if isinstance(clause.object, NounPhrase) and not governed else None


def _german_object(clause: Clause, target: NounPhrase, role: str) -> list[Word]:
    negation = role + ".negation" if absorbs_negation(clause) else None
    return german_nominal(target, role + ".object", clause.verb.object_case, negation=negation)


def _pronouns(clause: Clause, role: str) -> Iterator[Word]:
    """Yield the pronoun objects, which come first: the accusative before the dative."""
    governed = clause.verb.preposition is not None or clause.first == "object"
    cases: tuple[tuple[Nominal | None, str, Case], ...] = (
        (None if governed else clause.object, ".object", clause.verb.object_case),
        (clause.recipient, ".recipient", "dative"),
    )
    for nominal, name, case in cases:
        if isinstance(nominal, Pronoun):
            yield from german_nominal(nominal, role + name, case)


def _adverbials(clause: Clause, role: str) -> list[Word]:
    """Return company, manner and place, in this order; time has gone before."""
    field = []
    if clause.companion is not None:
        field += german_prepositional(clause.companion, role + ".companion")
    if clause.beneficiary is not None:
        field += german_prepositional(clause.beneficiary, role + ".beneficiary")
    if clause.manner is not None:
        field += words(clause.manner.german, role + ".manner")
    if clause.place is not None and not clause.verb.place_needed:
        field += german_prepositional(clause.place, role + ".place")
    return field


def _closest_to_verb(clause: Clause, role: str) -> list[Word]:
    """Return prepositional object, predicate and needed place: "wartet ... auf den Zug"."""
    field = []
    if clause.verb.preposition is not None and clause.object is not None:
        field += words(clause.verb.preposition.german, role + ".preposition")
        case = clause.verb.preposition.case
        field += german_nominal(clause.object, role + ".object", case)
    if clause.predicate is not None:
        if clause.degree is not None:
            field += words(clause.degree.german, role + ".degree")
        field += words(clause.predicate.german, role + ".predicate")
    if clause.place is not None and clause.verb.place_needed:
        field += german_prepositional(clause.place, role + ".place")
    return field


def german_time(time: Time | None, role: str) -> list[Word]:
    """Return the adverbial of time, part by part."""
    if time is None:
        return []
    return [
        word
        for index, (_, german) in enumerate(time.parts)
        for word in words(german, f"{role}.time{index}")
    ]
