"""The network as a whole: what surrounds a sentence never changes what comes out for it."""

import copy

import pytest
import torch

from tfm.model.attention.choice import BACKENDS, AttentionPlan, math_while_small, resolve
from tfm.model.attention.padding import Padding
from tfm.model.positions import Positions, sinusoids
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer

SOURCE_LENGTHS, TARGET_LENGTHS = [9, 4, 6, 1], [5, 7, 1, 3]
SOURCE, TARGET = Padding.from_lengths(SOURCE_LENGTHS), Padding.from_lengths(TARGET_LENGTHS)
CPU_BACKENDS = {**BACKENDS, "auto in half precision": math_while_small}


def build(*, norm="pre", joint=True, **changes) -> Transformer:
    torch.manual_seed(1)
    settings = ModelSettings(
        **dict(d_model=32, d_ff=64, heads=4, encoder_layers=2, decoder_layers=2, norm=norm)
        | changes
    )
    return Transformer(settings, source_vocab=40, target_vocab=40, joint=joint).eval()


@pytest.fixture(params=CPU_BACKENDS)
def attend(request):
    return CPU_BACKENDS[request.param]


@pytest.fixture(params=["post", "pre"])
def model(request, attend):
    model = build(norm=request.param)
    model.use_attention(AttentionPlan(attend, attend, attend))
    return model


@pytest.fixture
def ids():
    """Source and target ids, B S and B T; what stands at the padding is arbitrary."""
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randint(40, (4, 9), generator=generator),
        torch.randint(40, (4, 7), generator=generator),
    )


def logits(model, ids, *, source=SOURCE, target=TARGET):
    return model(*ids, source=source, target=target).detach()


def alone(model, ids, b):
    """Run sentence b without batch mates and without padding."""
    S, T = SOURCE_LENGTHS[b], TARGET_LENGTHS[b]
    return logits(
        model,
        (ids[0][b : b + 1, :S], ids[1][b : b + 1, :T]),
        source=Padding.from_lengths([S]),
        target=Padding.from_lengths([T]),
    )[0]


def test_a_padded_sentence_gives_what_it_gives_alone(model, ids):
    together = logits(model, ids)
    for b, length in enumerate(TARGET_LENGTHS):
        torch.testing.assert_close(together[b, :length], alone(model, ids, b), rtol=0, atol=1e-5)


def test_the_order_of_the_batch_does_not_matter(model, ids):
    order = torch.tensor([2, 0, 3, 1])
    shuffled = logits(
        model,
        (ids[0][order], ids[1][order]),
        source=SOURCE.select(order),
        target=TARGET.select(order),
    )
    real = TARGET.mask[order]
    torch.testing.assert_close(shuffled[real], logits(model, ids)[order][real], rtol=0, atol=1e-5)


def test_what_stands_at_the_padding_does_not_matter(model, ids):
    source, target = ids[0].clone(), ids[1].clone()
    source[~SOURCE.mask] = (source[~SOURCE.mask] + 7) % 40
    target[~TARGET.mask] = (target[~TARGET.mask] + 7) % 40
    found, expected = logits(model, (source, target)), logits(model, ids)
    assert torch.equal(found[TARGET.mask], expected[TARGET.mask])


def test_changing_a_token_changes_nothing_before_it_bit_for_bit(model, ids):
    before = logits(model, ids, target=None)
    for t in range(1, 7):
        target = ids[1].clone()
        target[:, t:] = (target[:, t:] + 11) % 40
        after = logits(model, (ids[0], target), target=None)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_all_backends_give_the_same_logits_and_gradients(ids, norm, joint):
    model = build(norm=norm, joint=joint)
    results = {}
    for name in BACKENDS:
        model.use_attention(
            resolve(name, device=torch.device("cpu"), dtype=torch.float32, dropout=0, training=True)
        )
        model.zero_grad()
        out = model(*ids, source=SOURCE, target=TARGET)[TARGET.mask]
        out.logsumexp(-1).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results[name] = (out.detach(), gradient)
    for name in ("sdpa", "flash"):
        torch.testing.assert_close(results[name], results["math"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training, dropout", [(True, 0.25), (False, 0.0)])
def test_each_kind_of_attention_runs_by_its_own_backend(ids, training, dropout):
    calls = []

    def recorder(kind):
        def attend(q, k, v, *, causal, queries, keys, dropout):
            calls.append((kind, causal, tuple(q.shape[2:3] + k.shape[2:3]), dropout))
            return BACKENDS["math"](
                q, k, v, causal=causal, queries=queries, keys=keys, dropout=dropout
            )

        return attend

    model = build(attention_dropout=0.25).train(training)
    model.use_attention(AttentionPlan(*map(recorder, ("encoder", "decoder", "cross"))))
    logits(model, ids)
    encoder = ("encoder", False, (9, 9), dropout)
    decoder = [("decoder", True, (7, 7), dropout), ("cross", False, (7, 9), dropout)]
    assert calls == [encoder] * 2 + decoder * 2


def test_attention_dropout_changes_the_weights_in_training_only(ids):
    model = build(attention_dropout=0.5, dropout=0.0)
    assert torch.equal(logits(model, ids), logits(model, ids))
    model.train()
    assert not torch.equal(logits(model, ids), logits(model, ids))


# Weights.


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_gradient_reaches_every_parameter(ids, norm, joint, activation):
    model = build(norm=norm, joint=joint, activation=activation).train()
    model(*ids, source=SOURCE, target=TARGET)[TARGET.mask].logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_with_a_joint_vocabulary_one_matrix_is_both_embeddings_and_the_projection():
    model = build(joint=True)
    assert model.source_embedding.weight is model.target_embedding.weight
    hidden = torch.randn(3, 32)
    with torch.no_grad():
        model.source_embedding.weight[7] = 0
    assert (model.project(hidden)[:, 7] == 0).all()
    assert model.num_parameters + 40 * 32 == build(joint=False).num_parameters


def test_joint_vocabularies_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="joint vocabularies differ: 40 and 41"):
        Transformer(ModelSettings(), source_vocab=40, target_vocab=41, joint=True)


def test_the_base_size_has_the_65_million_parameters_of_the_paper():
    from tfm.model.settings import SIZES

    settings = ModelSettings(**SIZES["base"])
    with torch.device("meta"):
        model = Transformer(settings, source_vocab=37_000, target_vocab=37_000, joint=True)
    assert 62e6 < model.num_parameters < 66e6  # table 3 says 65


def test_the_seed_determines_the_weights():
    a, b = build(joint=False).state_dict(), build(joint=False).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_backend_is_no_part_of_the_weights():
    model = build()
    names = set(model.state_dict())
    model.use_attention(AttentionPlan(BACKENDS["flash"], BACKENDS["sdpa"], BACKENDS["math"]))
    assert set(model.state_dict()) == names
    assert not any("attend" in name.split(".")[-1] for name in names)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_first_activations_and_logits_are_unit_sized(norm):
    torch.manual_seed(1)
    settings = ModelSettings(norm=norm)
    model = Transformer(settings, source_vocab=4000, target_vocab=4000, joint=True).eval()
    source, target = torch.randint(4000, (8, 20)), torch.randint(4000, (8, 20))
    assert 0.9 < (model.source_embedding(source) * settings.d_model**0.5).std() < 1.1
    out = model(source, target, source=Padding.full(8, 20))
    assert 0.7 < out.std() < 1.3


def test_autocast_in_bf16_is_near_fp32(ids):
    model = build()
    expected = logits(model, ids)[TARGET.mask]
    for name in BACKENDS:
        attend = BACKENDS[name]
        model.use_attention(AttentionPlan(attend, attend, attend))
        with torch.autocast("cpu", torch.bfloat16):
            found = logits(model, ids)[TARGET.mask].float()
        torch.testing.assert_close(found, expected, rtol=0, atol=0.15)


# Positions.


def test_positions_grow_with_the_longest_sentence():
    positions = Positions(16)
    found = positions(torch.zeros(1, 3, 16), start=1998)
    torch.testing.assert_close(found[0], sinusoids(2001, 16)[1998:])
    assert torch.equal(positions(torch.zeros(1, 600, 16))[0], sinusoids(600, 16))
    assert not positions.state_dict()  # computed, not stored


def test_positions_that_grew_in_inference_can_be_trained_with():
    model = build().train()
    ids, padding = torch.randint(40, (1, 600)), Padding.full(1, 600)
    with torch.inference_mode():
        model(ids, ids, source=padding)
    copied = copy.deepcopy(model)
    copied(ids, ids, source=padding).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in copied.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("start", [0, 300, 5000])
def test_positions_in_half_precision_are_rounded_once_with_the_sum(dtype, start):
    x = torch.randn(1, 50, 16).to(dtype)
    positions = Positions(16).to(dtype)
    found = positions(x, start=start)
    assert found.dtype == dtype
    assert torch.equal(found[0], (x[0].float() + sinusoids(start + 50, 16)[start:]).to(dtype))


def test_a_network_cast_down_and_up_again_has_its_exact_positions():
    positions = copy.deepcopy(Positions(16).bfloat16()).float()
    assert torch.equal(positions(torch.zeros(1, 9, 16))[0], sinusoids(9, 16))


@torch.inference_mode()
def test_steps_in_bf16_at_late_positions_are_near_fp32():
    model = build(norm="pre")
    ids = torch.randint(40, (2, 600))
    padding = Padding.full(2, 600)
    expected = model(ids, ids, source=padding)
    half = copy.deepcopy(model).bfloat16()
    errors = (half(ids, ids, source=padding).float() - expected).pow(2).mean((0, 2)).sqrt()
    assert errors.max() < 0.05
    assert errors[300:].mean() < 1.2 * errors[:300].mean()  # no worse far to the right
