"""What a sentence of the built-in corpus says, before either language has put it into words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tfm.data.builtin.forms import (
    Adjective,
    Agreement,
    Determiner,
    Modal,
    Noun,
    Number,
    Particle,
    Preposition,
    Pronoun,
    Tense,
    Time,
    Verb,
)

# What stands first in a main clause. "verb" makes a yes-no question, "question" puts the question
# word first, "object" asks for the object ("what").
First = Literal["subject", "time", "verb", "question", "object"]


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with its determiner and at most one adjective."""

    determiner: Determiner
    noun: Noun
    number: Number = "singular"
    adjective: Adjective | None = None

    @property
    def agreement(self) -> Agreement:
        """Return the verb form this phrase asks for as a subject."""
        return "third" if self.number == "singular" else "plural"

    @property
    def definite(self) -> bool:
        """Say whether the phrase takes up something known, which German puts early."""
        return self.determiner.definite


Nominal = NounPhrase | Pronoun


@dataclass(frozen=True, slots=True)
class PrepositionalPhrase:
    """A preposition and what it governs."""

    preposition: Preposition
    complement: Nominal


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One verb with all that belongs to it."""

    subject: Nominal
    verb: Verb
    tense: Tense = "present"
    modal: Modal | None = None  # only in the present
    negated: bool = False
    predicate: Adjective | None = None  # after "be"
    degree: Particle | None = None  # "very", before the predicate
    object: Nominal | None = None
    recipient: Nominal | None = None
    companion: PrepositionalPhrase | None = None
    beneficiary: PrepositionalPhrase | None = None
    manner: Particle | None = None
    frequency: Particle | None = None
    place: PrepositionalPhrase | None = None
    time: Time | None = None
    question: Particle | None = None  # the question word of a clause with `first="question"`
    first: First = "subject"

    def nominals(self) -> Iterator[Nominal]:
        """Yield every noun phrase and pronoun of the clause."""
        phrases = (self.companion, self.beneficiary, self.place)
        nominals = (self.subject, self.object, self.recipient)
        yield from (nominal for nominal in nominals if nominal is not None)
        yield from (phrase.complement for phrase in phrases if phrase is not None)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A main clause, alone or joined to a second clause."""

    main: Clause
    conjunction: Particle | None = None
    second: Clause | None = None
    second_first: bool = False  # the subordinate clause stands before the main clause
    is_question: bool = False

    def clauses(self) -> tuple[Clause, ...]:
        """Return the one or two clauses, the main clause first."""
        return (self.main,) if self.second is None else (self.main, self.second)


def combinations(sentence: Sentence) -> Iterator[tuple[str, str, str]]:
    """Yield the word combinations of a sentence, as (relation, word, word) of English lemmas.

    These are what the splits hold out: an adjective with its noun, a verb with its subject and
    with its object. Pronouns make no combinations.
    """
    for clause in sentence.clauses():
        subject, verb = clause.subject, clause.verb.base
        if isinstance(subject, NounPhrase):
            if clause.predicate is None:
                yield "subject", subject.noun.english, verb
            else:
                yield "adjective", clause.predicate.english, subject.noun.english
        if isinstance(clause.object, NounPhrase):
            yield "object", verb, clause.object.noun.english
        for nominal in clause.nominals():
            if isinstance(nominal, NounPhrase) and nominal.adjective is not None:
                yield "adjective", nominal.adjective.english, nominal.noun.english
