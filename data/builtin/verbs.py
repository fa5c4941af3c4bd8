"""All verbs of the built-in corpus, by frame and by English base form."""

from tfm.data.builtin.auxiliaries import BE
from tfm.data.builtin.intransitive_verbs import INTRANSITIVE, REPORTING
from tfm.data.builtin.transitive_verbs import TRANSITIVE

EVENTS = (*INTRANSITIVE, *TRANSITIVE)
BY_PEOPLE = tuple(verb for verb in EVENTS if "adult" in verb.subjects)
VERB = {verb.base: verb for verb in (BE, *REPORTING, *EVENTS)}
