"""How verbs are entered in the lexicon, and those that help to conjugate the others."""

from typing import Any

from tfm.data.builtin.forms import Conjugation, Modal, Verb
from tfm.data.builtin.nouns import PEOPLE


def verb_entry(english: str, german: str, subjects: tuple[str, ...], **frame: Any) -> Verb:
    """Read "buy buys bought buying" and "kaufen: kaufe kaufst kauft kaufen, gekauft"."""
    base, third, past, progressive = english.split()
    infinitive, rest = german.split(": ")
    present, participle = rest.split(", ")
    forms = Conjugation(*present.split())
    return Verb(base, third, past, progressive, infinitive, forms, participle, subjects, **frame)


BE = verb_entry(
    "be is was being",
    "sein: bin bist ist sind, gewesen",
    (),
    auxiliary="sein",
    preterite=Conjugation("war", "warst", "war", "waren"),
    stative=True,
)
HAVE = verb_entry(
    "have has had having",
    "haben: habe hast hat haben, gehabt",
    PEOPLE,
    preterite=Conjugation("hatte", "hattest", "hatte", "hatten"),
    objects=("animal", "text", "thing", "vehicle", "garden", "house"),
    stative=True,
)

CAN = Modal("can", "can", Conjugation("kann", "kannst", "kann", "können"))
MUST = Modal("must", "must", Conjugation("muss", "musst", "muss", "müssen"), negatable=False)
SHOULD = Modal("should", "should", Conjugation("sollte", "solltest", "sollte", "sollten"))
WANT = Modal("want", "wants", Conjugation("will", "willst", "will", "wollen"), do_support=True)
MODALS = (CAN, MUST, SHOULD, WANT)
WILL = Conjugation("werde", "wirst", "wird", "werden")
