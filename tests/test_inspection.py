"""The dumped maps are the ones the model used, and the report says what they are of."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfm.data.corpus import Pair
from tfm.data.errors import UserError
from tfm.data.settings import TokenizerSettings
from tfm.data.tokenizer import BOS, EOS, Tokenizer, train_tokenizer
from tfm.model.attention import formula, sdpa
from tfm.model.attention.alignment import alignment_layer
from tfm.model.attention.choice import KINDS, AttentionPlan, resolve
from tfm.model.attention.multihead import SelfAttention
from tfm.model.attention.padding import Padding
from tfm.model.inspection import report as report_module
from tfm.model.inspection.capture import attention_modules, capture, recorded
from tfm.model.inspection.export import pharaoh, to_json
from tfm.model.inspection.report import (
    AttentionReport,
    align,
    inspect_attention,
    inspect_pair,
)
from tfm.model.inspection.sentence import merge_words, source_sentence, target_sentence
from tfm.model.inspection.views import views
from tfm.model.search.prepared import prepare
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer
from tfm.model.translator import Translator

SOURCE = "A man rides a red bike."
TARGET = "Ein Mann fährt ein rotes Fahrrad."
TEXTS = [
    Pair(SOURCE, TARGET),
    Pair("The cat sleeps.", "Die Katze schläft."),
    Pair("Two children play in the garden.", "Zwei Kinder spielen im Garten."),
]
H = 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerSettings(vocab_size=330))


@pytest.fixture(params=["pre", "post"])
def model(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(3)
    settings = ModelSettings(
        d_model=32, d_ff=64, heads=H, encoder_layers=2, decoder_layers=3, norm=request.param
    )
    model = Transformer(
        settings,
        source_vocab=tokenizer.source_size,
        target_vocab=tokenizer.target_size,
        joint=True,
    )
    with torch.no_grad():  # larger weights, so that attention is far from uniform
        for parameter in model.parameters():
            parameter.mul_(1.3)
    model.use_attention(AttentionPlan(sdpa.attend, sdpa.attend, sdpa.attend))
    return model.eval()


@pytest.fixture
def report(model: Transformer, tokenizer: Tokenizer) -> AttentionReport:
    return inspect_pair(model, tokenizer, SOURCE, TARGET)


def ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    return [*tokenizer.encode_source(SOURCE), EOS], [*tokenizer.encode_target(TARGET), EOS]


def test_maps_have_all_layers_heads_and_pieces(report: AttentionReport) -> None:
    S, T = len(report.source.ids), len(report.target.ids)
    assert report.capture.encoder.shape == (2, H, S, S)
    assert report.capture.decoder.shape == (3, H, T, T)
    assert report.capture.cross.shape == (3, H, T, S)
    assert report.source.pieces[-1] == report.target.pieces[-1] == "</s>"
    assert report.inputs == ("<s>", *report.target.pieces[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_distributions(report: AttentionReport, kind: str) -> None:
    weights = getattr(report.capture, kind)
    assert weights.dtype == np.float32 and weights.min() >= 0
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_the_decoder_sees_nothing_that_is_yet_to_come(report: AttentionReport) -> None:
    weights = report.capture.decoder
    assert np.triu(weights, 1).max() == 0
    assert weights[..., *np.tril_indices(weights.shape[-1])].min() > 0


def by_hand(
    x: Tensor, memory: Tensor, module: torch.nn.Module, *, causal: bool
) -> np.ndarray[Any, Any]:
    """Compute one sentence's weights from W_Q and W_K, head by head, in fp64."""
    D = x.shape[-1]
    K = D // H
    own = isinstance(module, SelfAttention)
    linears: Any = [module.projection] if own else [module.query, module.key_value]
    W = torch.cat([linear.weight for linear in linears]).detach().double()
    b = torch.cat([linear.bias for linear in linears]).detach().double()
    q = (x[0].double() @ W[:D].T + b[:D]).numpy()
    k = (memory[0].double() @ W[D : 2 * D].T + b[D : 2 * D]).numpy()
    heads = []
    for h in range(H):
        scores = q[:, h * K : (h + 1) * K] @ k[:, h * K : (h + 1) * K].T / math.sqrt(K)
        if causal:
            scores[np.triu_indices(len(scores), 1)] = -np.inf
        exponentials = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(exponentials / exponentials.sum(1, keepdims=True))
    return np.stack(heads)


def test_weights_are_those_of_the_formula_on_what_each_layer_reads(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    source, target = ids(tokenizer)
    found = capture(model, source, target)
    read: dict[Any, Tensor] = {}  # what the fused run fed into each attention

    def keep(residual: Any) -> Callable[[Tensor], Tensor]:
        enter = residual.enter

        def entered(x: Tensor) -> Tensor:
            read[residual] = enter(x)
            return read[residual]

        return entered

    layers = [*model.encoder, *model.decoder]
    for layer in layers:
        for name in ("around_attention", "around_self", "around_cross"):
            if hasattr(layer, name):
                residual = getattr(layer, name)
                residual.enter = keep(residual)
    with torch.no_grad():
        memory = model.encode(torch.tensor([source]), Padding.from_lengths([len(source)]))
        model.decode(
            torch.tensor([[BOS, *target[:-1]]]), memory, source=Padding.from_lengths([len(source)])
        )
    for i, layer in enumerate(model.encoder):
        x = read[layer.around_attention]
        expected = by_hand(x, x, layer.self_attention, causal=False)
        np.testing.assert_allclose(found.encoder[i], expected, atol=1e-5)
    for i, layer in enumerate(model.decoder):
        x = read[layer.around_self]
        expected = by_hand(x, x, layer.self_attention, causal=True)
        np.testing.assert_allclose(found.decoder[i], expected, atol=1e-5)
        expected = by_hand(read[layer.around_cross], memory, layer.cross_attention, causal=False)
        np.testing.assert_allclose(found.cross[i], expected, atol=1e-5)


def test_forced_rows_equal_the_steps_of_cached_decoding(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    source, target = ids(tokenizer)
    found = capture(model, source, target)
    padding = Padding.from_lengths([len(source)])
    prepared = prepare(model)
    weights: list[torch.Tensor] = []  # H keys of each attention, in the order of events

    def attend(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        _, H, _, K = keys.shape
        scores = q.view(1, H, 1, K) @ keys.transpose(2, 3) / K**0.5 + bias
        weights.append(scores.softmax(-1)[0, :, 0])
        return (scores.softmax(-1) @ values).view(1, -1)

    with torch.inference_mode():
        cache = prepared.start(prepared.encode(torch.tensor([source]), padding), padding)
        cache.attend = attend
        for token in [BOS, *target[:-1]]:
            prepared.step(torch.tensor([token]), cache)
    each = iter(weights)
    for t in range(len(target)):
        for layer in range(3):
            own, cross = next(each)[:, : t + 1], next(each)[:, : len(source)]
            np.testing.assert_allclose(found.decoder[layer, :, t, : t + 1], own, atol=1e-5)
            np.testing.assert_allclose(found.cross[layer, :, t], cross, atol=1e-5)


def test_log_probabilities_are_those_of_the_forced_translation(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    source, target = ids(tokenizer)
    found = capture(model, source, target).log_probabilities
    with torch.no_grad():
        logits = model(
            torch.tensor([source]),
            torch.tensor([[BOS, *target[:-1]]]),
            source=Padding.from_lengths([len(source)]),
        )
    expected = [float(logits[0, t].log_softmax(-1)[piece]) for t, piece in enumerate(target)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_fused_backend_passes_the_check(report: AttentionReport) -> None:
    check = report.capture.verification
    assert check.passed and check.same_choices
    assert check.largest < 1e-4 and check.logits < 1e-3


def unscaled(q: Tensor, k: Tensor, v: Tensor, **facts: Any) -> Tensor:
    return formula.attend(q * 1.05, k, v, **facts)


def unmasked(q: Tensor, k: Tensor, v: Tensor, **facts: Any) -> Tensor:
    return formula.attend(q, k, v, **facts | {"causal": False})


def broken(q: Tensor, k: Tensor, v: Tensor, **facts: Any) -> Tensor:
    return torch.full_like(formula.attend(q, k, v, **facts), torch.nan)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("encoder", unscaled), ("cross", unscaled), ("decoder", unmasked), ("cross", broken)],
)
def test_a_backend_that_is_off_is_found_out(
    model: Transformer, tokenizer: Tokenizer, kind: str, wrong: Any
) -> None:
    plan = {name: wrong if name == kind else sdpa.attend for name in KINDS}
    model.use_attention(AttentionPlan(**plan))
    check = capture(model, *ids(tokenizer)).verification
    assert not check.passed
    assert [name for name in KINDS if not check.attention[name] < 1e-4] == [kind]


def test_half_precision_is_checked_with_its_own_rounding(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    half = copy.deepcopy(model).bfloat16()
    found = capture(half, *ids(tokenizer))
    np.testing.assert_array_equal(found.cross, capture(half.float(), *ids(tokenizer)).cross)
    assert found.cross.dtype == np.float32  # maps are fp32 whatever translates
    assert found.verification.precision == "bfloat16" and found.verification.passed
    assert found.verification.largest > 1e-4


def test_the_model_is_left_as_it_was(model: Transformer, tokenizer: Tokenizer) -> None:
    modules = [module for kind in KINDS for module in attention_modules(model)[kind]]
    model.train()
    capture(model, *ids(tokenizer))
    assert model.training
    assert all(module.attend is sdpa.attend for module in modules)


def test_backends_come_back_after_an_exception(model: Transformer) -> None:
    modules = [module for kind in KINDS for module in attention_modules(model)[kind]]
    with pytest.raises(KeyError), recorded(model):
        assert all(module.attend is not sdpa.attend for module in modules)
        raise KeyError
    assert all(module.attend is sdpa.attend for module in modules)


def with_form(tokenizer: Tokenizer, form: Any, **settings: Any) -> Transformer:
    torch.manual_seed(3)
    size: dict[str, Any] = dict(d_model=32, d_ff=64, heads=H, encoder_layers=3, decoder_layers=2)
    chosen = ModelSettings(**size, encoder_attention=form, window=4, **settings)
    vocabulary = tokenizer.source_size
    model = Transformer(chosen, source_vocab=vocabulary, target_vocab=vocabulary, joint=True)
    plan = resolve(
        "auto",
        device=torch.device("cpu"),
        dtype=torch.float32,
        dropout=0.0,
        training=False,
        encoder_forms=chosen.encoder_forms,
        window=chosen.window,
    )
    model.use_attention(plan)
    return model.eval()


@pytest.mark.parametrize("form", ["local", "linear"])
def test_maps_of_local_and_linear_layers_are_their_implied_weights(
    tokenizer: Tokenizer, form: str
) -> None:
    found = inspect_pair(with_form(tokenizer, form, full_every=2), tokenizer, SOURCE, TARGET)
    assert found.capture.verification.passed and found.capture.verification.largest < 1e-5
    maps = found.capture.encoder
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
    places = np.arange(maps.shape[-1])
    far = np.abs(places[:, None] - places) > 2
    assert [bool(layer[:, far].any()) for layer in maps] == [
        form == "linear",
        True,
        form == "linear",
    ]
    assert found.encoder_forms == (form, "full", form)
    caption = next(view.caption for view in views(found) if view.name == "encoder")
    assert f"Attention in layers 1, 3 is {form}" in caption
    described = to_json(found, maps=None)["encoder_attention"]
    assert described == {"layers": found.encoder_forms} | ({"window": 4} if form == "local" else {})


@pytest.mark.parametrize("form", ["local", "linear"])
def test_softmax_over_all_keys_in_place_of_another_form_is_found_out(
    tokenizer: Tokenizer, form: str
) -> None:
    model = with_form(tokenizer, form)
    for layer in model.encoder:
        layer.self_attention.attend = sdpa.attend
    assert not capture(model, *ids(tokenizer)).verification.passed


HARD_TEXTS = [
    SOURCE,
    "  Wow... it's  10.50 €, isn't it?! ",
    "猫が好き。 👍🏽 e\u0301",
    "</s> <unk> \u2581 a",
    "x",
    "...",
]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_pieces_and_words_cover_the_text(tokenizer: Tokenizer, text: str) -> None:
    for sentence in (
        source_sentence(tokenizer, text, [*tokenizer.encode_source(text), EOS]),
        target_sentence(tokenizer, [*tokenizer.encode_target(text), EOS]),
    ):
        assert sentence.text == text
        assert "".join(sentence.word_texts) == "".join(text.split())
        assert sentence.spans[-1] == (len(text), len(text))
        owners = sentence.word_of_piece
        assert owners[-1] == -1 and owners[:-1] == sorted(owners[:-1])
        np.testing.assert_allclose(sentence.membership().sum(1), 1, atol=1e-6)
        for (start, end), owner in zip(sentence.spans[:-1], owners, strict=False):
            word = sentence.words[owner]
            assert text[start:end].isspace() or (start < word[1] and word[0] < end)


def test_a_translation_split_as_no_encoder_would_has_the_same_words(tokenizer: Tokenizer) -> None:
    names = ["\u2581", *"Mann", "<0xC3>", "<0xA4>", "</s>"]  # letters, then the bytes of "ä"
    found = [tokenizer.target.id_of(name) for name in names]
    sentence = target_sentence(tokenizer, [i for i in found if i is not None])
    assert sentence.text == "Mannä" and sentence.word_texts == ["Mannä"]
    assert sentence.word_of_piece == [0] * (len(sentence.ids) - 1) + [-1]


def test_words_sum_over_sources_and_average_over_targets(report: AttentionReport) -> None:
    words = report.cross_words
    assert words.shape[-2:] == (len(report.target.words) + 1, len(report.source.words) + 1)
    np.testing.assert_allclose(words.sum(-1), 1, atol=1e-5)
    piece, owners = report.capture.cross[1, 2], np.array(report.source.word_of_piece)
    rows = np.array(report.target.word_of_piece)
    expected = piece[rows == 2][:, owners == 4].sum(1).mean()
    assert words[1, 2, 2, 4] == pytest.approx(expected, abs=1e-6)
    assert words[1, 2, -1, -1] == pytest.approx(piece[-1, -1], abs=1e-6)  # </s> is its own word


def test_a_piece_over_several_words_is_shared_out(tokenizer: Tokenizer) -> None:
    sentence = source_sentence(tokenizer, "ab", [5, EOS])
    both = type(sentence)(
        "a.b", (5, EOS), ("a.b", "</s>"), ((0, 3), (3, 3)), ((0, 1), (1, 2), (2, 3))
    )
    np.testing.assert_allclose(both.membership(), [[1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0, 1]])
    merged = merge_words(np.array([[0.9, 0.1], [0.5, 0.5]], np.float32), both, both)
    np.testing.assert_allclose(merged.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(merged[0], [0.3, 0.3, 0.3, 0.1], atol=1e-6)


def test_alignment_follows_the_largest_share(tokenizer: Tokenizer) -> None:
    source = source_sentence(tokenizer, SOURCE, [*tokenizer.encode_source(SOURCE), EOS])
    target = target_sentence(tokenizer, [*tokenizer.encode_target(TARGET), EOS])
    wanted = [0, 1, 2, 3, 5, 4, 6]  # a permutation, with one crossing
    piece = np.array([[wanted[t] == s for s in source.word_of_piece] for t in target.word_of_piece])
    cross = np.zeros((2, 1, len(target.ids), len(source.ids)), np.float32)
    cross[0, 0] = piece
    cross[..., -1] = 5  # the end of the sentence draws most, and is no word
    links = align(cross, target, source, layer=1)
    assert [(link.source, link.target) for link in links] == [(s, t) for t, s in enumerate(wanted)]


def test_alignments_are_read_from_a_late_layer_that_exists() -> None:
    assert [alignment_layer(layers) for layers in (1, 2, 3, 4, 6)] == [1, 2, 3, 3, 5]


def test_pharaoh_names_words_of_both_sides(report: AttentionReport) -> None:
    links = [link.split("-") for link in pharaoh(report).split()]
    assert [int(t) for _, t in links] == list(range(len(report.target.words)))
    assert all(0 <= int(s) < len(report.source.words) for s, _ in links)


def test_the_selection_decides_what_is_shown(model: Transformer, tokenizer: Tokenizer) -> None:
    chosen = inspect_pair(model, tokenizer, SOURCE, TARGET, layer=3, head=2)
    np.testing.assert_array_equal(chosen.selected, chosen.cross_words[2, 1])
    assert chosen.selection_text == "decoder layer 3 of 3, head 2 of 4"
    mean = inspect_pair(model, tokenizer, SOURCE, TARGET)
    np.testing.assert_array_equal(mean.selected, mean.cross_words[2].mean(0))
    assert mean.selection_text == "decoder layer 3 of 3, mean of 4 heads"


def test_the_map_is_of_the_very_pieces_that_the_model_chose(tiny_model: Path) -> None:
    translator = Translator.load(tiny_model, device="cpu")
    translator.warn = str
    (translation,) = translator.translate_all([SOURCE])
    assert inspect_attention(translator, SOURCE).target.ids == (*translation.ids, EOS)


def test_an_empty_translation_has_a_map_too(model: Transformer, tokenizer: Tokenizer) -> None:
    report = inspect_pair(model, tokenizer, SOURCE, [])
    assert report.target.text == "" and report.alignment == []
    assert report.cross_words.shape[-2:] == (1, len(report.source.words) + 1)
    np.testing.assert_allclose(report.cross_words.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": " \t"}, "blank"),
        ({"layer": 4}, "--layer 4: the decoder has layers 1 to 3"),
        ({"layer": 0}, "--layer 0"),
        ({"head": 5}, "--head 5: each layer has heads 1 to 4"),
    ],
)
def test_impossible_requests_are_refused(
    model: Transformer, tokenizer: Tokenizer, changes: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"text": SOURCE, "target": TARGET} | changes
    with pytest.raises(UserError, match=message):
        inspect_pair(model, tokenizer, **arguments)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(report_module, "LARGEST", 1 << 10)
    yield


def test_a_text_too_long_for_its_maps_is_refused_before_they_are_made(
    model: Transformer, tokenizer: Tokenizer, little_room: None
) -> None:
    with pytest.raises(UserError, match="give a shorter text"):
        inspect_pair(model, tokenizer, SOURCE, TARGET)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("sdpa", torch.float32), ("sdpa", torch.bfloat16), ("flash", torch.bfloat16)],
)
def test_cuda_kernels_pass_the_check(
    model: Transformer, tokenizer: Tokenizer, backend: str, dtype: torch.dtype
) -> None:
    device = torch.device("cuda")
    plan = resolve(backend, device=device, dtype=dtype, dropout=0.0, training=False)
    model.to(device, dtype).use_attention(plan)
    check = capture(model, *ids(tokenizer)).verification
    assert check.passed, check
