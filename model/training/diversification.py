"""Data diversification: what a network has learned makes more pairs to learn from.

With f the translation from source to target and g the one back, N pairs (x, y) become 3 N (Nguyen
et al. 2020, arXiv 1911.01986, section 3):

    (x, y)       as they are
    (g(y), y)    the same targets, from other sources     after the phase `backward_steps`
    (x, f(x))    the same sources, in other words         after the phase `forward_steps`

The paper trains networks of their own for f and g, several of each. Here one network is all of them
in turn, so that one run does it. What is made is a file of the run: one that goes on has the same,
and everybody can read it.
"""

import time
from collections.abc import Callable, Sequence

from tfm.data.batching import Side
from tfm.data.corpus import Pair
from tfm.data.counts import counted
from tfm.model.settings import DecodingSettings
from tfm.model.training.made_pairs import read_made_pairs, write_made_pairs
from tfm.model.training.run import Run
from tfm.model.training.validation import best_translations


def translate_corpus(run: Run, what: str, check: Callable[[], None]) -> str:
    """Translate one side of the training corpus, and let `run` learn from that too.

    Several processes translate a part each, and the first one writes. All read the file, as a run
    that goes on does.

    Args:
        what: a value of `schedule.MADE_AFTER`.
        check: called before each batch; what it raises leaves all to be done again.

    Returns:
        What was done, for the user.

    Raises:
        DataError: if the file cannot be written, or there is nothing in it to learn from.
    """
    begin = time.perf_counter()
    path, data = run.directory.made(what), run.settings.data
    make = back_translations if what == "back-translations" else forward_translations
    ranks = run.learner.ranks
    pairs = ranks.collect(lambda: make(run, check))
    ranks.from_first(lambda: write_made_pairs(path, pairs, data))
    run.made[what], run.progress.made[what] = read_made_pairs(path, run.tokenizer, data)
    seconds = time.perf_counter() - begin
    run.progress.seconds += seconds
    made = counted(len(run.made[what]), "pair")
    return f"the training corpus is translated, in {seconds:,.0f} s: {made} more, in {path}"


def back_translations(run: Run, check: Callable[[], None]) -> list[Pair]:
    """Return (g(y), y) of this rank's share of the pairs; the network must be g."""
    tokenizer, decoding = run.tokenizer, run.settings.decoding
    targets = run.learner.ranks.share(sentences(run.corpus.target))
    return [
        Pair(tokenizer.decode_source(source), tokenizer.decode_target(target))
        for source, target in zip(search(run, targets, decoding, check), targets, strict=True)
    ]


def forward_translations(run: Run, check: Callable[[], None]) -> list[Pair]:
    """Return (x, f(x)) of this rank's share of the pairs; the network must be f."""
    tokenizer, decoding = run.tokenizer, run.settings.decoding
    sources = run.learner.ranks.share(sentences(run.corpus.source))
    return [
        Pair(tokenizer.decode_source(source), tokenizer.decode_target(target))
        for source, target in zip(sources, search(run, sources, decoding, check), strict=True)
    ]


def sentences(side: Side) -> list[list[int]]:
    """Return the ids of each sentence."""
    return [side.sentence(i).tolist() for i in range(len(side.offsets) - 1)]


def search(
    run: Run, asked: Sequence[list[int]], settings: DecodingSettings, check: Callable[[], None]
) -> list[list[int]]:
    """Return the best translation of each sentence, by the search that `settings` ask for.

    Weights, averaged where there is an average, and training mode stay as they are.
    """
    learner, forbidden = run.learner, run.tokenizer.forbidden_ids
    learner.model.eval()
    try:
        with learner.averaged():
            return best_translations(learner, asked, settings, forbidden, check)
    finally:
        learner.model.train()
