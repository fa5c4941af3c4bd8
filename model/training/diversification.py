"""Data diversification: what a network has learned makes more pairs to learn from.

With f the translation from source to target and g the one back, N pairs (x, y) become 3 N (Nguyen
et al. 2020, arXiv 1911.01986, section 3):

    (x, y)       as they are
    (x, f(x))    the same sources, in the words of the network
    (g(y), y)    the same targets, from other sources

The paper trains a network for each direction. Here it is one for both, that of the first phase of
`both_directions_steps`: between the phases it translates the corpus, once, and the second phase
learns from all. The new pairs are a file of the run, so that a run that goes on has the same, and
everybody can read them.
"""

import time
from collections.abc import Callable, Iterator

from tfm.data.batching import Side
from tfm.data.corpus import Pair
from tfm.data.counts import counted
from tfm.model.training.made_pairs import read_made_pairs, write_made_pairs
from tfm.model.training.run import Run
from tfm.model.training.validation import best_translations


def diversify(run: Run, check: Callable[[], None]) -> str:
    """Translate the training corpus both ways, and let `run` learn from that too.

    Of several processes the first one translates. All read the file, as a run that goes on does.

    Args:
        check: called before each batch; what it raises leaves all to be done again.

    Returns:
        What was done, for the user.

    Raises:
        DataError: if the file cannot be written, or there is nothing in it to learn from.
    """
    begin = time.perf_counter()
    path, data = run.directory.diversified, run.settings.data
    run.learner.ranks.from_first(lambda: write_made_pairs(path, translate(run, check), data))
    run.added, run.progress.diversified = read_made_pairs(path, run.tokenizer, data)
    seconds = time.perf_counter() - begin
    run.progress.seconds += seconds
    return (
        f"the training corpus is translated both ways, in {seconds:,.0f} s: "
        f"{counted(len(run.added), 'pair')} more, in {path}"
    )


def translate(run: Run, check: Callable[[], None]) -> list[Pair]:
    """Return (x, f(x)) of all pairs, and then (g(y), y). Weights and training mode stay."""
    model = run.learner.model
    model.eval()
    try:
        with run.learner.averaged():
            return [*forward(run, check), *backward(run, check)]
    finally:
        model.train()


def forward(run: Run, check: Callable[[], None]) -> Iterator[Pair]:
    """Yield (x, f(x)) of all pairs."""
    tokenizer, sources = run.tokenizer, sentences(run.corpus.source)
    for source, target in zip(sources, search(run, sources, check), strict=True):
        yield Pair(tokenizer.decode_source(source), tokenizer.decode_target(target))


def backward(run: Run, check: Callable[[], None]) -> Iterator[Pair]:
    """Yield (g(y), y) of all pairs."""
    tokenizer, targets = run.tokenizer, sentences(run.corpus.target)
    for source, target in zip(search(run, targets, check), targets, strict=True):
        yield Pair(tokenizer.decode_source(source), tokenizer.decode_target(target))


def sentences(side: Side) -> list[list[int]]:
    """Return the ids of each sentence."""
    return [side.sentence(i).tolist() for i in range(len(side.offsets) - 1)]


def search(run: Run, asked: list[list[int]], check: Callable[[], None]) -> list[list[int]]:
    """Return the best translation of each sentence, by the search that `[decoding]` asks for."""
    return best_translations(
        run.learner, asked, run.settings.decoding, run.tokenizer.forbidden_ids, check
    )
