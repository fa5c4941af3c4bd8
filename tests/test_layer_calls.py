"""Other ways to run the layers in training: what a step computes stays the same."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfm.cli.main import main
from tfm.data.batching import Batch, EncodedCorpus, encode_corpus, make_batch
from tfm.data.corpus import read_pairs
from tfm.data.errors import BackendError
from tfm.data.tokenizer import Tokenizer, train_tokenizer
from tfm.model.attention.choice import resolve
from tfm.model.checkpoint import build_model
from tfm.model.layer_calls import require_compiler
from tfm.model.settings import Settings
from tfm.model.training.randomness import seed_step
from tfm.model.training.step import Learner

CPU = torch.device("cpu")
SETTINGS = Settings.from_tables(
    {
        "tokenizer": {"vocab_size": 400},
        "model": {
            "d_model": 32,
            "d_ff": 64,
            "heads": 2,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "dropout": 0.3,
            "attention_dropout": 0.2,
        },
    },
    "test",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pairs = read_pairs("builtin:200", source="en", target="de", split="train")
    return train_tokenizer(pairs, SETTINGS.tokenizer)


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> EncodedCorpus:
    pairs = read_pairs("builtin:60", source="en", target="de", split="train")
    return encode_corpus(list(pairs), tokenizer, SETTINGS.data)


def learner_of(
    tokenizer: Tokenizer,
    *,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    attention: str = "math",
    model: dict[str, Any] | None = None,
    **training: Any,
) -> Learner:
    """Return a learner with the first weights of seed 1."""
    settings = replace(
        SETTINGS,
        model=replace(SETTINGS.model, **(model or {})),
        training=replace(SETTINGS.training, **training),
    )
    torch.manual_seed(1)
    network = build_model(settings, tokenizer).to(device).train()
    shape = settings.model
    network.use_attention(
        resolve(
            attention,
            device=device,
            dtype=dtype,
            dropout=shape.attention_dropout,
            training=True,
            encoder_forms=shape.encoder_forms,
            window=shape.window,
        )
    )
    return Learner.create(network, settings.training, device=device, dtype=dtype)


def gradients(learner: Learner, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Return the gradient of the loss of all batches, with the random numbers of step 7."""
    learner.optimizer.zero_grad()
    seed_step(1, 7)
    for batch in batches:
        learner.losses(batch).loss.backward()  # type: ignore[no-untyped-call]
    found = {}
    for name, parameter in learner.model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    return found


def kept_bytes(learner: Learner, batch: Batch) -> int:
    """Return the size of what the forward pass keeps for the backward pass, weights left out."""
    weights = {parameter.data_ptr() for parameter in learner.model.parameters()}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        losses = learner.losses(batch)
    assert losses.loss.requires_grad
    return sum(kept.values())


# Gradient checkpointing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "model",
    [
        {"norm": "pre"},
        {"norm": "post", "activation": "swiglu"},
        {"encoder_attention": "local", "window": 4, "full_every": 2},
    ],
    ids=["pre", "post-swiglu", "local"],
)
def test_checkpointing_leaves_the_gradient_what_it_is_bit_for_bit(
    tokenizer: Tokenizer, corpus: EncodedCorpus, model: dict[str, Any], dtype: torch.dtype
) -> None:
    """With dropout: the elements dropped the second time are those of the first."""
    batches = [make_batch(corpus, part) for part in (np.arange(9), np.arange(9, 30))]
    plain, checkpointed = (
        gradients(
            learner_of(tokenizer, dtype=dtype, model=model, gradient_checkpointing=on), batches
        )
        for on in (False, True)
    )
    for name, gradient in plain.items():
        assert torch.equal(gradient, checkpointed[name]), name


def test_checkpointing_draws_no_random_numbers_of_its_own(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    """What a later batch of the step draws is the same, too."""
    after = []
    for on in (False, True):
        batch = make_batch(corpus, np.arange(2))
        gradients(learner_of(tokenizer, gradient_checkpointing=on), [batch])
        after.append(torch.rand(4))
    assert torch.equal(*after)


def test_checkpointing_keeps_the_inputs_of_the_layers_only(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    batch = make_batch(corpus, np.arange(40))
    kept = [
        kept_bytes(learner_of(tokenizer, gradient_checkpointing=on), batch) for on in (False, True)
    ]
    assert kept[1] < kept[0] / 5


# torch.compile


@pytest.fixture
def compiler() -> Iterator[None]:
    """Forget what other tests have compiled, or skip where nothing can be compiled."""
    try:
        require_compiler(CPU)
    except BackendError as error:
        pytest.skip(str(error))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Return how far all numbers together are apart, relative to their size."""
    one, other = (
        torch.cat([gradients[name].flatten() for name in exact]) for gradients in (found, exact)
    )
    return float((one - other).norm() / other.norm())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "attention_dropout"), [("math", 0.2), ("sdpa", 0.0)], ids=["math", "sdpa"]
)
def test_compiled_layers_give_the_same_gradient_for_batches_of_all_sizes(
    compiler: None,
    tokenizer: Tokenizer,
    corpus: EncodedCorpus,
    attention: str,
    attention_dropout: float,
) -> None:
    """With dropout: it drops the same elements. After two batches nothing is compiled any more.

    GELU, because at ReLU's kink rounding alone decides between two gradients.
    """
    options: dict[str, Any] = {
        "attention": attention,
        "model": {"attention_dropout": attention_dropout, "activation": "gelu"},
    }
    plain, compiled = (learner_of(tokenizer, compile=on, **options) for on in (False, True))
    parts = [np.arange(9), np.arange(9, 30), np.arange(30, 34), np.arange(34, 60), np.arange(2)]
    batches = [make_batch(corpus, part) for part in parts]
    assert len({(*b.source.shape, *b.target_in.shape) for b in batches}) == len(batches)
    for number, batch in enumerate(batches):
        stance = "default" if number < 2 else "fail_on_recompile"
        with torch.compiler.set_stance(stance):
            found = gradients(compiled, [batch])
        for name, gradient in gradients(plain, [batch]).items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiled_layers_are_as_exact_in_bf16_and_with_checkpointing(
    compiler: None, tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    """They round at fewer places, so that it is the gradient in fp32 that they must be near to."""
    batches = [make_batch(corpus, part) for part in (np.arange(9), np.arange(9, 40))]
    exact, plain, compiled = (
        gradients(learner_of(tokenizer, **options), batches)
        for options in (
            {},
            {"dtype": torch.bfloat16},
            {"dtype": torch.bfloat16, "compile": True, "gradient_checkpointing": True},
        )
    )
    assert 0 < distance(compiled, exact) < 1.1 * distance(plain, exact) < 0.2


@pytest.mark.gpu
@pytest.mark.slow
def test_compiled_layers_give_the_same_gradient_on_cuda(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    """Without dropout: there the compiler has random numbers of its own."""
    device, found = torch.device("cuda"), []
    for on in (False, True):
        shape = {"dropout": 0.0, "attention_dropout": 0.0, "activation": "gelu"}
        learner = learner_of(tokenizer, device=device, attention="auto", model=shape, compile=on)
        found.append(gradients(learner, [make_batch(corpus, np.arange(30))]))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-4)


def test_without_a_compiler_it_is_refused_in_one_line_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    order = ["train", "--config", "demo", "--train", "builtin:60", "-o", str(tmp_path / "run")]
    assert main([*order, "--device", "cpu", "--set", "training.compile=true"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tfm: error: training.compile needs a C++ compiler")
    assert not (tmp_path / "run").exists()
