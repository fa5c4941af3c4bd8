"""The kinds of words of the built-in grammar, each with all of its forms in both languages.

A lexical entry is bilingual: one meaning, the English forms and the German forms. Nothing is
derived by rule that a dictionary would list, so an irregular word costs nothing extra.
"""

from dataclasses import dataclass
from typing import Literal

Case = Literal["nominative", "accusative", "dative"]
Number = Literal["singular", "plural"]
Gender = Literal["masculine", "feminine", "neuter"]
# Who a finite verb agrees with. "plural" is 1st and 3rd person: German has one form for both, and
# the 2nd person plural is not used, because English "you" stands for German "du" throughout.
Agreement = Literal["first", "second", "third", "plural"]
Tense = Literal["present", "progressive", "past", "future"]
Paradigm = Literal["der", "dieser", "ein", "none"]
PlaceKind = Literal["area", "home", "seat", "furniture", "goal", "onto", "nowhere"]


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; `kind` is the semantic class that verbs and adjectives select for."""

    kind: str
    english: str
    english_plural: str  # "" for a mass noun, and for a father, of whom one has one
    gender: Gender
    german: str  # nominative singular
    german_oblique: str  # accusative and dative singular; differs for weak nouns (den Jungen)
    german_plural: str
    german_dative_plural: str
    ownable: bool = True  # "my sister" is natural, "my station" is not
    relation: bool = False  # a sister is mostly somebody's

    @property
    def countable(self) -> bool:
        """Say whether the noun has a plural and takes "a" and numerals."""
        return bool(self.english_plural)

    def is_any_of(self, classes: tuple[str, ...]) -> bool:
        """Say whether `classes` names this noun, by its kind or by its English lemma."""
        return self.kind in classes or self.english in classes


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective; `german_stem` takes the endings (teuer, but teur-e)."""

    english: str
    german: str
    german_stem: str
    nouns: tuple[str, ...]  # kinds or lemmas it can describe


@dataclass(frozen=True, slots=True, eq=False)
class Conjugation:
    """The finite forms of a verb in one tense."""

    first: str
    second: str
    third: str
    plural: str

    def form(self, agreement: Agreement) -> str:
        """Return the form that agrees with the subject."""
        match agreement:
            case "first":
                return self.first
            case "second":
                return self.second
            case "third":
                return self.third
            case "plural":
                return self.plural


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with its forms and its frame: what subjects, objects and adverbials it takes."""

    base: str
    third: str
    past: str
    progressive: str
    infinitive: str  # with the separable prefix: "ankommen"
    present: Conjugation  # without it: "komme", "kommst" ...
    participle: str  # with it: "angekommen"
    subjects: tuple[str, ...]
    particle: str = ""  # English, right after the verb: get "up", look "for"
    prefix: str = ""  # German, separable: "an"
    auxiliary: Literal["haben", "sein"] = "haben"
    preterite: Conjugation | None = None  # where speech prefers it to the perfect: "war", "hatte"
    objects: tuple[str, ...] = ()  # kinds or lemmas; () for an intransitive verb
    object_case: Case = "accusative"
    recipient: bool = False  # takes a person in the dative beside the object: "give"
    preposition: "Preposition | None" = None  # governs the object: "wait for", "warten auf"
    companions: tuple[str, ...] = ()  # may take "with somebody"
    beneficiary: bool = False  # may take "for somebody"
    place: PlaceKind = "nowhere"
    place_needed: bool = False
    manner: bool = False  # may take "slowly", "quickly", "quietly"
    stative: bool = False  # has no English progressive
    timeless: bool = False  # lasts: no adverbial of time, no future, no modal: "love", "live"

    @property
    def past_looks_present(self) -> bool:
        """Say whether the past is spelled like the base form: "they read", "they put"."""
        return self.past == self.base


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """A modal verb; `do_support` marks "want to", which is a full verb in English."""

    english: str
    english_third: str
    german: Conjugation
    negatable: bool = True  # "must not" is "darf nicht": kept out
    do_support: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """An article, possessive, demonstrative or numeral, or nothing at all (bare plural, mass)."""

    english: str  # "" where the singular does not exist
    english_plural: str
    german: str  # the stem that takes the endings; "" for nothing
    paradigm: Paradigm
    definite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Pronoun:
    """A personal or interrogative pronoun in the cases the grammar uses."""

    english: str
    english_object: str
    nominative: str
    accusative: str
    dative: str
    agreement: Agreement


@dataclass(frozen=True, slots=True, eq=False)
class Preposition:
    """A preposition with the case it governs here; a two-way preposition has two entries."""

    english: str
    german: str
    case: Case


@dataclass(frozen=True, slots=True, eq=False)
class Particle:
    """A word that never changes its form: adverb, conjunction or question word."""

    english: str
    german: str


@dataclass(frozen=True, slots=True, eq=False)
class Time:
    """An adverbial of time, as parts that translate each other in the same order."""

    parts: tuple[tuple[str, str], ...]
    tenses: tuple[str, ...]  # tenses it goes with; also "modal", and "state" for stative presents
