"""A prepared network decodes position by position what the network decodes at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tfm.model.attention import cached
from tfm.model.attention.padding import Padding
from tfm.model.search.cache import DecoderCache
from tfm.model.search.prepared import Prepared, prepare
from tfm.model.search.products import Packed, Product
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer

LENGTHS = [9, 4, 6, 1]
SOURCE = Padding.from_lengths(LENGTHS)
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 0.1}


def build(dtype: torch.dtype = torch.float32, **changes: Any) -> Transformer:
    torch.manual_seed(1)
    shape = dict(d_model=32, d_ff=64, heads=4, encoder_layers=2, decoder_layers=2)
    settings = ModelSettings(**shape | changes)
    model = Transformer(settings, source_vocab=40, target_vocab=40, joint=True)
    for parameter in model.parameters():  # biases and norms too are other than at first
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() == 1 else 0.2)
    return model.to(dtype).eval()


def random_ids(*shape: int) -> Tensor:
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(sum(shape)))


IDS = random_ids(4, 9)


@pytest.fixture(params=["one kernel", "two products"], autouse=True)
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "FEW", {"one kernel": 1000, "two products": 0}[request.param])


def begin(model: Transformer) -> tuple[Tensor, Prepared, DecoderCache]:
    """Return the memory of IDS, and what decodes it."""
    memory = model.encode(IDS, SOURCE)
    prepared = prepare(model)
    return memory, prepared, prepared.start(prepared.encode(IDS, SOURCE), SOURCE)


def steps(prepared: Prepared, cache: DecoderCache, target_ids: Tensor) -> Tensor:
    """Feed target ids, R T, one position at a time and return hidden states, R T D."""
    return torch.stack([prepared.step(tokens, cache) for tokens in target_ids.T], dim=1)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[expected.dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.inference_mode()
def test_cached_steps_equal_decoding_at_once(
    norm: str, activation: str, dtype: torch.dtype
) -> None:
    model = build(dtype, norm=norm, activation=activation)
    memory, prepared, cache = begin(model)
    ids = random_ids(4, 40)  # more than the cache has room for at first
    expected = model.decode(ids, memory, source=SOURCE)
    found = steps(prepared, cache, ids)
    assert_close(found, expected)
    assert_close(prepared.project(found), model.project(expected))
    assert cache.length == 40


@torch.inference_mode()
def test_beams_of_a_sentence_share_its_memory_and_nothing_else() -> None:
    model = build()
    memory, prepared, cache = begin(model)
    beams = random_ids(4, 3, 20)
    found = steps(prepared, cache, beams.view(12, 20)).view(4, 3, 20, -1)
    for n in range(3):
        assert_close(found[:, n], model.decode(beams[:, n], memory, source=SOURCE))


@torch.inference_mode()
def test_reordered_rows_go_on_from_the_past_of_the_row_they_copy() -> None:
    model = build()
    memory, prepared, cache = begin(model)
    first = random_ids(4, 3)
    steps(prepared, cache, first)  # one beam each
    rows = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    cache.reorder(rows)  # two
    continued = random_ids(8, 20)
    steps(prepared, cache, continued)
    swapped = torch.tensor([1, 1, 3, 2, 4, 5, 6, 6])
    cache.reorder(swapped)
    last = random_ids(8)
    found = prepared.step(last, cache)
    whole = torch.cat([first[rows], continued], 1)[swapped]
    whole = torch.cat([whole, last[:, None]], 1)
    wide = Padding.from_lengths([n for n in LENGTHS for _ in range(2)])
    expected = model.decode(whole, memory.repeat_interleave(2, 0), source=wide)[:, -1]
    assert_close(found, expected)


@torch.inference_mode()
def test_sentences_that_are_left_go_on_as_if_the_others_had_never_been() -> None:
    model = build()
    memory, prepared, cache = begin(model)
    ids = random_ids(4, 7)
    steps(prepared, cache, ids[:, :4])
    kept = torch.tensor([3, 1])
    cache.keep(kept)
    assert cache.source.longest == 4  # the longest source left
    cache.reorder(kept)  # one beam: rows are sentences
    found = steps(prepared, cache, ids[kept, 4:])
    assert_close(found, model.decode(ids, memory, source=SOURCE)[kept, 4:])


def test_preparing_leaves_the_model_as_it_is() -> None:
    model = build()
    before = str(model), {name: value.clone() for name, value in model.state_dict().items()}
    prepared = prepare(model)
    assert str(model) == before[0] != str(prepared.network)
    assert all(torch.equal(value, before[1][name]) for name, value in model.state_dict().items())
    assert prepare(prepared) is prepared


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("rows", [1, 3, 70])
@torch.inference_mode()
def test_packed_products_equal_plain_ones(rows: int, activation: str) -> None:
    weight, bias, x = torch.randn(24, 16), torch.randn(24), torch.randn(rows, 16)
    if not Packed.suits(weight):
        pytest.skip("this PyTorch has no oneDNN")
    plain, packed = (make(weight, bias, activation=activation) for make in (Product, Packed))
    torch.testing.assert_close(packed(x), plain(x))
    plain, packed = (make(weight, None) for make in (Product, Packed))
    plus = torch.randn(rows, 24)
    torch.testing.assert_close(packed(x, plus=plus), x @ weight.T + plus)
    torch.testing.assert_close(plain(x, plus=plus), x @ weight.T + plus)
