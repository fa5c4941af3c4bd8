"""Other ways to run the layers in training: what a step computes stays the same."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfm.data.batching import Batch, EncodedCorpus, encode_corpus, make_batch
from tfm.data.corpus import read_pairs
from tfm.data.tokenizer import Tokenizer, train_tokenizer
from tfm.model.attention.choice import resolve
from tfm.model.checkpoint import build_model
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
    network = build_model(settings, tokenizer).train()
    shape = settings.model
    network.use_attention(
        resolve(
            attention,
            device=CPU,
            dtype=dtype,
            dropout=shape.attention_dropout,
            training=True,
            encoder_forms=shape.encoder_forms,
            window=shape.window,
        )
    )
    return Learner.create(network, settings.training, device=CPU, dtype=dtype)


def gradients(learner: Learner, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Return the gradient of the loss of all batches, with the random numbers of step 7."""
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
