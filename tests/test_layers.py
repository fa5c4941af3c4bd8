"""Layers: with copied weights each computes what its counterpart in torch.nn computes.

torch.nn is an independent implementation of the same paper; masks there mean "hidden".
"""

import pytest
import torch
from torch import nn

from tfm.model.attention.multihead import CrossAttention, SelfAttention
from tfm.model.attention.padding import Padding
from tfm.model.layers import DecoderLayer, EncoderLayer, FeedForward
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer

D, H, F = 32, 4, 64
SOURCE = Padding.from_lengths([7, 3, 5])
TARGET = Padding.from_lengths([6, 6, 2])
HIDDEN_SOURCE, HIDDEN_TARGET = ~SOURCE.mask, ~TARGET.mask
FUTURE = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.bool)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


@pytest.fixture(params=["post", "pre"])
def norm(request):
    return request.param


@pytest.fixture(params=["relu", "gelu"])
def settings(request, norm):
    return ModelSettings(
        d_model=D, d_ff=F, heads=H, dropout=0.0, activation=request.param, norm=norm,
        encoder_layers=2, decoder_layers=3,
    )  # fmt: skip


def randomise(module: nn.Module) -> None:
    """Give biases and norms weights of their own too, so that swapping two is noticed."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def copy(ours: nn.Module, theirs: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())


def copy_self_attention(ours: SelfAttention, theirs: nn.MultiheadAttention) -> None:
    weights = {"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias}
    ours.projection.load_state_dict(weights)
    copy(ours.output, theirs.out_proj)


def copy_cross_attention(ours: CrossAttention, theirs: nn.MultiheadAttention) -> None:
    weight, bias = theirs.in_proj_weight, theirs.in_proj_bias
    ours.query.load_state_dict({"weight": weight[:D], "bias": bias[:D]})
    ours.key_value.load_state_dict({"weight": weight[D:], "bias": bias[D:]})
    copy(ours.output, theirs.out_proj)


def copy_feed_forward(ours, theirs) -> None:
    copy(ours.feed_forward.inner, theirs.linear1)
    copy(ours.feed_forward.outer, theirs.linear2)


def copy_encoder_layer(ours: EncoderLayer, theirs: nn.TransformerEncoderLayer) -> None:
    copy_self_attention(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours, theirs)
    copy(ours.around_attention.norm, theirs.norm1)
    copy(ours.around_feed_forward.norm, theirs.norm2)


def copy_decoder_layer(ours: DecoderLayer, theirs: nn.TransformerDecoderLayer) -> None:
    copy_self_attention(ours.self_attention, theirs.self_attn)
    copy_cross_attention(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours, theirs)
    copy(ours.around_self.norm, theirs.norm1)
    copy(ours.around_cross.norm, theirs.norm2)
    copy(ours.around_feed_forward.norm, theirs.norm3)


def options(settings: ModelSettings) -> dict:
    return dict(
        dropout=0.0,
        activation=settings.activation,
        batch_first=True,
        norm_first=settings.norm == "pre",
    )


def assert_equal_where_real(ours, theirs, padding: Padding) -> None:
    torch.testing.assert_close(ours[padding.mask], theirs[padding.mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_that_of_torch_multihead_attention(causal):
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    randomise(theirs)
    ours = SelfAttention(D, H)
    copy_self_attention(ours, theirs)
    x = torch.randn(3, 6, D)
    q, kv = ours.queries_keys_values(x)
    expected, _ = theirs(
        x, x, x, key_padding_mask=HIDDEN_TARGET, attn_mask=FUTURE if causal else None
    )
    torch.testing.assert_close(ours(q, kv, causal=causal, keys=TARGET), expected)


def test_cross_attention_is_that_of_torch_multihead_attention():
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    randomise(theirs)
    ours = CrossAttention(D, H)
    copy_cross_attention(ours, theirs)
    x, memory = torch.randn(3, 6, D), torch.randn(3, 7, D)
    expected, _ = theirs(x, memory, memory, key_padding_mask=HIDDEN_SOURCE)
    found = ours(ours.queries(x), ours.keys_values(memory), keys=SOURCE)
    torch.testing.assert_close(found, expected)


def test_an_encoder_layer_is_that_of_torch(settings):
    theirs = nn.TransformerEncoderLayer(D, H, F, **options(settings))
    randomise(theirs)
    ours = EncoderLayer(settings)
    copy_encoder_layer(ours, theirs)
    x = torch.randn(3, 7, D)
    expected = theirs(x, src_key_padding_mask=HIDDEN_SOURCE)
    assert_equal_where_real(ours(x, source=SOURCE), expected, SOURCE)


def test_a_decoder_layer_is_that_of_torch(settings):
    theirs = nn.TransformerDecoderLayer(D, H, F, **options(settings))
    randomise(theirs)
    ours = DecoderLayer(settings)
    copy_decoder_layer(ours, theirs)
    x, memory = torch.randn(3, 6, D), torch.randn(3, 7, D)
    expected = theirs(x, memory, tgt_mask=FUTURE, memory_key_padding_mask=HIDDEN_SOURCE)
    kv = ours.cross_attention.keys_values(memory)
    found = ours(x, memory=kv, source=SOURCE, target=TARGET)
    assert_equal_where_real(found, expected, TARGET)


def torch_transformer(settings: ModelSettings) -> nn.Transformer:
    """Return nn.Transformer with a norm after each stack for pre-norm only, as in the papers."""

    def last_norm():
        return nn.LayerNorm(D) if settings.norm == "pre" else None

    common = (D, H, F)
    encoder = nn.TransformerEncoderLayer(*common, **options(settings))
    decoder = nn.TransformerDecoderLayer(*common, **options(settings))
    return nn.Transformer(
        D,
        H,
        custom_encoder=nn.TransformerEncoder(
            encoder, settings.encoder_layers, last_norm(), enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(decoder, settings.decoder_layers, last_norm()),
        batch_first=True,
    )


def test_the_whole_network_is_torch_transformer_between_embedding_and_projection(settings):
    theirs = torch_transformer(settings)
    randomise(theirs)
    ours = Transformer(settings, source_vocab=50, target_vocab=60, joint=False)
    for a, b in zip(ours.encoder, theirs.encoder.layers, strict=True):
        copy_encoder_layer(a, b)
    for a, b in zip(ours.decoder, theirs.decoder.layers, strict=True):
        copy_decoder_layer(a, b)
    if settings.norm == "pre":
        copy(ours.encoder_norm, theirs.encoder.norm)
        copy(ours.decoder_norm, theirs.decoder.norm)
    source_ids, target_ids = torch.randint(50, (3, 7)), torch.randint(60, (3, 6))
    hidden = theirs(
        ours.embed(ours.source_embedding, source_ids),
        ours.embed(ours.target_embedding, target_ids),
        tgt_mask=FUTURE,
        src_key_padding_mask=HIDDEN_SOURCE,
        memory_key_padding_mask=HIDDEN_SOURCE,
    )
    expected = hidden @ ours.target_embedding.weight.T
    found = ours(source_ids, target_ids, source=SOURCE, target=TARGET)
    torch.testing.assert_close(found[TARGET.mask], expected[TARGET.mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("d_ff", [256, 1024, 2048, 4096])
def test_swiglu_has_as_many_parameters_as_the_other_activations(d_ff):
    plain, gated = (
        sum(p.numel() for p in FeedForward(256, d_ff, name).parameters())
        for name in ("relu", "swiglu")
    )
    assert abs(gated / plain - 1) < 0.02
    assert FeedForward(256, d_ff, "swiglu").outer.in_features % 8 == 0


def test_swiglu_is_its_formula():
    layer = FeedForward(D, F, "swiglu")
    randomise(layer)
    W1, W3 = layer.inner.weight.chunk(2)
    b1, b3 = layer.inner.bias.chunk(2)
    x = torch.randn(5, D)
    a = x @ W1.T + b1
    expected = (a / (1 + (-a).exp()) * (x @ W3.T + b3)) @ layer.outer.weight.T + layer.outer.bias
    torch.testing.assert_close(layer(x), expected)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="must be relu, gelu or swiglu, but is 'tanh'"):
        FeedForward(8, 8, "tanh")(torch.ones(1, 8))


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_every_matrix_is_drawn_xavier_uniform_by_itself(activation):
    own, cross, network = (
        SelfAttention(256, 4), CrossAttention(256, 4), FeedForward(256, 1024, activation)
    )  # fmt: skip
    gates = network.inner.weight.chunk(2 if activation == "swiglu" else 1)
    for matrix in (*own.projection.weight.chunk(3), own.output.weight, cross.query.weight,
                   *cross.key_value.weight.chunk(2), cross.output.weight, *gates,
                   network.outer.weight):  # fmt: skip
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert 0.99 * bound < matrix.abs().max().item() <= bound
        assert abs(matrix.std().item() / (bound / 3**0.5) - 1) < 0.02
    linears = [m for part in (own, cross, network) for m in part.modules()
               if isinstance(m, nn.Linear)]  # fmt: skip
    assert len(linears) == 2 + 3 + 2 and not any(linear.bias.any() for linear in linears)


def test_dropout_stands_on_each_sub_layer_and_nowhere_else():
    """With everything dropped only the way around the sub-layers is left (paper, section 5.4)."""
    settings = ModelSettings(d_model=D, d_ff=F, heads=H, dropout=0.999999, norm="pre")
    encoder, decoder = EncoderLayer(settings), DecoderLayer(settings)
    x, memory = torch.randn(3, 6, D), torch.randn(3, 7, D)
    assert torch.equal(encoder(x, source=TARGET), x)
    kv = decoder.cross_attention.keys_values(memory)
    assert torch.equal(decoder(x, memory=kv, source=SOURCE, target=TARGET), x)
    assert not torch.equal(encoder.eval()(x, source=TARGET), x)
