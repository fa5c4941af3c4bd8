"""Local and linear attention: each backend computes the definition, or is refused.

The yardsticks are written here once more, in fp64, one query at a time.
"""

import json
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tfm.cli.main import main
from tfm.data.errors import BackendError
from tfm.model.attention import flash, formula, linear, local
from tfm.model.attention.choice import BACKENDS, AttentionPlan, resolve
from tfm.model.attention.forms import by_definition, weights_of
from tfm.model.attention.padding import Padding
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer

GPU = pytest.mark.gpu
CPU = torch.device("cpu")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
ATOL = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}

# Lengths of three sentences, or None where all are as long as the first number.
SHAPES = {
    "one block": (23, None),
    "one block, padded": (23, [23, 1, 11]),
    "blocks that fit": (128, None),
    "odd length": (133, None),
    "odd length, padded": (133, [133, 70, 1]),
    "blocks of padding only": (150, [150, 20, 149]),
    "an empty sentence": (97, [97, 0, 40]),
    "one token": (1, None),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
WINDOW = 14

LOCAL = {
    "definition": by_definition("local", window=WINDOW),
    "sdpa in blocks": partial(local.attend, window=WINDOW),
    "math in blocks": partial(local.attend, window=WINDOW, kernel=formula.attend_where),
    "flash in blocks": partial(local.attend, window=WINDOW, kernel=flash.attend_where),
}
LINEAR = {"definition": by_definition("linear", window=0), "sums": linear.attend}
EVERY = [("local", name) for name in LOCAL] + [("linear", name) for name in LINEAR]
every_kernel = pytest.mark.parametrize("form, kernel", EVERY, ids=map(" ".join, EVERY))


def kernel_of(form: str, name: str):
    return (LOCAL if form == "local" else LINEAR)[name]


def definition(form: str, q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """Both forms as they are written in the papers, one sentence and one query at a time."""
    rows = []
    for b, t in product(range(len(q)), range(q.shape[2])):
        near = range(max(0, t - WINDOW // 2), t + WINDOW // 2 + 1)
        seen = [s for s in range(lengths[b]) if form == "linear" or s in near]
        keys, values = k[b, :, seen], v[b, :, seen]  # H s K
        if form == "local":
            scores = ((keys * q[b, :, None, t]).sum(-1) / q.shape[-1] ** 0.5).exp()
        else:
            features = [torch.nn.functional.elu(x) + 1 for x in (keys, q[b, :, None, t])]
            scores = (features[0] * features[1]).sum(-1)
        total = scores.sum(-1, keepdim=True)
        rows.append((scores[..., None] * values).sum(1) / torch.where(total > 0, total, 1))
    return torch.stack(rows).view(len(q), -1, *q.shape[1::2]).transpose(1, 2)


def draw(N: int, *, dtype=torch.float64, width: int = 8) -> list[Tensor]:
    """Return q, k, v and an output gradient, in fp64, of numbers that `dtype` holds exactly."""
    generator = torch.Generator().manual_seed(N)
    return [torch.randn(3, 2, N, width, generator=generator).to(dtype).double() for _ in range(4)]


def run(attend, shape, inputs, *, dtype=torch.float64, device="cpu") -> list[Tensor]:
    """Return the output at real queries and the gradients of q, k, v, on the CPU in fp64."""
    N, lengths = shape
    q, k, v = (x.to(device, dtype, copy=True).requires_grad_() for x in inputs[:3])
    padding = Padding.from_lengths(lengths or [N] * 3, longest=N, device=device)
    real = (torch.arange(N) < padding.lengths.cpu()[:, None])[:, None, :, None]
    out = attend(q, k, v, causal=False, queries=padding, keys=padding, dropout=0.0)
    out.backward((inputs[3] * real).to(device, dtype))
    found = [out.detach(), *(x.grad for x in (q, k, v))]
    return [x.cpu().double() * (real if i == 0 else 1) for i, x in enumerate(found)]


def exactly(form: str, shape, inputs) -> list[Tensor]:
    N, lengths = shape
    lengths = lengths or [N] * 3
    return run(lambda q, k, v, **_: definition(form, q, k, v, lengths), shape, inputs)


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [(a - b).abs().max().item() for a, b in zip(found, exact, strict=True)]


@every_shape
@every_kernel
def test_every_kernel_computes_its_definition_and_gradients(form, kernel, shape):
    inputs = draw(shape[0])
    found = run(kernel_of(form, kernel), shape, inputs)
    assert max(errors(found, exactly(form, shape, inputs))) < 1e-12


def check_in(dtype, form, attend, shape, *, device="cpu", width=8):
    """Fail unless `attend` is as near to the definition as the matrix form in the same dtype."""
    inputs = draw(shape[0], dtype=dtype, width=width)
    exact = exactly(form, shape, inputs)
    limits = errors(run(by_definition(form, window=WINDOW), shape, inputs, dtype=dtype), exact)
    found = errors(run(attend, shape, inputs, dtype=dtype, device=device), exact)
    for name, error, limit in zip("output q k v".split(), found, limits, strict=True):
        assert error <= 3 * max(limit, ATOL[dtype]), f"{name}: {error} against {limit}"


@pytest.mark.parametrize("dtype", HALF.values(), ids=HALF)
@every_kernel
def test_half_precision_is_only_rounding_away(form, kernel, dtype):
    check_in(dtype, form, kernel_of(form, kernel), SHAPES["odd length, padded"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALF.values()], ids=["fp32", *HALF])
@every_shape
@pytest.mark.parametrize("name", ["auto", *BACKENDS])
@pytest.mark.parametrize("form", ["local", "linear"])
def test_every_backend_computes_its_definition_on_cuda(form, name, shape, dtype):
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        plan = plan_of(form, name, device=torch.device("cuda"), dtype=dtype, window=WINDOW)
    except BackendError:
        refused = form == "linear" or (name == "flash" and dtype is torch.float32)
        assert refused
        return
    for width in (8, 20, 64):
        check_in(dtype, form, plan.other.attend, shape, device="cuda", width=width)


# What makes them worth having.


class Largest(TorchDispatchMode):
    """Remember how many numbers the largest tensor holds that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@every_kernel
def test_memory_grows_with_n_and_not_with_its_square(form, kernel):
    largest = []
    for N in (1024, 2048):
        q, k, v = (torch.randn(1, 1, N, 8, requires_grad=True) for _ in range(3))
        with Largest() as mode:
            attend = kernel_of(form, kernel)
            attend(q, k, v, causal=False, queries=None, keys=None, dropout=0.0).sum().backward()
        largest.append(mode.numel)
    growth = largest[1] / largest[0]
    assert growth == 4 if kernel == "definition" else growth < 2.1


def by_sentence(q, k, v, *, queries, keys, causal, reach):
    """A variable-length kernel with a sliding window, in Python."""
    assert not causal and queries is keys
    pieces = []
    for start, end in zip(keys.starts.tolist(), keys.starts.tolist()[1:], strict=False):
        one = [x[start:end].transpose(0, 1)[None] for x in (q, k, v)]
        visible = local.visible_keys(end - start, window=2 * reach, keys=None, device=q.device)
        pieces.append(formula.attend_where(*one, visible=visible, dropout=0.0)[0].transpose(0, 1))
    return torch.cat(pieces)


@every_shape
def test_the_sliding_window_of_the_varlen_kernel_is_the_same_band(shape, monkeypatch):
    calls = []

    def varlen_attn(q, k, v, starts_q, starts_k, max_q, max_k, *, scale=None, window_size):
        calls.append(window_size)
        padding = Padding.from_lengths(starts_q.diff().tolist(), longest=max_q)
        return by_sentence(
            q, k, v, queries=padding, keys=padding, causal=False, reach=window_size[0]
        )

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    inputs = draw(shape[0])
    found = run(partial(local.attend_unpadded, window=WINDOW), shape, inputs)
    assert max(errors(found, exactly("local", shape, inputs))) < 1e-12
    assert calls == [(WINDOW // 2, WINDOW // 2)]


def test_sums_in_half_precision_do_not_overflow():
    k = torch.full((1, 1, 40_000, 4), 3.0, dtype=torch.float16)  # the sum of phi(k) is 160,000
    out = linear.attend(k, k, k, causal=False, queries=None, keys=None, dropout=0.0)
    assert (out == 3).all()


def test_the_feature_map_keeps_the_digits_of_small_values():
    x = torch.tensor([-30.0, -1.0, 0.0, 2.0])
    exact = torch.where(x > 0, x + 1, x.double().exp())
    torch.testing.assert_close(linear.feature_map(x).double(), exact, rtol=1e-6, atol=0)
    x.requires_grad_()
    linear.feature_map(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().clamp(max=0).exp())


@pytest.mark.parametrize("lengths", [None, [150, 31, 64]], ids=["full", "padded"])
def test_causal_linear_attention_is_the_recurrent_form(lengths):
    N = 150
    q, k, v, _ = draw(N)
    padding = Padding.from_lengths(lengths or [N] * 3, longest=N)
    state, norm, steps = torch.zeros(3, 2, 8, 8).double(), torch.zeros(3, 2, 8).double(), []
    for t in range(N):  # Katharopoulos et al. 2020, equations 16 to 20
        real = (t < padding.lengths).double()[:, None, None]
        phi_q, phi_k = (torch.nn.functional.elu(x[:, :, t]) + 1 for x in (q, k))
        state += (phi_k * real)[..., None] * v[:, :, t, None, :]
        norm += phi_k * real
        steps.append((phi_q[..., None, :] @ state).squeeze(-2) / (phi_q * norm).sum(-1)[..., None])
    expected = torch.stack(steps, dim=2)
    facts = dict(causal=True, queries=padding, keys=padding, dropout=0.0)
    torch.testing.assert_close(linear.attend(q, k, v, **facts), expected)
    torch.testing.assert_close(LINEAR["definition"](q, k, v, **facts), expected)
    # A later part of the queries, as with a cache of what came before.
    torch.testing.assert_close(linear.attend(q[:, :, 70:], k, v, **facts), expected[:, :, 70:])


@pytest.mark.parametrize("causal, S", [(True, 9), (False, 5)])
def test_local_attention_is_for_encoders_only(causal, S):
    q, k = torch.randn(1, 1, 9, 4), torch.randn(1, 1, S, 4)
    facts = dict(causal=causal, queries=None, keys=None, dropout=0.0)
    for attend in (*LOCAL.values(), partial(local.attend_unpadded, window=4)):
        with pytest.raises(ValueError, match="encoder"):
            attend(q, k, k, **facts)


@pytest.mark.parametrize("kernel", ["definition", "sdpa in blocks", "math in blocks"])
def test_attention_dropout_of_local_attention_drops_weights_of_the_band(kernel):
    torch.manual_seed(1)
    N, rate = 200, 0.25
    q = k = torch.zeros(1, 1, N, N)  # all that is visible weighs the same
    v = torch.eye(N).expand(1, 1, N, N)  # so that the output is the weights
    weights = LOCAL[kernel](q, k, v, causal=False, queries=None, keys=None, dropout=rate)[0, 0]
    visible = local.visible_keys(N, window=WINDOW, keys=None, device=CPU)[0, 0]
    assert (weights[~visible] == 0).all()
    dropped = (weights[visible] == 0).float().mean()
    assert abs(dropped - rate) < 0.03
    expected = (1 / visible.sum(-1) / (1 - rate))[:, None].expand(N, N)
    kept = weights > 0
    torch.testing.assert_close(weights[kept], expected[kept])


def test_linear_attention_has_no_weights_to_drop():
    q = torch.randn(1, 1, 5, 4)
    with pytest.raises(ValueError, match="no weights"):
        linear.attend(q, q, q, causal=False, queries=None, keys=None, dropout=0.1)


# The choice.


def plan_of(form, name="auto", *, device=CPU, dtype=torch.float32, window=WINDOW, **facts):
    given = {"dropout": 0.0, "training": True, "encoder_forms": (form,)} | facts
    return resolve(name, device=device, dtype=dtype, window=window, **given)


@pytest.mark.parametrize("name", ["sdpa", "flash"])
def test_linear_attention_is_refused_where_softmax_is_built_in(name):
    expected = f"--attention {name} cannot run here: the encoder's linear attention has no softmax"
    with pytest.raises(BackendError, match=expected):
        plan_of("linear", name)


def test_flash_refuses_local_attention_where_its_kernel_has_no_window(monkeypatch):
    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False): ...

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", older)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    with pytest.raises(BackendError, match="no sliding window"):
        plan_of("local", "flash", device=torch.device("cuda"), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "form, name, facts, line",
    [
        ("local", "auto", {}, "encoder attention: SDPA in blocks: no N x N matrix; window 14"),
        ("local", "auto", {"dropout": 0.1}, "encoder attention: math in blocks: dropout 0.1 is"),
        ("local", "auto", {"dtype": torch.bfloat16}, "encoder attention: math in blocks: training"),
        ("local", "flash", {}, "encoder attention: CPU flash kernel (SDPA) in blocks: asked for"),
        ("local", "math", {}, "encoder attention: math: local attention by its definition"),
        ("linear", "auto", {}, "encoder attention: linear sums in fp32"),
        ("linear", "math", {}, "encoder attention: math: linear attention by its definition"),
    ],
)
def test_the_plan_says_what_the_encoder_runs(form, name, facts, line):
    chosen = plan_of(form, name, **facts)
    assert chosen.describe()[0].startswith(line)
    assert len(chosen.describe()) == 2


def test_the_plan_tells_full_layers_from_the_others():
    chosen = plan_of("local", encoder_forms=("local", "full", "local"))
    names = [line.partition(" attention: ")[0] for line in chosen.describe()]
    assert names == ["local encoder", "full encoder, decoder and cross"]


# In the network.


def network(form: str, **settings) -> Transformer:
    torch.manual_seed(1)
    size = dict(d_model=16, d_ff=16, heads=2, encoder_layers=3, decoder_layers=1)
    chosen = ModelSettings(**size | {"encoder_attention": form, "window": 4} | settings)
    return Transformer(chosen, source_vocab=50, target_vocab=50, joint=True).eval()


def memory(model: Transformer, ids: Tensor, lengths: list[int] | None = None) -> Tensor:
    padding = Padding.from_lengths(lengths or [ids.shape[1]] * len(ids), longest=ids.shape[1])
    with torch.inference_mode():
        return model.encode(ids, padding)


def use(model: Transformer, name: str) -> None:
    forms, window = model.settings.encoder_forms, model.settings.window
    facts = dict(device=CPU, dtype=torch.float32, dropout=0.0, training=False)
    model.use_attention(resolve(name, **facts, encoder_forms=forms, window=window))


@pytest.mark.parametrize("full_every", [0, 2])
@pytest.mark.parametrize("form", ["local", "linear"])
def test_every_backend_gives_the_memory_of_a_fresh_network(form, full_every):
    model = network(form, full_every=full_every)
    ids, lengths = (
        torch.randint(50, (3, 90), generator=torch.Generator().manual_seed(2)),
        [90, 7, 41],
    )
    fresh = memory(model, ids, lengths)
    for name in ("auto", "math", "sdpa", "flash"):
        if form == "linear" and name in ("sdpa", "flash"):
            continue
        use(model, name)
        found = memory(model, ids, lengths)
        for b, length in enumerate(lengths):
            torch.testing.assert_close(found[b, :length], fresh[b, :length], rtol=1e-4, atol=1e-5)
            alone = memory(model, ids[b : b + 1, :length])  # padding changes nothing
            torch.testing.assert_close(found[b, :length], alone[0], rtol=1e-4, atol=1e-5)


def changed_places(model: Transformer) -> list[int]:
    """Return the places of the memory that depend on the first of 20 source ids."""
    ids = torch.full((1, 20), 5)
    other = ids.clone()
    other[0, 0] = 6
    difference = (memory(model, ids) - memory(model, other)).abs().amax(-1)[0]
    return difference.nonzero().flatten().tolist()


def test_the_window_says_how_far_a_layer_sees():
    assert changed_places(network("local", window=4)) == list(range(3 * 2 + 1))
    assert changed_places(network("local", window=10)) == list(range(3 * 5 + 1))


@pytest.mark.parametrize("form", ["full", "linear"])
def test_full_and_linear_layers_see_everything(form):
    assert changed_places(network(form)) == list(range(20))


def test_every_kth_layer_is_full():
    assert network("local", full_every=2).settings.encoder_forms == ("local", "full", "local")
    assert changed_places(network("local", full_every=2)) == list(range(20))
    assert changed_places(network("local", full_every=4)) == list(range(7))


def test_a_window_as_wide_as_the_text_is_full_attention():
    ids = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(2))
    wide, full = network("local", window=38), network("full")
    torch.testing.assert_close(memory(wide, ids), memory(full, ids))
    assert not torch.allclose(memory(network("local", window=36), ids), memory(full, ids))


def test_a_plan_for_another_architecture_is_no_plan_for_this_one():
    everywhere = AttentionPlan(formula.attend, formula.attend, formula.attend)
    for form in ("local", "linear"):
        with pytest.raises(ValueError, match=f"without {form} attention"):
            network(form).use_attention(everywhere)


@pytest.mark.parametrize("form", ["full", "local", "linear"])
def test_the_weights_of_a_form_are_distributions_over_what_it_sees(form):
    q, k, _, _ = draw(40)
    keys = Padding.from_lengths([40, 9, 33], longest=40)
    weights = weights_of(form, window=6)(q, k, causal=False, keys=keys)
    torch.testing.assert_close(weights.sum(-1)[0], torch.ones(2, 40).double())
    assert (weights[1, ..., 9:] == 0).all()
    far = (torch.arange(40)[:, None] - torch.arange(40)).abs() > 3
    assert bool((weights[0, :, far] == 0).all()) == (form == "local")


# In every command.

KERNELS = {"local": "SDPA in blocks", "linear": "linear sums"}
SMALL = """
[tokenizer]
vocab_size = 450
[model]
d_model = 32
d_ff = 64
heads = 2
encoder_layers = 2
decoder_layers = 1
[training]
steps = 60
batch_tokens = 600
learning_rate = 5e-3
warmup_steps = 20
validate_every = 60
"""


@pytest.mark.parametrize("form", ["local", "linear"])
def test_every_command_works_with_a_model_of_another_form(form, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    model = str(tmp_path / "model")
    form_ = ["--set", f"model.encoder_attention={form}", "--set", "model.window=6"]
    corpora = [
        "--precision",
        "fp32",
        "--train",
        "builtin:300",
        "--valid",
        "builtin:20",
        "-o",
        model,
    ]
    code = main(["train", "--config", str(tmp_path / "small.toml"), *form_, *corpora])
    err = capsys.readouterr().err
    assert code == 0 and "encoder attention: " + KERNELS[form] in err
    lines = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").open()]
    losses = [line["nats_per_token"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0] - 1

    (tmp_path / "in.en").write_text("The dog sleeps.\n")
    assert main(["translate", model, "-i", str(tmp_path / "in.en")]) == 0
    assert main(["eval", model, "--test", "builtin:20"]) == 0
    capsys.readouterr()
    assert main(["inspect-attention", model, "The dog sleeps.", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["encoder_attention"]["layers"] == [form] * 2 and out["verification"]["passed"]


def test_a_combination_that_cannot_run_is_refused_before_anything_is_written(tmp_path, capsys):
    (tmp_path / "linear.toml").write_text('[model]\nencoder_attention = "linear"\n')
    order = ["train", "--train", "builtin:300", "--config", str(tmp_path / "linear.toml")]
    assert main([*order, "--attention", "flash", "-o", str(tmp_path / "model")]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "linear attention has no softmax" in err
    assert not (tmp_path / "model").exists()
