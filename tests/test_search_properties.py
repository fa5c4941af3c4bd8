"""Search is right whatever is asked of it: random networks, sources and options, all together.

The default run takes a few cases of each kind, and the slow one hundreds. The references below know
no batch, no cache, no padding and no early stop.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.attention.padding import Padding
from tfm.model.search.beam import Hypothesis, beam_search, force_score
from tfm.model.search.constraints import Constraints
from tfm.model.settings import DecodingSettings, ModelSettings
from tfm.model.transformer import Transformer

SPECIAL = (PAD, UNK, BOS)
SOURCE_VOCAB = 9


@dataclass(frozen=True)
class Case:
    """One search: a network by its seed, sources, and all that is asked."""

    seed: int
    vocab: int
    flat: bool  # all ids are as probable: nothing but ties
    norm: str
    sources: tuple[tuple[int, ...], ...]
    options: DecodingSettings
    asked: tuple[Constraints, ...]
    batch_tokens: int

    def model(self) -> Transformer:
        torch.manual_seed(self.seed)
        shape = ModelSettings(
            d_model=8,
            d_ff=16,
            heads=2,
            encoder_layers=1,
            decoder_layers=2,
            norm=self.norm,  # type: ignore[arg-type]
        )
        model = Transformer(shape, source_vocab=SOURCE_VOCAB, target_vocab=self.vocab, joint=False)
        with torch.no_grad():
            model.target_embedding.weight.mul_(0 if self.flat else 3)
        return model.double().eval()  # so that only real ties are ties

    def search(self, model: Transformer, places: Sequence[int], **changes: Any) -> Any:
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
def cases(
    draw: st.DrawFn, *, kinds: Sequence[str] = ("beam",), longest: int = 6, wide: bool = False
) -> Case:
    """Draw a case.

    Args:
        kinds: of search: beam, required (beam search with required words), groups, sampling,
            coverage.
        longest: the most ids of a translation, if the prefix or required words are no longer.
        wide: the beam is as wide as the space.
    """
    kind = draw(st.sampled_from(kinds))
    vocab = draw(st.integers(5, 6 if wide else 8))
    words = st.integers(EOS + 1, vocab - 1)
    count = draw(st.integers(1, 2 if wide else 4))
    source = st.lists(st.integers(EOS + 1, SOURCE_VOCAB - 1), max_size=5)
    sources = tuple((*draw(source), EOS) for _ in range(count))
    max_length = draw(st.integers(1, longest))
    flat = draw(st.booleans()) and draw(st.booleans())
    options: dict[str, Any] = dict(
        beam=draw(st.integers(1, 6)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 1.8])),
        max_length=max_length,
        max_length_ratio=draw(st.sampled_from([0.2, 2.0])),
        min_length=draw(st.integers(0, max_length)),
        no_repeat_ngram=draw(st.sampled_from([0, 0, 1, 2, 3])),
        # Rounding breaks ties where all x of the penalty are 0 but for it.
        repetition_penalty=1.0 if flat else draw(st.sampled_from([1.0, 1.0, 1.3, 3.0])),
    )
    if wide:
        options["beam"] = 300
    if kind == "groups":
        width = draw(st.integers(1, 3))
        options |= dict(beam_groups=draw(st.integers(2, 3)), diversity=draw(st.floats(0, 3)))
        options["beam"] = width * options["beam_groups"]
    if kind == "coverage":
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
    phrases = st.lists(st.lists(words, min_size=1, max_size=2).map(tuple), max_size=2, unique=True)
    asked = tuple(
        Constraints(
            prefix=tuple(draw(st.lists(words, max_size=2))),
            required=tuple(draw(phrases)) if kind == "required" else (),
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
        options=DecodingSettings(**options),
        asked=asked,
        batch_tokens=draw(st.sampled_from([1, 40, 4096])),
    )


def check(test: Callable[[Any], None], strategy: st.SearchStrategy[Any], examples: int) -> None:
    """Run `test` on so many examples, the same ones each time."""
    run = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run(given(strategy)(test))()


def log_p(model: Transformer, source: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Return log P of every id after BOS and `ids`."""
    with torch.no_grad():
        target = torch.tensor([[BOS, *ids]])
        logits = model(torch.tensor([source]), target, source=Padding.from_lengths([len(source)]))
    scores: list[float] = logits[0, -1].log_softmax(-1).tolist()
    return scores


def counting(scores: list[float], ids: Sequence[int], penalty: float) -> list[float]:
    """Return what each next id counts: log P, or log P' by the formula of the penalty."""
    if penalty == 1:
        return scores
    mean = math.fsum(scores) / len(scores)
    x = [p - mean for p in scores]
    for i in set(ids):
        x[i] = x[i] / penalty if x[i] > 0 else x[i] * penalty
    whole = math.log(math.fsum(map(math.exp, x)))
    return [each - whole for each in x]


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


Found = tuple[list[int], float, bool]


def definition(case: Case, model: Transformer, place: int) -> list[Found]:
    """Search by beam as it is defined, always up to the longest."""
    options, source = case.options, case.sources[place]
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    stuck: list[tuple[float, list[int]]] = []
    for n in range(1, case.longest(place) + 1):
        extensions = []
        for beam, (total, ids) in enumerate(live):
            each = counting(log_p(model, source, ids), ids, options.repetition_penalty)
            for token, p in enumerate(each):
                if may_follow(case, place, ids, token):
                    extensions.append((-(total + p), beam, token, ids))
        extensions.sort(key=lambda extension: extension[:3])
        for minus_total, _, token, ids in extensions[: options.beam]:
            if token == EOS:
                finished.append((-minus_total / n**options.length_penalty, ids))
        if finished and options.beam == 1:
            return [(finished[0][1], finished[0][0], False)]
        going = [e for e in extensions if e[2] != EOS][: options.beam]
        stuck = stuck or (live if not going else [])
        live = [(-minus_total, [*ids, token]) for minus_total, _, token, ids in going]
    finished.sort(key=lambda found: -found[0])
    left = live if live or finished else stuck
    cut = [(ids, total / max(len(ids), 1) ** options.length_penalty, True) for total, ids in left]
    return ([(ids, score, False) for score, ids in finished] + cut)[: options.beam]


def outcome(hypotheses: Sequence[Hypothesis]) -> list[Found]:
    return [(h.tokens, pytest.approx(h.score, rel=1e-5, abs=1e-9), h.truncated) for h in hypotheses]


def equals_its_definition(case: Case) -> None:
    model = case.model()
    found = case.search(model, range(len(case.sources)), batch_tokens=case.batch_tokens)
    for place, hypotheses in enumerate(found):
        assert outcome(hypotheses) == definition(case, model, place)


def finds_everything(case: Case) -> None:
    """A beam as wide as the space gives all that is allowed, in order of score."""
    model, options = case.model(), case.options
    found = case.search(model, range(len(case.sources)), batch_tokens=100_000)
    for place, hypotheses in enumerate(found):
        source, scores = case.sources[place], {}
        memo: dict[tuple[int, ...], list[float]] = {}
        paths: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for n in range(1, case.longest(place) + 1):
            longer = []
            for (ids, total), token in itertools.product(paths, range(case.vocab)):
                if not may_follow(case, place, ids, token):
                    continue
                if ids not in memo:
                    each = log_p(model, source, ids)
                    memo[ids] = counting(each, ids, options.repetition_penalty)
                if token == EOS:
                    scores[ids] = (total + memo[ids][EOS]) / n**options.length_penalty
                else:
                    longer.append(((*ids, token), total + memo[ids][token]))
            paths = longer
        finished = [h for h in hypotheses if not h.truncated]
        assert {tuple(h.tokens) for h in finished} == set(scores)
        assert [h.score for h in finished] == pytest.approx(sorted(scores.values(), reverse=True))
        for h in finished:
            assert h.score == pytest.approx(scores[tuple(h.tokens)])


def keeps_its_promises(case: Case) -> None:
    """Neither batch nor order nor n_best nor beam padding counts; scores are the model's."""
    model, options = case.model(), case.options
    places = list(range(len(case.sources)))
    alone = [case.search(model, [place])[0] for place in places]
    expected = [outcome(hypotheses) for hypotheses in alone]
    rng = random.Random(case.seed)
    for changes in ({}, {"batch_tokens": case.batch_tokens}, {"n_best": 1}):
        order = rng.sample(places * 2, 2 * len(places))  # each twice, side by side or apart
        n_best = changes.get("n_best", options.beam)
        for place, hypotheses in zip(order, case.search(model, order, **changes), strict=True):
            assert outcome(hypotheses) == expected[place][:n_best]
    for place, hypotheses in zip(places, alone, strict=True):
        assert hypotheses
        whole = [h.tokens if h.truncated else [*h.tokens, EOS] for h in hypotheses]
        forced = force_score(model, [case.sources[place]] * len(whole), whole)
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
def test_a_search_equals_its_definition(examples: int) -> None:
    check(equals_its_definition, cases(), examples)


@examples(5, 100)
def test_a_beam_as_wide_as_the_space_finds_everything(examples: int) -> None:
    strategy = cases(kinds=("beam", "required"), longest=3, wide=True)
    check(finds_everything, strategy, examples)


@examples(10, 300)
def test_a_search_keeps_its_promises(examples: int) -> None:
    kinds = ("beam", "required", "groups", "coverage", "sampling")
    check(keeps_its_promises, cases(kinds=kinds), examples)
