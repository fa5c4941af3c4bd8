"""Draws of whole sentences, in the proportions of the corpus."""

from tfm.data.builtin.draw_clauses import (
    draw_described,
    draw_event,
    draw_state,
    draw_subject,
)
from tfm.data.builtin.draw_compounds import (
    draw_mood,
    draw_report,
    draw_thing_in_use,
    draw_two_events,
    draw_why_this_thing,
)
from tfm.data.builtin.draw_phrases import Dice
from tfm.data.builtin.draw_questions import draw_question
from tfm.data.builtin.meaning import Sentence
from tfm.data.builtin.verbs import EVENTS


def draw_sentence(dice: Dice) -> Sentence:
    """Draw the meaning of one sentence."""
    return dice.pick(_KINDS)(dice)


def draw_statement(dice: Dice) -> Sentence:
    """Draw one main clause with an event."""
    verb = dice.pick(EVENTS)
    return Sentence(draw_event(dice, verb, draw_subject(dice, verb)))


def draw_description(dice: Dice) -> Sentence:
    """Draw one main clause with "be"."""
    return Sentence(draw_state(dice, draw_described(dice)))


_KINDS = (
    *[draw_statement] * 10,
    *[draw_description] * 2,
    *[draw_question] * 4,
    *[draw_report] * 2,
    *[draw_mood] * 2,
    *[draw_why_this_thing] * 2,
    draw_thing_in_use,
    draw_two_events,
)
