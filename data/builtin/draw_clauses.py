"""Draws of clauses: a verb, what fits its frame, a tense, and a few adverbials that agree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfm.data.builtin.auxiliaries import BE, HAVE, MODALS
from tfm.data.builtin.draw_phrases import (
    GOVERNED_DETERMINERS,
    OBJECT_DETERMINERS,
    PRONOUNS,
    SUBJECT_DETERMINERS,
    Dice,
    adjectives_for,
    draw_noun_phrase,
    draw_other,
    draw_place,
    nouns_of,
)
from tfm.data.builtin.forms import Adjective, Modal, Particle, Pronoun, Tense, Time, Verb
from tfm.data.builtin.function_words import (
    FOR,
    FREQUENCIES,
    MANNERS,
    NUMERALS,
    TIMES,
    VERY,
    WITH,
)
from tfm.data.builtin.meaning import Clause, Nominal, NounPhrase, PrepositionalPhrase
from tfm.data.builtin.nouns import ADJECTIVE, LIVING, NOUNS, PEOPLE, STATES
from tfm.data.builtin.transitive_verbs import NEED

_DESCRIBED = tuple(noun for noun in NOUNS if noun.kind != "transport")

ALL_TENSES = ("present", "present", "progressive", "past", "past", "future", "modal")
_MOODS = (*STATES, ADJECTIVE["friendly"])
_CHARACTER = (*_MOODS, ADJECTIVE["old"], ADJECTIVE["young"])
_TIMES = {
    name: tuple(time for time in TIMES if name in time.tenses)
    for name in ("present", "progressive", "past", "future", "modal", "state")
}


@dataclass(frozen=True, slots=True)
class Moment:
    """The tense of a clause, its modal verb, and the key to the times that go with them."""

    tense: Tense
    modal: Modal | None
    times: str


@dataclass(slots=True)
class Budget:
    """How many adverbials a clause may still take, so that sentences stay short."""

    left: int

    def spend(self, dice: Dice, probability: float) -> bool:
        """Return true, and pay, with the given probability while something is left."""
        if self.left > 0 and dice.chance(probability):
            self.left -= 1
            return True
        return False


def draw_subject(dice: Dice, verb: Verb) -> Nominal:
    """Draw a subject that fits the verb: often a pronoun, where people can be meant."""
    if "adult" in verb.subjects and dice.chance(0.28):
        return dice.pick(PRONOUNS)
    noun = dice.pick(nouns_of(verb.subjects))
    return draw_noun_phrase(dice, noun, SUBJECT_DETERMINERS)


def fits(subject: Nominal, verb: Verb) -> bool:
    """Say whether `subject` can do what `verb` says; pronouns mean people."""
    if isinstance(subject, NounPhrase):
        return subject.noun.is_any_of(verb.subjects)
    return "adult" in verb.subjects


def draw_moment(dice: Dice, verb: Verb, subject: Nominal, tenses: Sequence[str]) -> Moment:
    """Draw a tense that verb and subject allow; the present is always possible."""
    lasting = verb.timeless
    lifeless = isinstance(subject, NounPhrase) and subject.noun.kind not in LIVING
    match dice.pick(tenses):
        case "modal" if not (lasting or lifeless or verb in (NEED, HAVE)):
            return Moment("present", dice.pick(MODALS), "modal")
        case "past" if not verb.past_looks_present or subject.agreement == "third":
            return Moment("past", None, "past")
        case "future" if not lasting:
            return Moment("future", None, "future")
        case "progressive" if not verb.stative:
            return Moment("progressive", None, "progressive")
    return Moment("present", None, "state" if verb.stative else "present")


def draw_event(
    dice: Dice,
    verb: Verb,
    subject: Nominal,
    *,
    object: Nominal | None = None,
    tenses: Sequence[str] = ALL_TENSES,
    adverbials: int = 2,
) -> Clause:
    """Draw a clause around `verb` and `subject`, and around `object` where one is given."""
    moment = draw_moment(dice, verb, subject, tenses)
    if object is None and verb.objects:
        object = draw_object(dice, verb, subject)
    recipient = None
    if verb.recipient:
        recipient = draw_other(dice, subject, object, PEOPLE, GOVERNED_DETERMINERS)
    negated = _can_be_negated(moment, object) and dice.chance(0.15)
    budget = Budget(adverbials)
    busy = negated and object is not None  # a negated object is enough to say
    time = draw_time(dice, budget, verb, moment)
    companion = draw_companion(dice, budget, verb, subject)
    mannered = verb.manner and not (busy or companion) and budget.spend(dice, 0.2)
    return Clause(
        subject=subject,
        verb=verb,
        tense=moment.tense,
        modal=moment.modal,
        negated=negated,
        object=object,
        recipient=recipient,
        time=time,
        frequency=None if negated or time else draw_frequency(dice, budget, verb, moment),
        companion=companion,
        beneficiary=None if busy else draw_beneficiary(dice, budget, verb, (subject, object)),
        manner=dice.pick(MANNERS) if mannered else None,
        place=draw_place(dice, verb.place, subject) if _takes_place(dice, budget, verb) else None,
        first="time" if time and dice.chance(0.45) else "subject",
    )


def draw_object(dice: Dice, verb: Verb, subject: Nominal) -> Nominal:
    """Draw an object the verb selects for; a governed one is never counted."""
    determiners = OBJECT_DETERMINERS
    if verb.preposition is not None or verb.object_case == "dative":
        determiners = GOVERNED_DETERMINERS
    return draw_other(dice, subject, None, verb.objects, determiners)


def _can_be_negated(moment: Moment, object: Nominal | None) -> bool:
    """Keep out "must not" (darf nicht) and negated numbers (not two, but three?)."""
    counted = isinstance(object, NounPhrase) and object.determiner in NUMERALS
    return not counted and (moment.modal is None or moment.modal.negatable)


def _takes_place(dice: Dice, budget: Budget, verb: Verb) -> bool:
    return verb.place_needed or (verb.place != "nowhere" and budget.spend(dice, 0.3))


def draw_time(dice: Dice, budget: Budget, verb: Verb, moment: Moment) -> Time | None:
    """Draw an adverbial of time that goes with the tense."""
    if verb.timeless or not budget.spend(dice, 0.4):
        return None
    return dice.pick(_TIMES[moment.times])


def draw_frequency(dice: Dice, budget: Budget, verb: Verb, moment: Moment) -> Particle | None:
    """Draw "always", "often" or "never" for what happens again and again."""
    habitual = moment.times == "present" and not verb.place_needed
    return dice.pick(FREQUENCIES) if habitual and budget.spend(dice, 0.25) else None


def draw_companion(
    dice: Dice, budget: Budget, verb: Verb, subject: Nominal
) -> PrepositionalPhrase | None:
    """Draw "with the girl" for what can be done together."""
    if not verb.companions or not budget.spend(dice, 0.25):
        return None
    other = draw_other(dice, subject, None, verb.companions, GOVERNED_DETERMINERS)
    return PrepositionalPhrase(WITH, other)


def draw_beneficiary(
    dice: Dice, budget: Budget, verb: Verb, taken: tuple[Nominal, Nominal | None]
) -> PrepositionalPhrase | None:
    """Draw "for his sister" for what can be done for somebody; not beside a pronoun object."""
    subject, object = taken
    if not verb.beneficiary or isinstance(object, Pronoun) or not budget.spend(dice, 0.25):
        return None
    return PrepositionalPhrase(FOR, draw_other(dice, subject, None, PEOPLE, GOVERNED_DETERMINERS))


def draw_state(
    dice: Dice,
    subject: Nominal,
    predicates: Sequence[Adjective] | None = None,
    *,
    tenses: Sequence[Tense] = ("present", "present", "past", "future"),
) -> Clause:
    """Draw a clause with "be": "the dog is very tired"."""
    if predicates is None:
        predicates = _CHARACTER
        if isinstance(subject, NounPhrase):
            predicates = adjectives_for(subject.noun)
    predicate = dice.pick(predicates)
    passing = predicate in _MOODS  # only a mood comes today and goes tomorrow
    tense = dice.pick(tenses)
    if tense == "future" and not passing:
        tense = "present"
    negated = dice.chance(0.15)
    times = "progressive" if tense == "present" else tense
    time = dice.pick(_TIMES[times]) if passing and dice.chance(0.3) else None
    often = passing and not negated and time is None and tense == "present" and dice.chance(0.2)
    plain = negated or often or predicate is ADJECTIVE["red"]
    return Clause(
        subject=subject,
        verb=BE,
        tense=tense,
        negated=negated,
        predicate=predicate,
        degree=VERY if not plain and dice.chance(0.25) else None,
        time=time,
        frequency=dice.pick(FREQUENCIES) if often else None,
        first="time" if time and dice.chance(0.45) else "subject",
    )


def draw_described(dice: Dice) -> Nominal:
    """Draw somebody or something to say how they are."""
    if dice.chance(0.25):
        return dice.pick(PRONOUNS)
    phrase = draw_noun_phrase(dice, dice.pick(_DESCRIBED), SUBJECT_DETERMINERS)
    return replace(phrase, adjective=None)  # not "the old man is old"
