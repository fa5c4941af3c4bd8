"""Search is right (promise 5) and blind to the batch (promise 4), on random tiny networks."""

import itertools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.data.errors import CheckpointError, SettingsError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.search.beam import (
    batches_by_length,
    beam_search,
    forbid,
    force_score,
    search,
)
from tfm.model.search.beams import Beams, best_extensions, stable_topk
from tfm.model.search.scorer import NetworkScorer
from tfm.model.settings import DecodingSettings
from tfm.model.transformer import Transformer

if TYPE_CHECKING:
    from conftest import Tiny

SPECIAL = (PAD, UNK, BOS)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("seed", "vocab", "longest"), [(1, 4, 4), (2, 5, 4), (3, 6, 3)])
def test_a_beam_as_wide_as_the_space_finds_every_sequence_in_order(
    tiny: "Tiny", seed: int, vocab: int, longest: int, length_penalty: float
) -> None:
    model, [source] = tiny.case(seed, vocab=vocab)
    width = vocab**longest
    options = DecodingSettings(beam=width, max_length=longest, length_penalty=length_penalty)
    (found,) = beam_search(model, [source], options, forbidden=[BOS], n_best=width)

    words = [i for i in range(vocab) if i not in (BOS, EOS)]
    sequences = (ids for n in range(longest) for ids in itertools.product(words, repeat=n))
    everything = {ids: tiny.log_p(model, source, [*ids, EOS]) for ids in sequences}
    scores = {ids: p / (len(ids) + 1) ** length_penalty for ids, p in everything.items()}
    best_first = sorted(scores, key=scores.__getitem__, reverse=True)
    finished = [h for h in found if not h.truncated]
    assert [tuple(h.tokens) for h in finished] == best_first
    assert [h.score for h in finished] == pytest.approx([scores[ids] for ids in best_first])
    assert [h.log_probability for h in finished] == pytest.approx(
        [everything[ids] for ids in best_first]
    )
    # What remains are all sequences that would have been longer.
    assert found[: len(finished)] == finished
    assert len({tuple(h.tokens) for h in found[len(finished) :]}) == (vocab - 2) ** longest
    (first,) = beam_search(model, [source], options, forbidden=[BOS])
    assert tiny.outcome(first) == tiny.outcome(found[:1])


@pytest.mark.parametrize("beam", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cached_batched_search_equals_full_decoding_of_each_sentence(
    tiny: "Tiny", beam: int, norm: str
) -> None:
    options = DecodingSettings(beam=beam, max_length=9)
    model, sources = tiny.case(beam + 10, 5, norm=norm)
    following = tiny.following(model, SPECIAL)
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=beam)
    for source, hypotheses in zip(sources, found, strict=True):
        assert tiny.outcome(hypotheses) == tiny.search(following, source, options)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(4, 9),
    beam=st.integers(1, 7),
    length_penalty=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    max_length=st.integers(1, 7),
    forbidden=st.sets(st.sampled_from([PAD, UNK, BOS, 4, 5]), max_size=3),
    count=st.integers(1, 4),
    batch_tokens=st.sampled_from([1, 40, 4096]),
)
def test_any_search_equals_its_definition(
    tiny: "Tiny",
    seed: int,
    vocab: int,
    beam: int,
    length_penalty: float,
    max_length: int,
    forbidden: set[int],
    count: int,
    batch_tokens: int,
) -> None:
    model, sources = tiny.case(seed, count, vocab=vocab)
    forbidden = {i for i in forbidden if i < vocab}
    following = tiny.following(model, forbidden)
    options = DecodingSettings(
        beam=beam, length_penalty=length_penalty, max_length=max_length, batch_tokens=batch_tokens
    )
    found = beam_search(model, sources, options, forbidden=forbidden, n_best=beam)
    for source, hypotheses in zip(sources, found, strict=True):
        assert tiny.outcome(hypotheses) == tiny.search(following, source, options)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_search_takes_the_best_id_at_every_step(
    tiny: "Tiny", seed: int, length_penalty: float
) -> None:
    model, sources = tiny.case(seed, 4)
    following = tiny.following(model, SPECIAL)
    options = DecodingSettings(beam=1, max_length=12, length_penalty=length_penalty)
    for source in sources:
        expected: list[int] = []
        while len(expected) < options.longest(len(source) - 1):
            scores = following(source, expected)
            expected.append(scores.index(max(scores)))
            if expected[-1] == EOS:
                break
        (found,) = beam_search(model, [source], options, forbidden=SPECIAL)
        assert found[0].truncated == (expected[-1] != EOS)
        assert found[0].tokens == [i for i in expected if i != EOS]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_the_score_is_the_forced_score_of_the_same_ids(tiny: "Tiny", length_penalty: float) -> None:
    model, sources = tiny.case(4, 6)
    options = DecodingSettings(beam=4, max_length=6, length_penalty=length_penalty)
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=4)
    pairs = [(s, h) for s, hypotheses in zip(sources, found, strict=True) for h in hypotheses]
    targets = [h.tokens if h.truncated else [*h.tokens, EOS] for _, h in pairs]
    forced = force_score(model, [source for source, _ in pairs], targets, batch_tokens=50)
    assert {h.truncated for _, h in pairs} == {True, False}  # both kinds are put to the test
    for (_, h), each in zip(pairs, forced, strict=True):
        assert h.token_log_probabilities == pytest.approx(each)
        assert h.log_probability == pytest.approx(sum(each))
        assert h.score == pytest.approx(sum(each) / len(each) ** length_penalty)


def test_forced_scores_are_those_of_each_pair_alone(tiny: "Tiny") -> None:
    model, sources = tiny.case(5, 4)
    targets = [[4, 5, EOS], [], [EOS], [6, 6, 6, 6, 4, EOS]]
    for source, target, scores in zip(
        sources, targets, force_score(model, sources, targets), strict=True
    ):
        after = tiny.log_probabilities(model, source, target)
        assert scores == pytest.approx([after[t, i].item() for t, i in enumerate(target)])


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_translation_does_not_depend_on_its_batch(
    tiny: "Tiny", beam: int, dtype: torch.dtype
) -> None:
    model, sources = tiny.case(6, 12)
    model.to(dtype)
    options = DecodingSettings(beam=beam, max_length=10)
    alone = [beam_search(model, [s], options, forbidden=SPECIAL, n_best=beam)[0] for s in sources]
    expected = [tiny.outcome(hypotheses) for hypotheses in alone]
    for batch_tokens in (1, 20 * beam, 4096):
        batched = DecodingSettings(beam=beam, max_length=10, batch_tokens=batch_tokens)
        found = beam_search(model, sources, batched, forbidden=SPECIAL, n_best=beam)
        assert [tiny.outcome(hypotheses) for hypotheses in found] == expected
    order = random.Random(1).sample(range(12), 12)
    shuffled = beam_search(
        model, [sources[i] for i in order], options, forbidden=SPECIAL, n_best=beam
    )
    assert [tiny.outcome(hypotheses) for hypotheses in shuffled] == [expected[i] for i in order]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_the_best_translations_do_not_depend_on_how_many_are_asked_for(
    tiny: "Tiny",
    length_penalty: float,
) -> None:
    model, sources = tiny.case(7, 8)
    options = DecodingSettings(beam=5, max_length=12, length_penalty=length_penalty)
    all_five = beam_search(model, sources, options, forbidden=SPECIAL, n_best=5)
    for n_best in (1, 2, 4):
        found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=n_best)
        assert [tiny.outcome(h) for h in found] == [tiny.outcome(h[:n_best]) for h in all_five]


@pytest.mark.parametrize("n_best", [0, 6])
def test_more_translations_than_beams_are_refused(tiny: "Tiny", n_best: int) -> None:
    with pytest.raises(SettingsError, match=rf"at most `beam` \(5\), but is {n_best}"):
        beam_search(tiny.network(1), [[EOS]], DecodingSettings(beam=5), n_best=n_best)


def test_hypotheses_cut_at_the_maximum_length_are_marked_and_rank_last(tiny: "Tiny") -> None:
    model, others = tiny.case(8, 20)
    sources = [[4, EOS], [4, 5, 6, 7, EOS]]
    options = DecodingSettings(beam=3, max_length=12, max_length_ratio=0.5)
    endless = beam_search(model, sources, options, forbidden=(*SPECIAL, EOS), n_best=3)
    for source, hypotheses in zip(sources, endless, strict=True):
        assert [len(h.tokens) for h in hypotheses] == 3 * [options.longest(len(source) - 1)]
        assert all(h.truncated for h in hypotheses)
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.score)
    # A length penalty this strong favours the longest; a finished one comes first all the same.
    short = DecodingSettings(beam=3, max_length=3, length_penalty=9)
    for hypotheses in beam_search(model, others, short, forbidden=SPECIAL, n_best=3):
        marks = [h.truncated for h in hypotheses]
        assert marks == sorted(marks)


def test_forbidden_ids_never_appear(tiny: "Tiny") -> None:
    model, sources = tiny.case(1, 10)
    free = beam_search(model, sources, DecodingSettings(max_length=10), n_best=5)
    used = {i for hypotheses in free for h in hypotheses for i in h.tokens}
    forbidden = used - {max(used)}
    found = beam_search(
        model, sources, DecodingSettings(max_length=10), forbidden=forbidden, n_best=5
    )
    assert len(used) > 3
    assert not {i for hypotheses in found for h in hypotheses for i in h.tokens} & forbidden


def test_equal_probabilities_go_to_the_lower_beam_and_id(tiny: "Tiny") -> None:
    model, [source] = tiny.case(10, scale=0)
    following = tiny.following(model, SPECIAL)
    for beam in (1, 2, 3, 5):
        options = DecodingSettings(beam=beam, max_length=4)
        (found,) = beam_search(model, [source], options, forbidden=SPECIAL, n_best=beam)
        assert tiny.outcome(found) == tiny.search(following, source, options)


@pytest.mark.parametrize("k", [1, 3, 8, 40])
def test_topk_takes_the_leftmost_of_equal_values(k: int) -> None:
    values = torch.randint(0, 5, (30, 40), generator=torch.manual_seed(1)).float()
    top, places = stable_topk(values, k)
    expected = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(top, expected.values[:, :k])
    assert torch.equal(places, expected.indices[:, :k])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_computes_no_numbers_is_named_as_damaged(tiny: "Tiny", value: float) -> None:
    model = tiny.network(11)
    with torch.no_grad():
        model.decoder[0].feed_forward.outer.bias[3] = value
    with pytest.raises(CheckpointError, match="not numbers: it is damaged, or its training div"):
        beam_search(model, [[4, EOS]], DecodingSettings())


def test_probabilities_of_half_precision_logits_are_fp32(tiny: "Tiny") -> None:
    model, sources = tiny.case(12, 5)
    model.to(torch.bfloat16)
    found = [h[0] for h in beam_search(model, sources, DecodingSettings(max_length=10))]
    scores = torch.tensor([p for h in found for p in h.token_log_probabilities])
    assert not torch.equal(scores, scores.bfloat16().float())
    forced = force_score(
        model, sources, [h.tokens if h.truncated else [*h.tokens, EOS] for h in found]
    )
    assert [p for each in forced for p in each] == pytest.approx(scores.tolist(), abs=0.2)


def test_batches_keep_to_the_budget_and_lose_nothing() -> None:
    lengths = random.Random(2).choices(range(1, 30), k=100)
    batches = batches_by_length([*lengths, 200], 64)
    assert sorted(i for batch in batches for i in batch) == list(range(101))
    assert batches[0] == [100]  # longer than the budget: alone
    assert all(max(lengths[i] for i in batch) * len(batch) <= 64 for batch in batches[1:])
    assert len(batches) <= sum(lengths) // 64 + 15


def test_nothing_to_translate_gives_nothing(tiny: "Tiny") -> None:
    assert beam_search(tiny.network(1), [], DecodingSettings()) == []
    assert force_score(tiny.network(1), [], []) == []


class Average:
    """Two networks as one scorer: it averages their probabilities."""

    def __init__(self, models: Sequence[Transformer], sources: Sequence[Sequence[int]]) -> None:
        self.parts = [NetworkScorer(model, sources) for model in models]
        self.device = self.parts[0].device

    def log_probabilities(self, beams: Beams) -> torch.Tensor:
        each = torch.stack([part.log_probabilities(beams) for part in self.parts])
        return each.exp().mean(0).log()

    def keep(self, sentences: torch.Tensor) -> None:
        for part in self.parts:
            part.keep(sentences)

    def reorder(self, rows: torch.Tensor) -> None:
        for part in self.parts:
            part.reorder(rows)


@pytest.mark.parametrize("beam", [1, 4])
def test_several_networks_are_searched_as_one(tiny: "Tiny", beam: int) -> None:
    first, sources = tiny.case(20, 6)
    models = first, tiny.network(21)
    options = DecodingSettings(beam=beam, max_length=8)
    found = search(lambda batch: Average(models, batch), sources, options, n_best=beam)

    def following(source: Sequence[int], ids: Sequence[int]) -> list[float]:
        each = torch.stack([tiny.log_probabilities(model, source, ids)[-1] for model in models])
        averaged: list[float] = each.exp().mean(0).log().tolist()
        return averaged

    for source, hypotheses in zip(sources, found, strict=True):
        assert tiny.outcome(hypotheses) == tiny.search(following, source, options)
    alone = beam_search(models[0], sources, options, n_best=beam)
    assert [tiny.outcome(h) for h in found] != [tiny.outcome(h) for h in alone]


def test_processors_decide_in_turn_by_what_was_chosen_before(tiny: "Tiny") -> None:
    model, sources = tiny.case(22, 8)
    options = DecodingSettings(beam=3, max_length=8)

    def no_repetition(next_ids: torch.Tensor, beams: Beams) -> torch.Tensor:
        return next_ids.scatter(2, beams.tokens[:, :, -1:], -torch.inf)

    processors = [forbid(SPECIAL, torch.device("cpu")), no_repetition]
    found = search(
        lambda batch: NetworkScorer(model, batch), sources, options, processors=processors, n_best=3
    )

    def following(source: Sequence[int], ids: Sequence[int]) -> list[float]:
        scores = tiny.log_probabilities(model, source, ids)[-1]
        scores[[*SPECIAL, *ids[-1:]]] = -torch.inf
        kept: list[float] = scores.tolist()
        return kept

    for source, hypotheses in zip(sources, found, strict=True):
        assert tiny.outcome(hypotheses) == tiny.search(following, source, options)


@pytest.mark.parametrize("vocab", [5, 64, 130, 192])
def test_the_best_extension_alone_is_the_first_of_many(vocab: int) -> None:
    draw = torch.Generator().manual_seed(vocab)
    next_ids = torch.randint(-3, 0, (50, 1, vocab), generator=draw).float()  # with many ties
    next_ids[:, :, ::3] = -torch.inf
    total = -torch.rand(50, 1, generator=draw)
    (alone, many) = (best_extensions(total, next_ids, count) for count in (1, 2))
    for one, several in zip(alone, many, strict=True):
        assert torch.equal(one, several[:, :1])
