"""Draws of questions: with the verb first, or with a question word."""

from dataclasses import replace

from tfm.data.builtin.draw_clauses import (
    ALL_TENSES,
    draw_described,
    draw_event,
    draw_state,
    draw_subject,
)
from tfm.data.builtin.draw_phrases import Dice
from tfm.data.builtin.forms import Particle
from tfm.data.builtin.function_words import WHAT, WHEN, WHERE, WHO, WHY
from tfm.data.builtin.meaning import Clause, First, Sentence
from tfm.data.builtin.nouns import STATES
from tfm.data.builtin.verbs import BY_PEOPLE, EVENTS, VERB

_SITUATED = tuple(verb for verb in EVENTS if verb.place in ("area", "home", "seat", "furniture"))
_ABOUT_THINGS = tuple(  # verbs whose object "what" can ask for
    VERB[name]
    for name in "buy sell eat drink read write need find see bring repair put give show".split()
)
_TIMELY = tuple(verb for verb in EVENTS if not verb.stative)


def draw_question(dice: Dice) -> Sentence:
    """Draw a yes-no question, or one that asks who, what, where, when or why."""
    return Sentence(dice.pick(_ASKED)(dice), is_question=True)


def _ask_whether(dice: Dice) -> Clause:
    if dice.chance(0.2):
        return _as_question(draw_state(dice, draw_described(dice)))
    verb = dice.pick(EVENTS)
    subject = draw_subject(dice, verb)
    known = subject.agreement in ("second", "third")  # few ask what they themselves are doing
    tenses = ALL_TENSES if known else ("past", "future", "modal")
    return _as_question(draw_event(dice, verb, subject, tenses=tenses))


def _as_question(clause: Clause, question: Particle | None = None) -> Clause:
    """Turn a statement into a question, which is neither negated nor about "always"."""
    first: First = "verb" if question is None else "question"
    return replace(clause, negated=False, frequency=None, first=first, question=question)


def _ask_who(dice: Dice) -> Clause:
    if dice.chance(0.2):
        return replace(draw_state(dice, WHO, STATES), negated=False, first="subject")
    clause = draw_event(dice, dice.pick(BY_PEOPLE), WHO, adverbials=1)
    return replace(clause, negated=False, first="subject")


def _ask_what(dice: Dice) -> Clause:
    verb = dice.pick(_ABOUT_THINGS)
    clause = draw_event(dice, verb, draw_subject(dice, verb), object=WHAT, adverbials=1)
    return replace(clause, negated=False, frequency=None, first="object")


def _ask_where(dice: Dice) -> Clause:
    verb = dice.pick(_SITUATED)
    clause = draw_event(dice, verb, draw_subject(dice, verb), adverbials=1)
    return replace(_as_question(clause, WHERE), place=None)


def _ask_when(dice: Dice) -> Clause:
    verb = dice.pick(_TIMELY)
    tenses = ("present", "past", "future", "modal")
    clause = draw_event(dice, verb, draw_subject(dice, verb), tenses=tenses, adverbials=1)
    return replace(_as_question(clause, WHEN), time=None)


def _ask_why(dice: Dice) -> Clause:
    if dice.chance(0.3):
        return _as_question(draw_state(dice, draw_described(dice)), WHY)
    verb = dice.pick(EVENTS)
    return _as_question(draw_event(dice, verb, draw_subject(dice, verb), adverbials=1), WHY)


_ASKED = (_ask_whether, _ask_whether, _ask_who, _ask_what, _ask_where, _ask_when, _ask_why)
