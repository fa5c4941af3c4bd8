"""Draws of two clauses that belong together: reports, moods, what becomes of a thing."""

from collections.abc import Sequence
from dataclasses import replace

from tfm.data.builtin.draw_clauses import (
    ALL_TENSES,
    draw_described,
    draw_event,
    draw_state,
    draw_subject,
    fits,
)
from tfm.data.builtin.draw_phrases import (
    OBJECT_DETERMINERS,
    Dice,
    draw_noun_phrase,
    it_or_they,
    nouns_of,
    refer_to,
)
from tfm.data.builtin.forms import Adjective, Particle, Pronoun, Tense, Verb
from tfm.data.builtin.function_words import ALTHOUGH, AND, BECAUSE, BUT, IF, IT, THAT
from tfm.data.builtin.intransitive_verbs import INTRANSITIVE, REPORTING
from tfm.data.builtin.meaning import Clause, Nominal, NounPhrase, Sentence
from tfm.data.builtin.nouns import QUALITIES, STATES
from tfm.data.builtin.transitive_verbs import LOVE, NEED
from tfm.data.builtin.verbs import BY_PEOPLE, EVENTS, VERB

_THINGS = ("text", "thing", "vehicle", "furniture", "food", "drink")
# What a mood makes people do; none of these verbs has an object that "it" could mean instead.
_MOODY = (
    *(verb for verb in INTRANSITIVE if not verb.stative),
    *(VERB[name] for name in ("eat", "drink", "call", "visit", "invite", "speak", "help", "read")),
)
# What people do with a thing because they need it, or because of how it is ...
_CHOOSING = tuple(VERB[name] for name in ("buy", "look", "repair", "bring", "love", "need"))
# ... and how they part with it, although they need it.
_PARTING = tuple(VERB[name] for name in ("sell", "give", "send", "show"))
# How people come by a thing, and what they do with it then.
_GETTING = tuple(VERB[name] for name in ("buy", "find", "see", "have", "bring"))
_USING = tuple(
    VERB[name]
    for name in ("eat", "drink", "read", "sell", "give", "show", "send", "put", "repair", "open")
)


def draw_report(dice: Dice) -> Sentence:
    """Draw a clause that somebody says, believes or knows: "that", "dass"."""
    verb = dice.pick(REPORTING)
    teller = draw_subject(dice, verb)
    main = draw_event(dice, verb, teller, tenses=("present",), adverbials=0)
    same = refer_to(teller) if dice.chance(0.3) else None
    if dice.chance(0.3):
        told = draw_state(dice, same or draw_described(dice))
    else:
        reported = dice.pick(BY_PEOPLE if same else EVENTS)
        told = draw_event(dice, reported, same or draw_subject(dice, reported), adverbials=1)
    return Sentence(main, THAT, replace(told, first="subject"))


def draw_mood(dice: Dice) -> Sentence:
    """Draw what somebody does and the mood behind it: "because he is tired"."""
    conjunction = dice.pick((BECAUSE, BECAUSE, ALTHOUGH, IF))
    verb = dice.pick(_MOODY)
    someone = _plain(draw_subject(dice, verb))
    same = refer_to(someone)
    moods = _moods_of(someone)
    if same is None or not moods:
        return draw_mood(dice)
    fronted = dice.chance(0.45)
    doer, feeler = (same, someone) if fronted else (someone, same)
    doing = draw_event(dice, verb, doer, tenses=_tenses_before(conjunction), adverbials=1)
    if same in IT.values():
        doing = replace(doing, companion=None)  # the cat it plays with could be "it" as well
    mood = draw_state(dice, feeler, moods, tenses=_tense_after(doing))
    return _joined(doing, conjunction, mood, fronted)


def _plain(nominal: Nominal) -> Nominal:
    """Drop the adjective: not "the tired man sleeps because he is tired"."""
    return replace(nominal, adjective=None) if isinstance(nominal, NounPhrase) else nominal


def _moods_of(someone: Nominal) -> Sequence[Adjective]:
    """Return the moods somebody can be in; an animal is not called happy, a letter has none."""
    if isinstance(someone, Pronoun):
        return STATES
    return [mood for mood in STATES if someone.noun.is_any_of(mood.nouns)]


def _tenses_before(conjunction: Particle) -> Sequence[str]:
    """Return the tenses of a main clause; a condition leads to the present or the future."""
    return ("present", "future", "modal") if conjunction is IF else ALL_TENSES


def _tense_after(main: Clause) -> tuple[Tense]:
    """Return the tense of a subordinate clause: past with past, otherwise present."""
    return ("past",) if main.tense == "past" else ("present",)


def _joined(main: Clause, conjunction: Particle, second: Clause, fronted: bool) -> Sentence:
    """Join two clauses; only a main clause that comes first may front its time."""
    second = replace(second, first="subject", time=None)
    if fronted or conjunction is IF:
        main = replace(main, first="subject", time=None)
    return Sentence(main, conjunction, second, second_first=fronted)


def draw_why_this_thing(dice: Dice) -> Sentence:
    """Draw what people do with a thing and why: "because it is cheap", "because he needs it"."""
    conjunction = dice.pick((BECAUSE, BECAUSE, ALTHOUGH))
    verb = dice.pick(_PARTING if conjunction is ALTHOUGH else (*_CHOOSING, VERB["sell"]))
    someone, thing = draw_subject(dice, verb), _draw_thing(dice, verb)
    same, it = refer_to(someone), it_or_they(thing)
    main = draw_event(dice, verb, someone, object=thing, adverbials=1)
    main = replace(main, place=None)  # "it" must not be able to mean the garden
    if not thing.definite:
        main = replace(main, negated=False)  # what is not there is not cheap either
    tenses = _tense_after(main)
    wishes = [wish for wish in (NEED, LOVE) if thing.noun.is_any_of(wish.objects)]
    if same and wishes and verb not in (NEED, LOVE, VERB["sell"]) and dice.chance(0.5):
        why = draw_event(dice, dice.pick(wishes), same, object=it, tenses=tenses, adverbials=0)
        why = replace(why, negated=False)
    else:
        qualities = [quality for quality in QUALITIES if thing.noun.is_any_of(quality.nouns)]
        why = draw_state(dice, it, qualities, tenses=tenses)
        main = replace(main, object=_plain(thing))
    return _joined(main, conjunction, why, fronted=False)


def _draw_thing(dice: Dice, verb: Verb) -> NounPhrase:
    noun = dice.pick([noun for noun in nouns_of(verb.objects) if noun.kind in _THINGS])
    return draw_noun_phrase(dice, noun, OBJECT_DETERMINERS)


def draw_thing_in_use(dice: Dice) -> Sentence:
    """Draw "the man finds a key and he sells it" or "if the man finds a key, he sells it"."""
    getting = dice.pick(_GETTING)
    someone, thing = draw_subject(dice, getting), _draw_thing(dice, getting)
    same, it = refer_to(someone), it_or_they(thing)
    usable = [verb for verb in _USING if thing.noun.is_any_of(verb.objects) and fits(someone, verb)]
    if same is None or same in IT.values() or not usable:
        return draw_thing_in_use(dice)
    using = dice.pick(usable)
    conditional = dice.chance(0.5)
    tenses = ("present",) if conditional else ("present", "past", "future")
    before = draw_event(dice, getting, someone, object=thing, tenses=tenses, adverbials=0)
    before = replace(before, negated=False)
    after_tenses = _tenses_before(IF) if conditional else (before.tense,)
    after = draw_event(dice, using, same, object=it, tenses=after_tenses, adverbials=1)
    if conditional:
        return _joined(after, IF, before, fronted=True)
    return Sentence(before, AND, replace(after, negated=False, first="subject", time=None))


def draw_two_events(dice: Dice) -> Sentence:
    """Draw two short clauses with subjects of their own."""
    conjunction = dice.pick((AND, AND, BUT, BUT, BECAUSE, ALTHOUGH, IF))
    verb = dice.pick(EVENTS)
    before = _tenses_before(conjunction)
    main = draw_event(dice, verb, draw_subject(dice, verb), tenses=before, adverbials=1)
    after = _tense_after(main)
    if dice.chance(0.3):
        second = draw_state(dice, draw_described(dice), tenses=after)
    else:
        other = dice.pick(EVENTS)
        subject = draw_subject(dice, other)
        second = draw_event(dice, other, subject, tenses=after, adverbials=1)
    fronted = conjunction not in (AND, BUT) and dice.chance(0.4)
    return _joined(main, conjunction, second, fronted)
