"""The verbs without an object: rest, activity, motion, and the three that report a clause."""

from tfm.data.builtin.auxiliaries import verb_entry
from tfm.data.builtin.nouns import LIVING, PEOPLE, PETS, SMALL_GOODS

SAY = verb_entry("say says said saying", "sagen: sage sagst sagt sagen, gesagt", PEOPLE)
BELIEVE = verb_entry(
    "believe believes believed believing",
    "glauben: glaube glaubst glaubt glauben, geglaubt",
    PEOPLE,
    stative=True,
)
KNOW = verb_entry(
    "know knows knew knowing", "wissen: weiß weißt weiß wissen, gewusst", PEOPLE, stative=True
)
# The verbs that report a clause: "says that", "sagt, dass".
REPORTING = (SAY, BELIEVE, KNOW)

INTRANSITIVE = (
    verb_entry(
        "sleep sleeps slept sleeping",
        "schlafen: schlafe schläfst schläft schlafen, geschlafen",
        LIVING,
        place="area",
    ),
    verb_entry(
        "work works worked working",
        "arbeiten: arbeite arbeitest arbeitet arbeiten, gearbeitet",
        ("adult",),
        place="area",
        companions=("adult",),
        manner=True,
    ),
    verb_entry(
        "play plays played playing",
        "spielen: spiele spielst spielt spielen, gespielt",
        LIVING,
        place="area",
        companions=LIVING,
    ),
    verb_entry(
        "dance dances danced dancing",
        "tanzen: tanze tanzt tanzt tanzen, getanzt",
        PEOPLE,
        place="area",
        companions=PEOPLE,
        manner=True,
    ),
    verb_entry(
        "sing sings sang singing",
        "singen: singe singst singt singen, gesungen",
        PEOPLE,
        place="area",
        companions=PEOPLE,
    ),
    verb_entry(
        "laugh laughs laughed laughing", "lachen: lache lachst lacht lachen, gelacht", PEOPLE
    ),
    verb_entry(
        "sit sits sat sitting",
        "sitzen: sitze sitzt sitzt sitzen, gesessen",
        (*PEOPLE, *PETS),
        place="seat",
        place_needed=True,
    ),
    verb_entry(
        "lie lies lay lying",
        "liegen: liege liegst liegt liegen, gelegen",
        (*PETS, *SMALL_GOODS),
        place="furniture",
        place_needed=True,
    ),
    verb_entry(
        "stand stands stood standing",
        "stehen: stehe stehst steht stehen, gestanden",
        ("adult", "vehicle", "horse"),
        place="area",
        place_needed=True,
    ),
    verb_entry(
        "live lives lived living",
        "wohnen: wohne wohnst wohnt wohnen, gewohnt",
        PEOPLE,
        place="home",
        place_needed=True,
        stative=True,
        timeless=True,
    ),
    verb_entry(
        "go goes went going",
        "gehen: gehe gehst geht gehen, gegangen",
        PEOPLE,
        auxiliary="sein",
        place="goal",
        place_needed=True,
        companions=PEOPLE,
    ),
    verb_entry(
        "run runs ran running",
        "laufen: laufe läufst läuft laufen, gelaufen",
        LIVING,
        auxiliary="sein",
        place="goal",
        place_needed=True,
        manner=True,
    ),
    verb_entry(
        "arrive arrives arrived arriving",
        "ankommen: komme kommst kommt kommen, angekommen",
        (*PEOPLE, "transport", "letter"),
        prefix="an",
        auxiliary="sein",
    ),
    verb_entry(
        "get gets got getting",
        "aufstehen: stehe stehst steht stehen, aufgestanden",
        PEOPLE,
        particle="up",
        prefix="auf",
        auxiliary="sein",
        manner=True,
    ),
)
