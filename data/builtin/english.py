"""English clauses: subject, verb, object, manner, place, time, with do-support and inversion."""

from typing import NamedTuple

from tfm.data.builtin.auxiliaries import BE, CAN
from tfm.data.builtin.forms import Conjugation, Pronoun, Time
from tfm.data.builtin.meaning import Clause
from tfm.data.builtin.phrases import Word, english_nominal, english_prepositional, words

_BE_PRESENT = Conjugation("am", "are", "is", "are")
_BE_PAST = Conjugation("was", "were", "was", "were")


class VerbGroup(NamedTuple):
    """The English verb: the operator moves before the subject in questions and carries "not"."""

    operator: list[Word]
    rest: list[Word]


def english_clause(clause: Clause, role: str) -> list[Word]:
    """Put a clause into English; main and subordinate clauses have the same order."""
    operator, rest = verb_group(clause, role)
    subject = english_nominal(clause.subject, role + ".subject", subject=True)
    frequency = words(clause.frequency.english, role + ".frequency") if clause.frequency else []
    tail = [*frequency, *rest, *complements(clause, role)]
    negation = [Word("not", (role + ".negation",))] if splits_not(clause) else []
    time = english_time(clause.time, role)
    match clause.first:
        case "subject":
            return [*subject, *operator, *negation, *tail, *time]
        case "time":
            return [*time, *subject, *operator, *negation, *tail]
        case "verb":
            return [*operator, *subject, *negation, *tail, *time]
        case "question":
            assert clause.question is not None
            asked = words(clause.question.english, role + ".question")
            return [*asked, *operator, *subject, *negation, *tail, *time]
        case "object":
            assert clause.object is not None
            asked = english_nominal(clause.object, role + ".object")
            return [*asked, *operator, *subject, *negation, *tail, *time]


def splits_not(clause: Clause) -> bool:
    """Say whether "not" is a word of its own, as everywhere but in "cannot"."""
    return clause.negated and clause.modal is not CAN


def verb_group(clause: Clause, role: str) -> VerbGroup:
    """Choose the operator (modal, will, be, do) and the rest of the verb.

    A simple tense has no operator until a question or a negation asks for one: then "do" takes
    over tense and agreement and the verb stands in its base form.
    """
    verb, agreement = clause.verb, clause.subject.agreement
    meaning, modality = role + ".verb", role + ".modal"
    particle = words(verb.particle, meaning)
    base = [Word(verb.base, (meaning,)), *particle]
    if clause.modal is not None and not clause.modal.do_support:
        if clause.modal is CAN and clause.negated:
            return VerbGroup([Word("cannot", (modality, role + ".negation"))], base)
        return VerbGroup(words(clause.modal.english, modality), base)
    if clause.modal is not None:
        wants = clause.modal.english_third if agreement == "third" else clause.modal.english
        operator, wants = _do_support(clause, role, wants, clause.modal.english, modality)
        return VerbGroup(operator, [*words(wants, modality), Word("to"), *base])
    if clause.tense == "future":
        return VerbGroup(words("will", modality), base)
    if verb is BE:
        forms = _BE_PAST if clause.tense == "past" else _BE_PRESENT
        return VerbGroup(words(forms.form(agreement), meaning), [])
    if clause.tense == "progressive":
        progressive = [Word(verb.progressive, (meaning,)), *particle]
        return VerbGroup(words(_BE_PRESENT.form(agreement), meaning), progressive)
    finite = verb.third if agreement == "third" else verb.base
    finite = verb.past if clause.tense == "past" else finite
    operator, finite = _do_support(clause, role, finite, verb.base, meaning)
    return VerbGroup(operator, [Word(finite, (meaning,)), *particle])


def _do_support(
    clause: Clause, role: str, finite: str, base: str, concept: str
) -> tuple[list[Word], str]:
    """Return the operator and the verb form: ([], "sleeps") or (["does"], "sleep").

    Before "not", "do" belongs to the negation (do not = nicht); in a question, to the verb.
    """
    if not clause.negated and clause.first in ("subject", "time"):
        return [], finite
    third = clause.subject.agreement == "third"
    do = "did" if clause.tense == "past" else "does" if third else "do"
    return [Word(do, (role + ".negation" if clause.negated else concept,))], base


def complements(clause: Clause, role: str) -> list[Word]:
    """Return what follows the verb: predicate, objects, and the adverbials but time."""
    phrases = objects(clause, role)
    if clause.predicate is not None:
        if clause.degree is not None:
            phrases += words(clause.degree.english, role + ".degree")
        phrases += words(clause.predicate.english, role + ".predicate")
    place = english_prepositional(clause.place, role + ".place") if clause.place else []
    if clause.verb.place_needed:  # a goal belongs to the verb: runs into the park quickly
        phrases += place
        place = []
    if clause.companion is not None:
        phrases += english_prepositional(clause.companion, role + ".companion")
    if clause.beneficiary is not None:
        phrases += english_prepositional(clause.beneficiary, role + ".beneficiary")
    if clause.manner is not None:
        phrases += words(clause.manner.english, role + ".manner")
    return phrases + place


def objects(clause: Clause, role: str) -> list[Word]:
    """Return the objects: "gives the child an apple", but "gives it to the child"."""
    if clause.object is None or clause.first == "object":
        asked_for = []
    else:
        asked_for = english_nominal(clause.object, role + ".object")
    if clause.verb.preposition is not None:
        asked_for = words(clause.verb.preposition.english, role + ".preposition") + asked_for
    if clause.recipient is None:
        return asked_for
    recipient = english_nominal(clause.recipient, role + ".recipient")
    if clause.object is not None and isinstance(clause.object, Pronoun):
        return [*asked_for, Word("to"), *recipient]
    return [*recipient, *asked_for]


def english_time(time: Time | None, role: str) -> list[Word]:
    """Return the adverbial of time, part by part."""
    if time is None:
        return []
    return [
        word
        for index, (english, _) in enumerate(time.parts)
        for word in words(english, f"{role}.time{index}")
    ]
