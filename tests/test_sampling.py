"""Samples come from the model's distribution, and depend on source and seed alone."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tfm.data.errors import SettingsError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model import Translator
from tfm.model.search.beam import beam_search, force_score
from tfm.model.search.mbr import rank
from tfm.model.search.sampling import draw
from tfm.model.settings import DecodingSettings

if TYPE_CHECKING:
    from conftest import Tiny

SPECIAL = (PAD, UNK, BOS)
SAMPLING = DecodingSettings(sampling=True, max_length=8)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_samples_are_as_frequent_as_they_are_probable(tiny: "Tiny", temperature: float) -> None:
    model, [source] = tiny.case(1, vocab=6, scale=2)
    following, count = tiny.following(model, SPECIAL), 4000
    options = replace(SAMPLING, max_length=2, temperature=temperature)
    (found,) = beam_search(model, [source], options, forbidden=SPECIAL, n_best=count)
    seen = Counter((tuple(h.tokens), h.truncated) for h in found)

    def p(ids: Sequence[int]) -> torch.Tensor:
        scores = torch.tensor(following(source, ids), dtype=torch.float64)
        return (scores / temperature).softmax(-1)

    words = range(EOS + 1, 6)
    expected = {((), False): p([])[EOS].item()}
    for i in words:
        expected[(i,), False] = (p([])[i] * p([i])[EOS]).item()
        for j in words:
            expected[(i, j), True] = (p([])[i] * p([i])[j]).item()
    assert sum(expected.values()) == pytest.approx(1)
    assert set(seen) <= set(expected)
    for outcome, probability in expected.items():  # 5 standard deviations
        spread = (probability * (1 - probability) / count) ** 0.5
        assert abs(seen[outcome] / count - probability) < 5 * spread + 1e-9


def test_samples_depend_on_the_source_and_the_seed_alone(tiny: "Tiny") -> None:
    model, sources = tiny.case(2, 12, scale=2)
    sources.append(sources[3])
    expected = [
        beam_search(model, [source], SAMPLING, forbidden=SPECIAL, n_best=5)[0] for source in sources
    ]
    tokens = [[h.tokens for h in each] for each in expected]
    assert tokens[3] == tokens[12]
    assert len(set(map(str, tokens))) > 8
    for batch_tokens in (1, 40, 4096):
        for n_best in (1, 3, 5):
            options = replace(SAMPLING, batch_tokens=batch_tokens)
            order = random.Random(n_best).sample(range(13), 13)
            found = beam_search(
                model, [sources[i] for i in order], options, forbidden=SPECIAL, n_best=n_best
            )
            for i, each in zip(order, found, strict=True):
                assert [h.tokens for h in each] == tokens[i][:n_best]
                assert [h.score for h in each] == pytest.approx(
                    [h.score for h in expected[i]][:n_best]
                )
    other = replace(SAMPLING, sampling_seed=2)
    found = beam_search(model, sources, other, forbidden=SPECIAL, n_best=5)
    assert [[h.tokens for h in each] for each in found] != tokens


def test_a_sample_has_the_probability_that_the_model_gives_it(tiny: "Tiny") -> None:
    model, sources = tiny.case(3, 8, scale=2)
    options = replace(SAMPLING, temperature=0.7, top_k=4, length_penalty=0.5)
    found = [h for (h,) in beam_search(model, sources, options, forbidden=SPECIAL)]
    targets = [h.tokens if h.truncated else [*h.tokens, EOS] for h in found]
    assert {h.truncated for h in found} == {True, False}
    for h, forced in zip(found, force_score(model, sources, targets), strict=True):
        assert h.token_log_probabilities == pytest.approx(forced)
        assert h.log_probability == pytest.approx(sum(forced))
        assert h.score == pytest.approx(sum(forced) / len(forced) ** 0.5)
        assert len(forced) == 8 if h.truncated else EOS not in h.tokens


P = torch.tensor([0.4, 0.05, 0.3, 0.01, 0.24])


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 2, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 2}),
        ({"top_p": 0.95}, {0, 1, 2, 4}),
        ({"epsilon": 0.04}, {0, 1, 2, 4}),
        ({"epsilon": 0.99}, {0}),
        ({"top_k": 3, "top_p": 0.6}, {0, 2}),
        ({"top_k": 2, "epsilon": 0.04}, {0, 2}),
        ({"top_k": 3, "temperature": 5.0, "top_p": 0.1}, {0}),
    ],
)
def test_a_cut_leaves_the_most_probable(changes: dict[str, float], left: set[int]) -> None:
    options = replace(SAMPLING, **changes)  # type: ignore[arg-type]
    chance = torch.linspace(0, 1 - 1e-9, 2001, dtype=torch.float64)
    drawn = draw(P.log().expand(1, 2001, 5), chance[None], options)[0]
    assert set(drawn.tolist()) == left
    kept = torch.tensor([p if i in left else 0.0 for i, p in enumerate(P.tolist())])
    kept = kept ** (1 / options.temperature)
    shares = torch.bincount(drawn, minlength=5) / 2001
    torch.testing.assert_close(shares, kept / kept.sum(), atol=2e-3, rtol=0)


def test_the_most_probable_of_one_is_greedy_search(tiny: "Tiny") -> None:
    model, sources = tiny.case(4, 10, scale=2)
    greedy = beam_search(model, sources, DecodingSettings(beam=1, max_length=8), forbidden=SPECIAL)
    sampled = beam_search(model, sources, replace(SAMPLING, top_k=1), forbidden=SPECIAL)
    assert [h.tokens for (h,) in sampled] == [h.tokens for (h,) in greedy]
    cold = beam_search(model, sources, replace(SAMPLING, temperature=0.01), forbidden=SPECIAL)
    assert [h.tokens for (h,) in cold] == [h.tokens for (h,) in greedy]


def test_rules_and_penalties_hold_for_samples(tiny: "Tiny") -> None:
    model, sources = tiny.case(5, 8, scale=2)

    def sample(**changes: float) -> list[list[int]]:
        options = replace(SAMPLING, **changes)  # type: ignore[arg-type]
        found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=6)
        return [h.tokens for each in found for h in each]

    def repeats(found: list[list[int]]) -> int:
        return sum(len(ids) - len(set(ids)) for ids in found)

    plain = sample()
    assert min(map(len, plain)) < 5 and repeats(plain) > 20
    assert min(map(len, sample(min_length=6))) >= 5
    assert repeats(sample(no_repeat_ngram=1)) == 0  # at last nothing may follow
    assert repeats(sample(repetition_penalty=9.0)) < 0.75 * repeats(plain)


def test_samples_of_a_translator_are_candidates_of_equal_weight(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    translator.decoding = replace(translator.decoding, sampling=True, beam=8, max_length=12)
    text = "A dog runs."
    (drawn,) = translator.translate_all([text], n_best=8)
    texts = [each.text for each in drawn.n_best if not each.truncated]
    texts = texts or [each.text for each in drawn.n_best]
    ranked = rank(texts, [1.0] * len(texts))
    (chosen,) = translator.translate_all([text], mbr="chrf")
    assert chosen.text == texts[ranked[0].place]
    assert translator.translate([text], beam=1) == [drawn.text]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(temperature=0.5), "`temperature` must be 1 without sampling, but is 0.5"),
        (dict(top_k=5), "`top_k` must be 0 without sampling, but is 5"),
        (dict(sampling=True, temperature=0), "`temperature` must be at least 0.01 and at most"),
        (dict(sampling=True, top_k=-1), "`top_k` must be at least 0"),
        (dict(sampling=True, top_p=0), "`top_p` must be above 0 and at most 1"),
        (dict(sampling=True, epsilon=1.0), "`epsilon` must be at least 0 and below 1"),
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DecodingSettings(**changes)  # type: ignore[arg-type]


def test_as_many_samples_as_one_likes(tiny: "Tiny") -> None:
    model = tiny.network(6, scale=2)
    found = beam_search(model, [[4, EOS]], SAMPLING, forbidden=SPECIAL, n_best=50)
    assert len(found[0]) == 50
    assert len(list(itertools.groupby(h.tokens for h in found[0]))) > 10
    with pytest.raises(SettingsError, match="`n_best` must be at least 1, but is 0"):
        beam_search(model, [[4, EOS]], SAMPLING, n_best=0)
