"""Formulas: one test per row of the mathematics that `tfm` implements.

Each test states its formula anew, in plain tensor operations, and compares the network with that.
The numbers are those of the table in docs/mathematics.md.
"""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tfm.model.attention import formula, linear, local, sdpa
from tfm.model.attention.choice import BACKENDS, AttentionPlan
from tfm.model.attention.multihead import CrossAttention, SelfAttention
from tfm.model.attention.padding import Padding
from tfm.model.layers import EncoderLayer, FeedForward, Residual
from tfm.model.positions import sinusoids
from tfm.model.settings import ModelSettings, TrainingSettings
from tfm.model.training.cross_entropy import smoothed_cross_entropy
from tfm.model.training.schedule import learning_rate
from tfm.model.transformer import Transformer

SETTINGS = ModelSettings(
    d_model=32, d_ff=64, heads=4, encoder_layers=2, decoder_layers=2, dropout=0.2
)
D, H, K = 32, 4, 8


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def network(settings: ModelSettings = SETTINGS) -> Transformer:
    return Transformer(settings, source_vocab=20, target_vocab=20, joint=True).eval()


def attend(q, k, v, *, causal=False, keys=None):
    return formula.attend(q, k, v, causal=causal, queries=None, keys=keys, dropout=0.0)


def test_row_01_embedding_is_the_one_hot_product_times_the_root_of_d():
    model = network()
    ids = torch.randint(20, (2, 5))
    E = model.source_embedding.weight  # V D
    one_hot = nn.functional.one_hot(ids, 20).float()  # B S V
    expected = one_hot @ E * D**0.5 + sinusoids(5, D)
    torch.testing.assert_close(model.embed(model.source_embedding, ids), expected)


def test_row_02_positional_encoding_is_sine_and_cosine_of_the_same_angle():
    PE = sinusoids(300, 16)
    for pos in (0, 1, 2, 17, 299):
        for i in range(8):
            angle = pos / 10000 ** (2 * i / 16)
            assert PE[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert PE[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    with pytest.raises(ValueError, match="`d_model` must be even, but is 15"):
        sinusoids(3, 15)


def test_row_03_a_shift_is_one_rotation_that_does_not_depend_on_the_position():
    PE = sinusoids(200, 16).double()
    for k in (1, 5, 60):
        angles = [k / 10000 ** (2 * i / 16) for i in range(8)]
        M = torch.block_diag(
            *(torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
              for a in angles)
        ).double()  # fmt: skip
        torch.testing.assert_close(PE[k:], PE[:-k] @ M.T, rtol=0, atol=1e-5)
    products = PE @ PE.T  # PE(p) . PE(q) depends on p - q only
    for distance in (0, 3, 50):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)


def test_row_04_the_input_is_embedding_plus_position_with_dropout():
    model = network()
    ids = torch.randint(20, (50, 30))
    whole = model.embed(model.source_embedding, ids)
    model.train()
    dropped = model.embed(model.source_embedding, ids)
    kept = dropped != 0
    p = round(SETTINGS.dropout * 256) / 256
    torch.testing.assert_close(dropped[kept], (whole / (1 - p))[kept])
    assert abs(1 - kept.double().mean().item() - p) < 0.01


def test_row_05_queries_keys_and_values_are_three_products_of_the_input():
    own, cross = SelfAttention(D, H), CrossAttention(D, H)
    for layer in (own.projection, cross.query, cross.key_value):
        nn.init.normal_(layer.bias)
    x, memory = torch.randn(2, 5, D), torch.randn(2, 7, D)
    q, kv = own.queries_keys_values(x)
    check_products(x, [q, *kv], own.projection)
    check_products(x, [cross.queries(x)], cross.query)
    check_products(memory, cross.keys_values(memory), cross.key_value)


def check_products(x, products, layer):
    """Fail unless products, B H T K each, are x W^T + b with the matrices in `layer`, in order."""
    n = len(products)
    for found, W, b in zip(products, layer.weight.chunk(n), layer.bias.chunk(n), strict=True):
        expected = x @ W.T + b
        for head in range(H):
            torch.testing.assert_close(
                found[:, head], expected[..., head * K : (head + 1) * K], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("width", [16, 64, 256, 1024])
def test_row_06_scaling_by_the_root_of_the_width_keeps_scores_at_variance_1(width):
    n = 2000
    q, k = torch.randn(n, width), torch.randn(n, width)
    raw = (q * k).sum(1)
    assert raw.var().item() == pytest.approx(width, rel=0.2)
    # The logarithms of the weights differ by the scaled scores that `math` computes.
    keys = torch.stack([k, torch.zeros_like(k)], 1)  # a second key whose score is 0
    weights = formula.attention_weights(q[:, None], keys, causal=False, keys=None)
    scaled = (weights[..., 0] / weights[..., 1]).log().flatten()
    torch.testing.assert_close(scaled, raw / width**0.5, rtol=1e-3, atol=1e-3)
    assert scaled.var().item() == pytest.approx(1, rel=0.2)


def test_row_06_without_the_scale_the_gradient_of_the_softmax_vanishes():
    q, k = torch.randn(1000, 1024), torch.randn(10, 1024)
    scores = q @ k.T

    def gradient_size(scores):
        p = scores.softmax(-1)
        return (p * (1 - p)).mean().item()  # d softmax_j / d score_j

    assert gradient_size(scores) < 0.1 * gradient_size(scores / 1024**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_row_07_softmax_rows_sum_to_1_and_large_scores_do_not_overflow(dtype):
    scores = torch.tensor([[1e4, 0.0, -1e4], [3e4, 3e4, 0.0], [0.0, 0.0, 0.0]]).to(dtype)
    found = formula.softmax(scores).double()
    expected = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3]).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=2 * torch.finfo(dtype).eps)
    weights = formula.softmax(torch.randn(5, 100).to(dtype)).double()
    torch.testing.assert_close(
        weights.sum(-1), torch.ones(5).double(), rtol=0, atol=4 * torch.finfo(dtype).eps
    )


def test_row_08_attention_is_softmax_of_scaled_products_times_values():
    q, k, v = (torch.randn(2, H, n, K).double() for n in (5, 7, 7))
    exponentials = torch.einsum("bhtk,bhsk->bhts", q, k).div(K**0.5).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    expected = torch.einsum("bhts,bhsk->bhtk", weights, v)
    torch.testing.assert_close(attend(q, k, v), expected, rtol=0, atol=1e-12)
    found = attend(q.float(), k.float(), v.float()).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_row_09_many_heads_are_so_many_single_heads_side_by_side():
    layer = CrossAttention(D, H)
    x, memory = torch.randn(2, 5, D), torch.randn(2, 7, D)
    matrices = (layer.query.weight, *layer.key_value.weight.chunk(2))
    W_Q, W_K, W_V = (W.split(K) for W in matrices)  # per head
    heads = []
    for i in range(H):
        q, k, v = x @ W_Q[i].T, memory @ W_K[i].T, memory @ W_V[i].T
        heads.append((q @ k.mT / K**0.5).softmax(-1) @ v)
    expected = torch.cat(heads, -1) @ layer.output.weight.T
    found = layer(layer.queries(x), layer.keys_values(memory))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_row_10_feed_forward_is_two_products_around_an_activation(activation):
    layer = FeedForward(D, 4 * D, activation).double()
    nn.init.normal_(layer.inner.bias)
    nn.init.normal_(layer.outer.bias)
    x = torch.randn(3, D).double()
    a = x @ layer.inner.weight.T + layer.inner.bias
    if activation == "relu":
        a = a.clamp(min=0)
    else:  # x Phi(x) with the normal distribution's Phi
        a = a * torch.distributions.Normal(0.0, 1.0).cdf(a)
    expected = a @ layer.outer.weight.T + layer.outer.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_row_11_the_residual_goes_around_the_sub_layer_and_the_norm_stands_where_it_says(norm):
    residual = Residual(ModelSettings(d_model=D, norm=norm)).eval()
    nn.init.normal_(residual.norm.weight)
    x = torch.randn(3, D)

    def sub_layer(x):
        return x.sin()

    found = residual.leave(x, sub_layer(residual.enter(x)))
    expected = {
        "post": residual.norm(x + sub_layer(x)),
        "pre": x + sub_layer(residual.norm(x)),
    }
    assert torch.equal(found, expected[norm])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_row_11_both_kinds_of_norm_can_be_trained(norm):
    """A few steps on one batch of copying bring the loss near zero."""
    model = network(ModelSettings(d_model=D, d_ff=64, heads=H, norm=norm, dropout=0.0)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    ids = torch.randint(20, (8, 6))
    padding = Padding.full(8, 6)
    inputs = ids.roll(1, 1)
    for _ in range(60):
        logits = model(ids, inputs, source=padding)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


def test_row_12_layer_norm_uses_the_biased_variance_over_the_width():
    norm = EncoderLayer(SETTINGS).around_attention.norm
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = 3 + 2 * torch.randn(4, D)
    mu = x.sum(-1, keepdim=True) / D
    variance = ((x - mu) ** 2).sum(-1, keepdim=True) / D
    expected = (x - mu) / (variance + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected)


def the_articles_mask(q, k, v, *, causal, queries, keys, dropout):
    """The mask as the article prints it: visible where i <= j, i the query, j the key."""
    N, S = q.shape[-2], k.shape[-2]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(N, S, dtype=torch.bool).triu(), -torch.inf)
    return scores.softmax(-1) @ v


def sees_the_future(attend_) -> bool:
    """Whether changing target token t + 1 changes any output up to t, bit for bit."""
    model = network()
    model.use_attention(AttentionPlan(attend_, attend_, attend_))
    source, target = torch.randint(20, (1, 4)), torch.randint(20, (1, 6))
    padding = Padding.full(1, 4)
    before = model(source, target, source=padding)
    changed = target.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 20
    after = model(source, changed, source=padding)
    assert not torch.equal(after, before)
    return not torch.equal(after[:, :4], before[:, :4])


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_13_no_position_sees_the_future(backend):
    assert not sees_the_future(BACKENDS[backend])


def test_row_13_with_the_articles_mask_every_position_sees_the_future():
    assert sees_the_future(the_articles_mask)


def test_row_13_the_causal_mask_is_minus_infinity_above_the_diagonal():
    q, k = torch.randn(1, 1, 4, K), torch.randn(1, 1, 4, K)
    M = torch.zeros(4, 4)
    for i in range(4):
        for j in range(4):
            M[i, j] = 0 if j <= i else -math.inf
    expected = ((q @ k.mT + M) / K**0.5).softmax(-1)
    found = formula.attention_weights(q, k, causal=True, keys=None)
    torch.testing.assert_close(found, expected)
    assert (found.triu(1) == 0).all()


def test_row_14_with_minus_a_billion_a_query_that_may_see_nothing_sees_everything():
    scores = torch.randn(5)
    weights = formula.softmax(scores - 1e9)  # in fp32 nothing is left of the scores
    torch.testing.assert_close(weights, torch.full((5,), 0.2))


def test_row_14_with_minus_infinity_masking_and_scaling_may_change_places():
    q, k, v = (torch.randn(2, H, 5, K).double() for _ in range(3))
    keys = Padding.from_lengths([5, 2])
    M = torch.zeros(2, 1, 1, 5).double().masked_fill(~keys.mask[:, None, None], -math.inf)
    first = ((q @ k.mT + M) / K**0.5).softmax(-1) @ v
    last = (q @ k.mT / K**0.5 + M).softmax(-1) @ v
    torch.testing.assert_close(first, last)
    torch.testing.assert_close(attend(q, k, v, keys=keys), first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_14_masks_in_fp16_give_neither_inf_nor_nan(backend):
    assert torch.tensor(-1e9).half().isinf()  # what the article's code fills in
    keys = Padding.from_lengths([6, 2, 0], longest=6)
    # Scores of several thousand: far beyond where exp alone would overflow.
    q, k, v = (x.half().requires_grad_() for x in 70 * torch.randn(3, 3, H, 6, K))
    out = BACKENDS[backend](q, k, v, causal=False, queries=None, keys=keys, dropout=0.0)
    out.float().sum().backward()
    for x in (out, q.grad, k.grad, v.grad):
        assert x.isfinite().all()
    assert (out[2] == 0).all()  # no key to see


def test_row_14_a_whole_network_in_fp16_gives_neither_inf_nor_nan():
    model = network().half()
    source, target = torch.randint(20, (3, 7)), torch.randint(20, (3, 5))
    padding = Padding.from_lengths([7, 1, 4])
    for attend_ in BACKENDS.values():
        model.use_attention(AttentionPlan(attend_, attend_, attend_))
        out = model(source, target, source=padding, target=Padding.from_lengths([5, 2, 3]))
        assert out.dtype is torch.float16 and out.isfinite().all()


def test_row_15_cross_attention_reads_queries_from_the_decoder_and_the_rest_from_the_memory():
    cross = network().decoder[0].cross_attention
    x, memory = torch.randn(2, 5, D), torch.randn(2, 7, D)
    source = Padding.from_lengths([7, 4])
    found = cross(cross.queries(x), cross.keys_values(memory), keys=source)
    W_Q, W_K, W_V = cross.query.weight, *cross.key_value.weight.chunk(2)
    q, k, v = ((a @ W.T).unflatten(-1, (H, K)).transpose(1, 2)
               for a, W in ((x, W_Q), (memory, W_K), (memory, W_V)))  # fmt: skip
    heads = attend(q, k, v, keys=source).transpose(1, 2).flatten(-2)
    expected = heads @ cross.output.weight.T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_row_15_every_decoder_layer_reads_the_encoders_last_layer():
    model = network()
    padding = Padding.full(1, 4)
    memory = model.encode(torch.randint(20, (1, 4)), padding)
    seen = []
    for layer in model.decoder:
        project = layer.cross_attention.keys_values
        layer.cross_attention.keys_values = lambda m, project=project: seen.append(m) or project(m)
    model.decode(torch.randint(20, (1, 3)), memory, source=padding)
    assert len(seen) == 2 and all(m is memory for m in seen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_15_permuting_source_pads_changes_nothing(backend):
    model = network()
    attend_ = BACKENDS[backend]
    model.use_attention(AttentionPlan(attend_, attend_, attend_))
    padding = Padding.from_lengths([8, 3])
    source, target = torch.randint(20, (2, 8)), torch.randint(20, (2, 5))
    permuted = source.clone()
    permuted[1, 3:] = source[1, [5, 7, 3, 6, 4]]
    assert not torch.equal(permuted, source)
    out = [model(s, target, source=padding) for s in (source, permuted)]
    assert torch.equal(*out)


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor holds that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.mark.parametrize("backend, growth", [("math", 4), ("sdpa", 2), ("flash", 2)])
def test_row_16_memory_grows_with_the_square_of_n_for_math_and_with_n_for_fused(backend, growth):
    largest = []
    for N in (1024, 2048):
        q, k, v = (torch.randn(1, 1, N, K, requires_grad=True) for _ in range(3))
        with Largest() as seen:
            out = BACKENDS[backend](q, k, v, causal=False, queries=None, keys=None, dropout=0.0)
            out.sum().backward()
        largest.append(seen.numel)
    assert largest[1] == growth * largest[0]


def test_row_17_running_maximum_sum_and_output_give_the_exact_result():
    N, block = 100, 32
    q, k, v = torch.randn(3, 1, 2, N, K).double()
    m = torch.full((1, 2, N, 1), -math.inf).double()
    total, out = torch.zeros_like(m), torch.zeros_like(q)
    for keys, values in zip(k.split(block, -2), v.split(block, -2), strict=True):
        S = q @ keys.mT / K**0.5
        new = torch.maximum(m, S.amax(-1, keepdim=True))
        total = (m - new).exp() * total + (S - new).exp().sum(-1, keepdim=True)
        out = (m - new).exp() * out + (S - new).exp() @ values
        m = new
    for backend in BACKENDS.values():
        found = backend(q, k, v, causal=False, queries=None, keys=None, dropout=0.0)
        torch.testing.assert_close(found, out / total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_row_17_flash_is_exact_whatever_the_tiles(causal):
    """Lengths around the kernel's tile sizes; the whole matrix of cases is in test_attention."""
    for N in (31, 32, 33, 511, 513):
        q, k, v = torch.randn(3, 1, 2, N, K).double()
        expected = attend(q, k, v, causal=causal)
        for backend in (sdpa.attend, BACKENDS["flash"]):
            found = backend(q, k, v, causal=causal, queries=None, keys=None, dropout=0.0)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_row_18_local_attention_is_full_attention_under_a_band():
    N, w = 150, 14
    q, k, v = torch.randn(3, 2, H, N, K).double()
    M = torch.full((N, N), -math.inf).double()
    for i in range(N):
        M[i, max(0, i - w // 2) : i + w // 2 + 1] = 0
    expected = (q @ k.mT / K**0.5 + M).softmax(-1) @ v
    found = local.attend(q, k, v, causal=False, queries=None, keys=None, dropout=0.0, window=w)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def phi(x):
    return nn.functional.elu(x) + 1


def test_row_19_linear_attention_is_the_softmax_of_the_logarithm_of_its_features():
    q, k, v = torch.randn(3, 2, H, 40, K).double()
    expected = (phi(q) @ phi(k).mT).log().softmax(-1) @ v
    found = linear.attend(q, k, v, causal=False, queries=None, keys=None, dropout=0.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_row_19_causal_linear_attention_is_a_recurrent_network():
    q, k, v = torch.randn(3, 2, H, 100, K).double()
    state, total, outputs = torch.zeros(2, H, K, K).double(), torch.zeros(2, H, K).double(), []
    for t in range(100):
        state = state + phi(k[:, :, t, :, None]) * v[:, :, t, None]
        total = total + phi(k[:, :, t])
        query = phi(q[:, :, t, None])  # 2 H 1 K
        outputs.append(query @ state / (query @ total[..., None]))
    found = linear.attend(q, k, v, causal=True, queries=None, keys=None, dropout=0.0)
    torch.testing.assert_close(found, torch.cat(outputs, dim=-2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_row_20_the_loss_is_the_smoothed_cross_entropy_of_torch(smoothing):
    logits, targets = torch.randn(7, 20, requires_grad=True), torch.randint(20, (7,))
    wanted = torch.full((7, 20), smoothing / 20)
    wanted[range(7), targets] += 1 - smoothing
    by_hand = -(wanted * logits.log_softmax(-1)).sum()
    of_torch = nn.functional.cross_entropy(
        logits, targets, reduction="sum", label_smoothing=smoothing
    )
    losses, gradient = smoothed_cross_entropy(logits.detach().clone(), targets, smoothing)
    for expected in (by_hand, of_torch):
        torch.testing.assert_close(losses.loss, expected.detach())
        (of_autograd,) = torch.autograd.grad(expected, logits, retain_graph=True)
        torch.testing.assert_close(gradient, of_autograd)


def test_row_20_the_schedule_is_the_papers():
    d, warmup = 512, 4000
    peak = (d * warmup) ** -0.5
    settings = TrainingSettings(learning_rate=peak, warmup_steps=warmup, schedule="inverse_sqrt")
    for step in (1, 100, 4000, 4001, 100_000):
        expected = d**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(step, settings) == pytest.approx(expected)
