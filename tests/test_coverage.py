"""The coverage penalty is the formula of its paper, on the attention that the model has."""

import math
import random
from collections.abc import Sequence

import pytest
import torch

from tfm.data.errors import SettingsError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.attention.alignment import alignment_layer
from tfm.model.inspection.capture import capture
from tfm.model.search.beam import Hypothesis, beam_search
from tfm.model.search.ensemble import Ensemble
from tfm.model.search.prepared import prepare
from tfm.model.settings import DecodingSettings, ModelSettings
from tfm.model.transformer import Transformer

SPECIAL = (PAD, UNK, BOS)
BETA = 0.7


def random_model(seed: int, layers: int) -> Transformer:
    torch.manual_seed(seed)
    shape = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=layers)
    model = Transformer(shape, source_vocab=12, target_vocab=12, joint=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    return model.eval()


def random_sources(count: int) -> list[list[int]]:
    rng = random.Random(count)
    return [[*rng.choices(range(EOS + 1, 12), k=rng.randint(1, 7)), EOS] for _ in range(count)]


def penalty(models: Sequence[Transformer], source: Sequence[int], found: Hypothesis) -> float:
    """Return the term of the formula, from attention as `tfm inspect-attention` records it."""
    target = found.tokens if found.truncated else [*found.tokens, EOS]
    maps = []
    for model in models:
        cross = capture(model, source, target).cross  # L H T S
        maps.append(cross[alignment_layer(len(cross)) - 1].mean(0))
    attention = sum(maps) / len(maps)
    sums = attention.sum(0)[:-1]  # the end of the source is no piece of it
    return BETA * sum(math.log(max(min(s, 1.0), 1e-10)) for s in sums.tolist())


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("members", [1, 2])
def test_the_score_has_the_penalty_and_ranks(layers: int, members: int) -> None:
    models = [random_model(seed, layers) for seed in range(members)]
    sources = random_sources(9)
    plain = DecodingSettings(beam=4, max_length=4)
    options = DecodingSettings(beam=4, max_length=4, coverage_penalty=BETA, batch_tokens=60)
    search = Ensemble([prepare(model) for model in models])
    before = beam_search(search, sources, plain, forbidden=SPECIAL, n_best=4)
    after = beam_search(search, sources, options, forbidden=SPECIAL, n_best=4)
    moved = 0
    for source, old, new in zip(sources, before, after, strict=True):
        scores = {tuple(h.tokens): h.score + penalty(models, source, h) for h in old}
        assert {tuple(h.tokens) for h in new} == set(scores)
        for h in new:
            assert h.score == pytest.approx(scores[tuple(h.tokens)], abs=1e-4)
        assert new == sorted(new, key=lambda h: (h.truncated, -h.score))
        moved += [h.tokens for h in new] != [h.tokens for h in old]
    assert moved  # the penalty changes the order somewhere
    assert {h.truncated for each in after for h in each} == {True, False}
    best = beam_search(search, sources, options, forbidden=SPECIAL, n_best=1)
    assert [h.tokens for (h,) in best] == [each[0].tokens for each in after]


def test_a_search_with_it_leaves_the_model_as_it_was() -> None:
    model = random_model(5, 2)
    prepared = prepare(model)
    sources = random_sources(4)
    plain = DecodingSettings(max_length=6)
    before = beam_search(prepared, sources, plain)
    beam_search(prepared, sources, DecodingSettings(max_length=6, coverage_penalty=1.0))
    assert beam_search(prepared, sources, plain) == before


def test_what_it_cannot_go_with_is_refused() -> None:
    with pytest.raises(SettingsError, match="`coverage_penalty` must be 0 with sampling"):
        DecodingSettings(sampling=True, coverage_penalty=0.2)
    with pytest.raises(SettingsError, match="`coverage_penalty` must be at least 0"):
        DecodingSettings(coverage_penalty=-1.0)
    with pytest.raises(SettingsError, match=r"at most `beam` \(5\), but is 6"):
        beam_search(random_model(1, 1), [[EOS]], DecodingSettings(coverage_penalty=1.0), n_best=6)
