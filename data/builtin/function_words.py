"""The closed classes: determiners, pronouns, prepositions, adverbs, conjunctions."""

from tfm.data.builtin.forms import Determiner, Particle, Preposition, Pronoun, Time

THE = Determiner("the", "the", "d", "der", definite=True)
THIS = Determiner("this", "these", "dies", "dieser", definite=True)
A = Determiner("a", "", "ein", "ein", definite=False)
NO = Determiner("", "", "kein", "ein", definite=False)  # the negated form of A and BARE
BARE = Determiner("", "", "", "none", definite=False)
TWO = Determiner("", "two", "zwei", "none", definite=False)
THREE = Determiner("", "three", "drei", "none", definite=False)
FOUR = Determiner("", "four", "vier", "none", definite=False)
MY = Determiner("my", "my", "mein", "ein", definite=True)
YOUR = Determiner("your", "your", "dein", "ein", definite=True)
HIS = Determiner("his", "his", "sein", "ein", definite=True)
HER = Determiner("her", "her", "ihr", "ein", definite=True)
OUR = Determiner("our", "our", "unser", "ein", definite=True)
NUMERALS = (TWO, THREE, FOUR)
POSSESSIVES = (MY, YOUR, HIS, HER, OUR)

I = Pronoun("I", "me", "ich", "mich", "mir", "first")  # noqa: E741
YOU = Pronoun("you", "you", "du", "dich", "dir", "second")
HE = Pronoun("he", "him", "er", "ihn", "ihm", "third")
SHE = Pronoun("she", "her", "sie", "sie", "ihr", "third")
WE = Pronoun("we", "us", "wir", "uns", "uns", "plural")
THEY = Pronoun("they", "them", "sie", "sie", "ihnen", "plural")
# "it" takes the gender of the German noun it stands for, which the same sentence names.
IT = {
    "masculine": Pronoun("it", "it", "er", "ihn", "ihm", "third"),
    "feminine": Pronoun("it", "it", "sie", "sie", "ihr", "third"),
    "neuter": Pronoun("it", "it", "es", "es", "ihm", "third"),
}
WHO = Pronoun("who", "whom", "wer", "wen", "wem", "third")
WHAT = Pronoun("what", "what", "was", "was", "was", "third")
PERSONAL = (I, YOU, HE, SHE, WE, THEY)

IN = Preposition("in", "in", "dative")
INTO = Preposition("into", "in", "accusative")
AT = Preposition("at", "an", "dative")
TO = Preposition("to", "zu", "dative")
ON = Preposition("on", "auf", "dative")
ONTO = Preposition("on", "auf", "accusative")  # after "put": puts it on the table
UNDER = Preposition("under", "unter", "dative")
TO_UNDER = Preposition("under", "unter", "accusative")
NEXT_TO = Preposition("next to", "neben", "dative")
TO_NEXT_TO = Preposition("next to", "neben", "accusative")
IN_FRONT_OF = Preposition("in front of", "vor", "dative")
BEHIND = Preposition("behind", "hinter", "dative")
WITH = Preposition("with", "mit", "dative")
FOR = Preposition("for", "für", "accusative")
WAIT_FOR = Preposition("for", "auf", "accusative")
THINK_OF = Preposition("of", "an", "accusative")

# German melts an unstressed article into some prepositions ("ans Kind" would be too casual).
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}

SLOWLY = Particle("slowly", "langsam")
QUICKLY = Particle("quickly", "schnell")
QUIETLY = Particle("quietly", "leise")
MANNERS = (SLOWLY, QUICKLY, QUIETLY)

ALWAYS = Particle("always", "immer")
OFTEN = Particle("often", "oft")
NEVER = Particle("never", "nie")
FREQUENCIES = (ALWAYS, OFTEN, NEVER)

VERY = Particle("very", "sehr")

WHERE = Particle("where", "wo")
WHEN = Particle("when", "wann")
WHY = Particle("why", "warum")

BECAUSE = Particle("because", "weil")
ALTHOUGH = Particle("although", "obwohl")
IF = Particle("if", "wenn")
THAT = Particle("that", "dass")
AND = Particle("and", "und")
BUT = Particle("but", "aber")

NOW = Time((("now", "jetzt"),), ("progressive", "state"))
TODAY = Time((("today", "heute"),), ("progressive", "state", "past", "future", "modal"))
YESTERDAY = Time((("yesterday", "gestern"),), ("past",))
TOMORROW = Time((("tomorrow", "morgen"),), ("future", "modal"))
LAST_WEEK = Time((("last", "letzte"), ("week", "Woche")), ("past",))
NEXT_WEEK = Time((("next", "nächste"), ("week", "Woche")), ("future", "modal"))
EVERY_DAY = Time((("every", "jeden"), ("day", "Tag")), ("present",))
IN_THE_EVENING = Time((("in the", "am"), ("evening", "Abend")), ("present", "past", "modal"))
ON_MONDAY = Time((("on", "am"), ("Monday", "Montag")), ("past", "future", "modal"))
ON_SUNDAY = Time((("on", "am"), ("Sunday", "Sonntag")), ("past", "future", "modal"))
TIMES = (
    NOW,
    TODAY,
    YESTERDAY,
    TOMORROW,
    LAST_WEEK,
    NEXT_WEEK,
    EVERY_DAY,
    IN_THE_EVENING,
    ON_MONDAY,
    ON_SUNDAY,
)
