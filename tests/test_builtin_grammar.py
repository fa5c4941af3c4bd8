"""The grammar of the built-in corpus: one rule at a time, from a meaning to both languages."""

import pytest

from tfm.data.builtin import BuiltinPair
from tfm.data.builtin.auxiliaries import CAN, MUST, WANT
from tfm.data.builtin.forms import Determiner
from tfm.data.builtin.function_words import (
    AND,
    AT,
    BARE,
    BECAUSE,
    EVERY_DAY,
    FOR,
    HE,
    IF,
    IN,
    IT,
    MY,
    NEVER,
    ON,
    ONTO,
    OUR,
    QUICKLY,
    SHE,
    THAT,
    THE,
    THEY,
    THIS,
    TO,
    TWO,
    VERY,
    WE,
    WHAT,
    WHERE,
    WHO,
    WITH,
    YESTERDAY,
    YOU,
    A,
    I,
)
from tfm.data.builtin.meaning import (
    Clause,
    NounPhrase,
    PrepositionalPhrase,
    Sentence,
)
from tfm.data.builtin.nouns import ADJECTIVE, NOUN
from tfm.data.builtin.sentences import realise
from tfm.data.builtin.verbs import VERB
from tfm.data.words import word_spans


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_spans(text)]


def aligned(pair: BuiltinPair) -> set[tuple[str, str]]:
    source, target = words(pair.source), words(pair.target)
    return {(source[left], target[right]) for left, right in pair.alignment}


# ---- one rule of grammar at a time ----


def the(noun: str, adjective: str | None = None, determiner: Determiner = THE, number="singular"):
    described = ADJECTIVE[adjective] if adjective else None
    return NounPhrase(determiner, NOUN[noun], number, described)


def at(preposition, noun: str, adjective: str | None = None) -> PrepositionalPhrase:
    return PrepositionalPhrase(preposition, the(noun, adjective))


def says(subject, verb: str, **rest) -> Clause:
    return Clause(subject=subject, verb=VERB[verb], **rest)


MAN, WOMAN, DOG = the("man"), the("woman"), the("dog")
TIRED = says(HE, "be", predicate=ADJECTIVE["tired"])

RULES = {
    "weak adjective endings after the definite article": (
        says(the("man", "old"), "buy", object=the("lamp", "red")),
        "The old man buys the red lamp.",
        "Der alte Mann kauft die rote Lampe.",
    ),
    "strong endings where an ein word has none": (
        says(the("friend", "old", MY), "buy", object=the("book", "new", A)),
        "My old friend buys a new book.",
        "Mein alter Freund kauft ein neues Buch.",
    ),
    "weak endings where an ein word has one; an before a vowel": (
        says(MAN, "repair", object=the("table", "old", A)),
        "The man repairs an old table.",
        "Der Mann repariert einen alten Tisch.",
    ),
    "strong endings without a determiner": (
        says(WE, "drink", object=the("milk", "cold", BARE)),
        "We drink cold milk.",
        "Wir trinken kalte Milch.",
    ),
    "numerals leave the adjective strong": (
        says(the("child", "tired", TWO, "plural"), "sleep"),
        "Two tired children sleep.",
        "Zwei müde Kinder schlafen.",
    ),
    "weak nouns and dative plural": (
        says(the("child", None, THE, "plural"), "help", object=the("student", "young", THIS)),
        "The children help this young student.",
        "Die Kinder helfen diesem jungen Studenten.",
    ),
    "dative plural in -n": (
        says(I, "play", companion=PrepositionalPhrase(WITH, the("child", "small", OUR, "plural"))),
        "I play with our small children.",
        "Ich spiele mit unseren kleinen Kindern.",
    ),
    "separable prefix at the end of a main clause": (
        says(the("train"), "arrive", time=EVERY_DAY),
        "The train arrives every day.",
        "Der Zug kommt jeden Tag an.",
    ),
    "participle of a separable verb, with sein": (
        says(SHE, "get", tense="past"),
        "She got up.",
        "Sie ist aufgestanden.",
    ),
    "perfect with haben, preterite of haben itself": (
        says(YOU, "have", tense="past", object=the("dog", None, A)),
        "You had a dog.",
        "Du hattest einen Hund.",
    ),
    "modal bracket": (
        says(WOMAN, "open", modal=MUST, object=the("window")),
        "The woman must open the window.",
        "Die Frau muss das Fenster aufmachen.",
    ),
    "future, manner before place": (
        says(DOG, "run", tense="future", manner=QUICKLY, place=at(TO, "station")),
        "The dog will run to the station quickly.",
        "Der Hund wird schnell zum Bahnhof laufen.",
    ),
    "inversion after a fronted time, time before a known object": (
        says(MAN, "read", tense="past", object=the("book"), time=YESTERDAY, first="time"),
        "Yesterday the man read the book.",
        "Gestern hat der Mann das Buch gelesen.",
    ),
    "nicht after a definite object": (
        says(WOMAN, "buy", negated=True, object=the("coat")),
        "The woman does not buy the coat.",
        "Die Frau kauft den Mantel nicht.",
    ),
    "kein for an indefinite object": (
        says(MAN, "buy", tense="past", negated=True, object=the("bag", "big", A)),
        "The man did not buy a big bag.",
        "Der Mann hat keine große Tasche gekauft.",
    ),
    "nicht before place and predicate; cannot": (
        says(DOG, "sleep", modal=CAN, negated=True, place=at(IN, "house")),
        "The dog cannot sleep in the house.",
        "Der Hund kann nicht im Haus schlafen.",
    ),
    "rest takes the dative": (
        says(the("key"), "lie", place=at(ON, "table", "small")),
        "The key lies on the small table.",
        "Der Schlüssel liegt auf dem kleinen Tisch.",
    ),
    "direction takes the accusative": (
        says(SHE, "put", object=the("key"), place=at(ONTO, "table", "small")),
        "She puts the key on the small table.",
        "Sie legt den Schlüssel auf den kleinen Tisch.",
    ),
    "known before new": (
        says(MAN, "write", object=the("letter", None, A), beneficiary=at(FOR, "teacher")),
        "The man writes a letter for the teacher.",
        "Der Mann schreibt für den Lehrer einen Brief.",
    ),
    "dative before accusative": (
        says(WOMAN, "give", recipient=the("boy"), object=the("apple", None, A)),
        "The woman gives the boy an apple.",
        "Die Frau gibt dem Jungen einen Apfel.",
    ),
    "accusative pronoun before everything": (
        says(WOMAN, "give", recipient=the("girl"), object=IT["masculine"], time=YESTERDAY),
        "The woman gives it to the girl yesterday.",
        "Die Frau gibt ihn gestern dem Mädchen.",
    ),
    "a preposition governed by the verb": (
        says(THEY, "wait", object=the("train"), place=at(AT, "station"), tense="progressive"),
        "They are waiting for the train at the station.",
        "Sie warten am Bahnhof auf den Zug.",
    ),
    "frequency between recipient and object": (
        says(WOMAN, "give", frequency=NEVER, recipient=MAN, object=the("tea", None, BARE)),
        "The woman never gives the man tea.",
        "Die Frau gibt dem Mann nie Tee.",
    ),
    "predicate adjectives have no ending": (
        says(the("soup"), "be", tense="past", predicate=ADJECTIVE["expensive"], degree=VERY),
        "The soup was very expensive.",
        "Die Suppe war sehr teuer.",
    ),
    "verb last after weil": (
        Sentence(says(MAN, "sleep"), BECAUSE, TIRED),
        "The man sleeps because he is tired.",
        "Der Mann schläft, weil er müde ist.",
    ),
    "prefix and verb rejoin at the end of a clause": (
        Sentence(says(I, "know"), THAT, says(HE, "call", object=HE)),
        "I know that he calls him.",
        "Ich weiß, dass er ihn anruft.",
    ),
    "a fronted clause takes the first place": (
        Sentence(says(HE, "run", place=at(TO, "school")), IF, says(MAN, "arrive"), True),
        "If the man arrives, he runs to the school.",
        "Wenn der Mann ankommt, läuft er zur Schule.",
    ),
    "it takes the gender of the German noun": (
        Sentence(
            says(WE, "find", object=the("bag", None, A)),
            AND,
            says(WE, "sell", object=IT["feminine"]),
        ),
        "We find a bag and we sell it.",
        "Wir finden eine Tasche und wir verkaufen sie.",
    ),
    "yes-no question with do-support": (
        Sentence(says(MAN, "thank", object=WOMAN, first="verb"), is_question=True),
        "Does the man thank the woman?",
        "Dankt der Mann der Frau?",
    ),
    "question word": (
        Sentence(says(YOU, "work", modal=WANT, question=WHERE, first="question"), is_question=True),
        "Where do you want to work?",
        "Wo willst du arbeiten?",
    ),
    "asking for the object": (
        Sentence(says(SHE, "see", tense="past", object=WHAT, first="object"), is_question=True),
        "What did she see?",
        "Was hat sie gesehen?",
    ),
    "asking for the subject needs no do": (
        Sentence(says(WHO, "eat", object=the("egg", None, A)), is_question=True),
        "Who eats an egg?",
        "Wer isst ein Ei?",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_grammar(rule):
    meaning, english, german = RULES[rule]
    sentence = meaning if isinstance(meaning, Sentence) else Sentence(meaning)
    pair = realise(sentence)
    assert (pair.source, pair.target) == (english, german)


def test_both_parts_of_a_german_verb_are_aligned_to_the_english_verb():
    pair = realise(Sentence(says(the("train"), "arrive", place=at(AT, "station"))))
    assert {("arrives", "kommt"), ("arrives", "an")} <= aligned(pair)
    pair = realise(Sentence(says(SHE, "get", tense="past")))
    assert {("got", "ist"), ("up", "ist"), ("got", "aufgestanden")} <= aligned(pair)


def test_kein_is_aligned_to_the_negation_and_to_the_article():
    pair = realise(Sentence(says(MAN, "buy", negated=True, object=the("bag", None, A))))
    links = aligned(pair)
    assert {("does", "keine"), ("not", "keine"), ("a", "keine"), ("buy", "kauft")} <= links


def test_a_contraction_is_aligned_to_preposition_and_article():
    links = aligned(realise(Sentence(says(DOG, "sleep", place=at(IN, "garden")))))
    assert {("in", "im"), ("the", "im"), ("garden", "Garten")} <= links
