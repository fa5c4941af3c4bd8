"""Search is right whatever is asked of it: random networks, sources and options, all together.

The default run takes a few cases of each kind, and the slow one hundreds. What is expected knows no
batch, no cache, no padding and no early stop.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.search.beam import beam_search, force_score
from tfm.model.search.constraints import Constraints
from tfm.model.search.ensemble import Ensemble
from tfm.model.search.prepared import prepare
from tfm.model.settings import DecodingSettings
from tfm.model.transformer import Transformer

if TYPE_CHECKING:
    from conftest import Following, Tiny

SPECIAL = (PAD, UNK, BOS)
SOURCE_VOCAB = 9


@dataclass(frozen=True)
class Case:
    """One search: a network by its seed, sources, and all that is asked."""

    seed: int
    vocab: int
    flat: bool  # all ids are as probable: nothing but ties
    norm: Literal["pre", "post"]
    sources: tuple[tuple[int, ...], ...]
    options: DecodingSettings
    asked: tuple[Constraints, ...]
    batch_tokens: int
    members: int = 1  # of an ensemble

    def models(self, tiny: "Tiny") -> list[Transformer]:
        scale = 0 if self.flat else 3  # in fp64 only real ties are ties
        seeds = range(self.seed, self.seed + self.members)
        return [tiny.network(n, vocab=self.vocab, scale=scale, norm=self.norm) for n in seeds]

    def model(self, tiny: "Tiny") -> Transformer:
        return self.models(tiny)[0]

    def search(self, model: Transformer | Ensemble, places: Sequence[int], **changes: Any) -> Any:
        """Search the sources at `places`; return their hypotheses in that order."""
        n_best = changes.pop("n_best", self.options.beam)
        return beam_search(
            model,
            [self.sources[i] for i in places],
            replace(self.options, **changes),
            forbidden=SPECIAL,
            constraints=[self.asked[i] for i in places],
            n_best=n_best,
        )

    def longest(self, place: int) -> int:
        least = self.asked[place].least
        return max(self.options.longest(len(self.sources[place]) - 1), least)


@dataclass(frozen=True)
class Barred:
    """A rule like that of forbidden words: `second` may not follow `first`."""

    first: int
    second: int

    def __call__(self, ids: Sequence[int]) -> set[int]:
        return {self.second} if ids and ids[-1] == self.first else set()


@st.composite
def decodings(
    draw: st.DrawFn, *, kind: str, flat: bool, longest: int, wide: bool
) -> DecodingSettings:
    """Draw how to search; the arguments are those of `cases`."""
    max_length = draw(st.integers(1, longest))
    options: dict[str, Any] = dict(
        beam=300 if wide else draw(st.integers(1, 6)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 1.8])),
        max_length=max_length,
        max_length_ratio=draw(st.sampled_from([0.2, 2.0])),
        min_length=draw(st.integers(0, max_length)),
        no_repeat_ngram=draw(st.sampled_from([0, 0, 1, 2, 3])),
        # Rounding breaks ties where all x of the penalty are 0 but for it.
        repetition_penalty=1.0 if flat else draw(st.sampled_from([1.0, 1.0, 1.3, 3.0])),
    )
    if "groups" in kind:
        width = draw(st.integers(1, 3))
        options |= dict(beam_groups=draw(st.integers(2, 3)), diversity=draw(st.floats(0, 3)))
        options["beam"] = width * options["beam_groups"]
    if "coverage" in kind:
        options["coverage_penalty"] = draw(st.floats(0.1, 2))
    if kind == "sampling":
        options |= dict(
            sampling=True,
            temperature=draw(st.sampled_from([0.5, 1.0, 2.0])),
            top_k=draw(st.integers(0, 4)),
            top_p=draw(st.sampled_from([0.4, 0.9, 1.0])),
            epsilon=draw(st.sampled_from([0.0, 0.1])),
            sampling_seed=draw(st.integers(0, 99)),
        )
    return DecodingSettings(**options)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    kinds: Sequence[str] = ("beam",),
    longest: int = 6,
    wide: bool = False,
    members: int = 1,
) -> Case:
    """Draw a case.

    Args:
        kinds: of search: beam, sampling, or what a beam search is to have: required (words),
            groups, coverage.
        longest: the most ids of a translation, if the prefix or required words are no longer.
        wide: the beam is as wide as the space.
        members: the most networks that search together.
    """
    kind = draw(st.sampled_from(kinds))
    vocab = draw(st.integers(5, 6 if wide else 8))
    words = st.integers(EOS + 1, vocab - 1)
    source = st.lists(st.integers(EOS + 1, SOURCE_VOCAB - 1), max_size=5)
    sources = tuple((*draw(source), EOS) for _ in range(draw(st.integers(1, 2 if wide else 4))))
    flat = draw(st.booleans()) and draw(st.booleans())
    phrases = st.lists(st.lists(words, min_size=1, max_size=2).map(tuple), max_size=2, unique=True)
    asked = tuple(
        Constraints(
            prefix=tuple(draw(st.lists(words, max_size=2))),
            required=tuple(draw(phrases)) if "required" in kind else (),
            bars=draw(st.one_of(st.none(), st.builds(Barred, words, words))),
        )
        for _ in sources
    )
    return Case(
        seed=draw(st.integers(0, 10**6)),
        vocab=vocab,
        flat=flat,
        norm=draw(st.sampled_from(["pre", "post"])),
        sources=sources,
        options=draw(decodings(kind=kind, flat=flat, longest=longest, wide=wide)),
        asked=asked,
        batch_tokens=draw(st.sampled_from([1, 40, 4096])),
        members=draw(st.integers(1, members)),
    )


def check(
    test: Callable[["Tiny", Case], None],
    tiny: "Tiny",
    strategy: st.SearchStrategy[Case],
    examples: int,
) -> None:
    """Run `test` on so many examples, the same ones each time."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Case) -> None:
        test(tiny, case)

    run()


def has(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    n = len(phrase)
    return any(tuple(ids[i : i + n]) == tuple(phrase) for i in range(len(ids) - n + 1))


def may_follow(case: Case, place: int, ids: Sequence[int], token: int) -> bool:
    """Tell whether all that is asked lets `token` follow `ids`."""
    asked, options = case.asked[place], case.options
    if len(ids) < len(asked.prefix):
        return token == asked.prefix[len(ids)]
    if token in SPECIAL or (asked.bars is not None and token in asked.bars(ids)):
        return False
    n, longer = options.no_repeat_ngram, [*ids, token]
    if n and len(longer) > n and has(longer[:-1], longer[-n:]):
        return False
    if token != EOS:
        return True
    enough = len(longer) >= options.min_length
    return enough and all(has(ids, phrase) for phrase in asked.required)


def following_of(tiny: "Tiny", case: Case, model: Transformer, place: int) -> "Following":
    """Return the function that gives what each next id counts, -inf if it may not come."""
    return tiny.following(
        model,
        penalty=case.options.repetition_penalty,
        bars=lambda ids, token: not may_follow(case, place, ids, token),
    )


def equals_its_definition(tiny: "Tiny", case: Case) -> None:
    model = case.model(tiny)
    found = case.search(model, range(len(case.sources)), batch_tokens=case.batch_tokens)
    for place, hypotheses in enumerate(found):
        following, least = following_of(tiny, case, model, place), case.asked[place].least
        expected = tiny.search(following, case.sources[place], case.options, least)
        assert tiny.outcome(hypotheses) == expected


def finds_everything(tiny: "Tiny", case: Case) -> None:
    """A beam as wide as the space gives all that is allowed, in order of score."""
    model, options = case.model(tiny), case.options
    found = case.search(model, range(len(case.sources)), batch_tokens=100_000)
    for place, hypotheses in enumerate(found):
        source, scores = case.sources[place], {}
        following = following_of(tiny, case, model, place)
        paths: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for n in range(1, case.longest(place) + 1):
            longer = []
            for ids, total in paths:
                for token, p in enumerate(following(source, ids)):
                    if token == EOS and p > -math.inf:
                        scores[ids] = (total + p) / n**options.length_penalty
                    elif p > -math.inf:
                        longer.append(((*ids, token), total + p))
            paths = longer
        finished = [h for h in hypotheses if not h.truncated]
        assert {tuple(h.tokens) for h in finished} == set(scores)
        assert [h.score for h in finished] == pytest.approx(sorted(scores.values(), reverse=True))
        for h in finished:
            assert h.score == pytest.approx(scores[tuple(h.tokens)])


def forced_by(
    models: Sequence[Transformer], source: Sequence[int], targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Return the log of the mean probability that the models give each id of each target."""
    each = [force_score(model, [source] * len(targets), targets) for model in models]
    return [
        [math.log(fmean(map(math.exp, scores))) for scores in zip(*rows, strict=True)]
        for rows in zip(*each, strict=True)
    ]


def keeps_its_promises(tiny: "Tiny", case: Case) -> None:
    """Neither batch nor order nor n_best nor beam padding counts; scores are the model's."""
    models, options = case.models(tiny), case.options
    model = Ensemble([prepare(each) for each in models])
    places = list(range(len(case.sources)))
    alone = [case.search(model, [place])[0] for place in places]
    expected = [tiny.outcome(hypotheses) for hypotheses in alone]
    rng = random.Random(case.seed)
    for changes in ({}, {"batch_tokens": case.batch_tokens}, {"n_best": 1}):
        order = rng.sample(places * 2, 2 * len(places))  # each twice, side by side or apart
        n_best = changes.get("n_best", options.beam)
        for place, hypotheses in zip(order, case.search(model, order, **changes), strict=True):
            assert tiny.outcome(hypotheses) == expected[place][:n_best]
    for place, hypotheses in zip(places, alone, strict=True):
        assert hypotheses
        whole = [h.tokens if h.truncated else [*h.tokens, EOS] for h in hypotheses]
        forced = forced_by(models, case.sources[place], whole)
        for h, ids, scores in zip(hypotheses, whole, forced, strict=True):
            assert h.token_log_probabilities == pytest.approx(scores)
            assert h.log_probability == pytest.approx(sum(scores))
            stuck = not any(may_follow(case, place, ids, i) for i in range(case.vocab))
            assert h.truncated == (EOS not in ids)
            assert not h.truncated or len(ids) == case.longest(place) or stuck
            for t, token in enumerate(ids):
                assert may_follow(case, place, ids[:t], token)
            if options.repetition_penalty == 1 and not options.coverage_penalty:
                n = max(len(ids), 1)
                assert h.score == pytest.approx(sum(scores) / n**options.length_penalty, rel=1e-5)
        if not options.sampling:
            assert len({(tuple(h.tokens), h.truncated) for h in hypotheses}) == len(hypotheses)
            finished = [h.score for h in hypotheses if not h.truncated]
            assert finished == sorted(finished, reverse=True)
            marks = [h.truncated for h in hypotheses]
            assert marks == sorted(marks)


def examples(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


@examples(10, 200)
def test_a_search_equals_its_definition(tiny: "Tiny", examples: int) -> None:
    check(equals_its_definition, tiny, cases(), examples)


@examples(5, 100)
def test_a_beam_as_wide_as_the_space_finds_everything(tiny: "Tiny", examples: int) -> None:
    strategy = cases(kinds=("beam", "required"), longest=3, wide=True)
    check(finds_everything, tiny, strategy, examples)


@examples(10, 300)
def test_a_search_keeps_its_promises(tiny: "Tiny", examples: int) -> None:
    kinds = ("beam", "required", "groups", "coverage", "required coverage", "groups coverage")
    strategy = cases(kinds=(*kinds, "sampling"), members=2)
    check(keeps_its_promises, tiny, strategy, examples)
