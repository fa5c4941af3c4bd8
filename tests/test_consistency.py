"""R-Drop and SimCut: the papers' formulas, what they weigh, and that resuming stays exact."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.data.batching import Batch, EncodedCorpus, encode_corpus, make_batch
from tfm.data.corpus import Pair, read_pairs
from tfm.data.tokenizer import BOS, EOS, PAD, Tokenizer, train_tokenizer
from tfm.model.attention.choice import resolve
from tfm.model.checkpoint import build_model
from tfm.model.settings import Settings
from tfm.model.training import objective
from tfm.model.training.consistency import TwoViews, compare_views, kept_in_second_view
from tfm.model.training.cross_entropy import Compare, Losses
from tfm.model.training.objective import DeviceBatch, Objective
from tfm.model.training.step import Learner, train_step

CPU = torch.device("cpu")
ALMOST_ALL = 1 - 1e-9  # cuts every token but BOS and EOS, so that nothing is left to chance
SETTINGS = Settings.from_tables(
    {
        "tokenizer": {"vocab_size": 400},
        "model": {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    },
    "test",
)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return list(read_pairs("builtin:40", source="en", target="de", split="train"))


@pytest.fixture(scope="module")
def tokenizer(pairs: list[Pair]) -> Tokenizer:
    return train_tokenizer(pairs, SETTINGS.tokenizer)


@pytest.fixture(scope="module")
def corpus(pairs: list[Pair], tokenizer: Tokenizer) -> EncodedCorpus:
    return encode_corpus(pairs, tokenizer, SETTINGS.data)


def learner_with(tokenizer: Tokenizer, *, dropout: float = 0.1, **training: Any) -> Learner:
    settings = replace(
        SETTINGS,
        model=replace(SETTINGS.model, dropout=dropout),
        training=replace(SETTINGS.training, **training),
    )
    torch.manual_seed(1)
    model = build_model(settings, tokenizer)
    model.use_attention(resolve("math", device=CPU, dtype=torch.float32, dropout=0, training=True))
    model.train()
    return Learner.create(model, settings.training, device=CPU, dtype=torch.float32)


@contextmanager
def watched_logits() -> Iterator[list[Tensor]]:
    """Collect the logits that are compared, 2N V, with their gradient as `grad`."""
    seen: list[Tensor] = []

    def watch(hidden: Tensor, matrix: Tensor, targets: Tensor, compare: Compare) -> Losses:
        logits = F.linear(hidden, matrix).detach()
        seen.append(logits.flatten(0, 1).clone())
        losses, gradient = compare(logits, targets)
        seen[-1].grad = gradient.flatten(0, 1)
        return losses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "projected_losses", watch)
        yield seen


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(P || Q) of logits by torch.distributions, summed over rows."""
    categorical = torch.distributions.Categorical
    return torch.distributions.kl_divergence(categorical(logits=p), categorical(logits=q)).sum()


def padded_batch(corpus: EncodedCorpus) -> Batch:
    batch = make_batch(corpus, np.arange(12))
    assert (batch.target_out == PAD).any() and (batch.source == PAD).any()
    return batch


def paper_loss(kind: str, p: Tensor, q: Tensor, targets: Tensor, alpha: float) -> Tensor:
    ce = [F.cross_entropy(x, targets, reduction="sum", label_smoothing=0.1) for x in (p, q)]
    if kind == "r-drop":  # Liang et al. 2021, equations 2 to 4, halved
        return (ce[0] + ce[1] + alpha * 0.5 * (kl(p, q) + kl(q, p))) / 2
    return ce[0] + alpha * kl(p, q)  # Gao et al. 2022, equations 7 and 8


WEIGHTS = {
    "forward": TwoViews(0.0, 0.0, 1.0, 0.0, cutoff=0.0),
    "backward": TwoViews(0.0, 0.0, 0.0, 1.0, cutoff=0.0),
    "all": TwoViews(0.3, 0.7, 1.5, 2.5, cutoff=0.0),
}


@pytest.mark.parametrize("which", WEIGHTS)
def test_divergences_and_their_gradients_are_those_of_autograd(which: str) -> None:
    views, targets = WEIGHTS[which], torch.randint(0, 30, (9,))
    logits = torch.randn(2, 9, 30, dtype=torch.float64).mul(3).requires_grad_()
    p, q = logits
    expected = views.forward * kl(p, q) + views.backward * kl(q, p)
    for view, weight in ((p, views.first), (q, views.second)):
        smoothed = F.cross_entropy(view, targets, reduction="sum", label_smoothing=0.1)
        expected = expected + weight * smoothed
    losses, gradient = compare_views(logits.detach(), targets, views, 0.1)
    torch.testing.assert_close(losses.loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


def test_equal_views_do_not_diverge() -> None:
    logits = torch.randn(1, 9, 30).expand(2, 9, 30)
    found = compare_views(logits, torch.zeros(9, dtype=torch.int64), WEIGHTS["forward"], 0.1)
    assert found.losses.loss == 0 and found.gradient.abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["r-drop", "simcut"])
def test_loss_and_its_gradient_are_those_of_the_paper(
    tokenizer: Tokenizer, corpus: EncodedCorpus, kind: str
) -> None:
    """On padded batches, with label smoothing, against fp64; into both views flow gradients."""
    learner = learner_with(tokenizer, consistency=kind, consistency_weight=2.5, cutoff=0.3)
    batch = padded_batch(corpus)
    with watched_logits() as seen:
        losses = learner.losses(batch)
    [logits] = seen
    targets = torch.from_numpy(batch.target_out[batch.target_out != PAD])
    assert len(logits) == 2 * len(targets)
    exact = logits.detach().double().requires_grad_()
    p, q = exact.chunk(2)
    expected = paper_loss(kind, p, q, targets, 2.5)
    assert not torch.allclose(p, q), "equal views would prove nothing"
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(losses.loss.double(), expected, rtol=1e-5, atol=0)
    assert logits.grad is not None and exact.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)
    assert exact.grad.chunk(2)[1].abs().max() > 1e-3
    nats = [F.cross_entropy(x, targets, reduction="sum") for x in (p, q)]
    plain = nats[0] if kind == "simcut" else (nats[0] + nats[1]) / 2
    torch.testing.assert_close(losses.nats.double(), plain, rtol=1e-5, atol=0)


def test_the_views_are_the_batch_itself_and_the_batch_with_embeddings_cut_out(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    learner = learner_with(tokenizer, dropout=0.0, consistency="simcut", cutoff=ALMOST_ALL)
    batch = padded_batch(corpus)
    with watched_logits() as seen, torch.enable_grad():
        learner.losses(batch)
    first, second = seen[0].detach().chunk(2)
    model = learner.model.eval()
    embedding = model.target_embedding.weight
    on_device = DeviceBatch.from_batch(batch, CPU)

    def plain_logits(embedding_in: Tensor) -> Tensor:
        """Logits of the plain batch, with other embeddings on the way in only."""
        out = embedding.detach().clone()
        with torch.no_grad():
            embedding.copy_(embedding_in)
            memory = model.encode(on_device.source, on_device.source_padding)
            padding = dict(source=on_device.source_padding, target=on_device.target_padding)
            hidden = model.decode(on_device.target_in, memory, **padding)
            embedding.copy_(out)
        return hidden.flatten(0, 1)[on_device.places] @ out.T

    without = embedding.detach().clone()
    without[EOS + 1 :] = 0
    torch.testing.assert_close(first, plain_logits(embedding.detach().clone()))
    torch.testing.assert_close(second, plain_logits(without))


def test_tokens_are_cut_out_of_the_second_view_with_the_probability_asked_for() -> None:
    ids = torch.randint(EOS + 1, 100, (100, 50))
    ids[:, 0], ids[:, -1] = BOS, EOS
    torch.manual_seed(1)
    first, second = kept_in_second_view(ids, 0.2).chunk(2)
    assert first.all() and second[:, 0].all() and second[:, -1].all()
    assert 1 - second[:, 1:-1].float().mean() == pytest.approx(0.2, abs=0.02)
    rates = second[:, 1:-1].float().mean(1)
    assert rates.std() > 0, "each sentence has its own draw"


def test_r_drop_without_dropout_is_the_plain_loss(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    """Both views are the same then: it differs by nothing but the divergence."""
    batch = padded_batch(corpus)
    plain = learner_with(tokenizer, dropout=0.0).losses(batch)
    views = learner_with(tokenizer, dropout=0.0, consistency="r-drop").losses(batch)
    torch.testing.assert_close(views.loss, plain.loss)
    torch.testing.assert_close(views.nats, plain.nats)


@pytest.mark.parametrize("kind", ["r-drop", "simcut"])
def test_measuring_sees_one_view(tokenizer: Tokenizer, corpus: EncodedCorpus, kind: str) -> None:
    learners = [learner_with(tokenizer), learner_with(tokenizer, consistency=kind, cutoff=0.5)]
    batch = padded_batch(corpus)
    for learner in learners:
        learner.model.eval()
    plain, views = (learner.losses(batch) for learner in learners)
    assert (plain.loss, plain.nats) == (views.loss, views.nats)


@pytest.mark.parametrize(
    "views", [TwoViews.r_drop(0.0), TwoViews.simcut(0.0, cutoff=0.5)], ids=["r-drop", "simcut"]
)
def test_a_weight_of_zero_leaves_cross_entropy(
    tokenizer: Tokenizer, corpus: EncodedCorpus, views: TwoViews
) -> None:
    learner = learner_with(tokenizer)
    objective = Objective(learner.model, label_smoothing=0.0, views=views)
    losses = objective(DeviceBatch.from_batch(padded_batch(corpus), CPU))
    torch.testing.assert_close(losses.loss.detach(), losses.nats)


def test_unequal_accumulated_batches_are_one_large_batch(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    """The divergence too is a sum over target tokens."""
    gradients = []
    for parts in ([np.arange(30)], [np.arange(3), np.arange(3, 30)]):
        learner = learner_with(
            tokenizer, dropout=0.0, consistency="simcut", cutoff=ALMOST_ALL, clip=0.0, beta1=0.0
        )
        settings = replace(SETTINGS.training, clip=0.0, beta1=0.0)
        batches = [make_batch(corpus, part) for part in parts]
        train_step(learner, batches, settings, step=1, learning_rate=1e-3)
        state = learner.optimizer.state  # with beta1 = 0 the first moment is the gradient
        gradients.append([state[p]["exp_avg"] for p in learner.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["r-drop", "simcut"])
def test_a_step_follows_from_seed_and_step_and_learns_otherwise(
    tokenizer: Tokenizer, corpus: EncodedCorpus, kind: str
) -> None:
    weights = []
    for consistency, drawn in ((kind, 0), (kind, 5), ("none", 0)):
        learner = learner_with(tokenizer, consistency=consistency, cutoff=0.3)
        torch.rand(drawn)  # another program's random numbers must not matter
        batches = [padded_batch(corpus)]
        train_step(learner, batches, SETTINGS.training, step=7, learning_rate=1e-2)
        weights.append(learner.model.target_embedding.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2], atol=1e-3)


@pytest.mark.parametrize("kind", ["r-drop", "simcut"])
def test_resuming_is_exact(assert_resume_is_exact: Callable[..., None], kind: str) -> None:
    assert_resume_is_exact(consistency=kind, cutoff=0.3)
