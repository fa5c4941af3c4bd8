"""Training: the objective, the step, the order of events, and resuming bit for bit."""

import functools
import json
import math
import random
import re
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tfm.data.batching import EncodedCorpus, encode_corpus, epoch_batches, make_batch
from tfm.data.corpus import Pair
from tfm.data.errors import BackendError
from tfm.data.tokenizer import EOS, PAD, Tokenizer, train_tokenizer
from tfm.model.attention.choice import resolve
from tfm.model.chart import round_ticks
from tfm.model.checkpoint import build_model, load_weights, weights_of
from tfm.model.search.beam import beam_search
from tfm.model.settings import Settings, TrainingSettings
from tfm.model.tensor_file import read_tensors
from tfm.model.training.curve import learning_curve
from tfm.model.training.directory import RunDirectory
from tfm.model.training.identity import CorpusRecord, earlier_sittings
from tfm.model.training.loop import train
from tfm.model.training.material import Order, validation_set
from tfm.model.training.metrics import Metrics
from tfm.model.training.objective import DeviceBatch, Objective
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence, StepReport
from tfm.model.training.run import Run
from tfm.model.training.schedule import learning_rate
from tfm.model.training.signals import Interrupted, StopSignals
from tfm.model.training.state import BatchStream, Progress
from tfm.model.training.step import Diverged, Learner, clip_gradient, train_step
from tfm.model.training.validation import (
    Validation,
    ValidationScores,
    ValidationSet,
    validate,
)

CPU = torch.device("cpu")
WORDS = "red blue green old new cat dog man bird house runs sees finds eats likes two".split()


def copy_pairs(count: int, *, seed: int) -> list[Pair]:
    """Return pairs of 1 to 6 random words whose translation is the source itself."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(count)]
    return [Pair(text, text) for text in texts]


SETTINGS = Settings.from_tables(
    {
        "tokenizer": {"vocab_size": 310},
        "model": {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "training": {
            "steps": 12,
            "batch_tokens": 120,
            "accumulate": 2,
            "warmup_steps": 4,
            "validate_every": 4,
            "validate_sentences": 4,
            "checkpoint_every": 5,
            "average_last": 2,
        },
        "decoding": {"max_length": 12},
    },
    "test",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(copy_pairs(300, seed=0), SETTINGS.tokenizer)


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> EncodedCorpus:
    return encode_corpus(copy_pairs(60, seed=1), tokenizer, SETTINGS.data)


def new_learner(
    tokenizer: Tokenizer, settings: Settings = SETTINGS, dtype: torch.dtype = torch.float32
) -> Learner:
    torch.manual_seed(settings.training.seed)
    model = build_model(settings, tokenizer)
    plan = resolve("math", device=CPU, dtype=dtype, dropout=0.0, training=True)
    model.use_attention(plan)
    return Learner.create(model, settings.training, device=CPU, dtype=dtype)


def in_steps(**changes: Any) -> Settings:
    return replace(SETTINGS, training=replace(SETTINGS.training, **changes))


@pytest.fixture(scope="module")
def new_run(tokenizer: Tokenizer, corpus: EncodedCorpus) -> Callable[..., Run]:
    """Make a run on the copy task in a directory; it goes on where an earlier one stopped."""

    def make(
        path: Path,
        settings: Settings = SETTINGS,
        *,
        valid: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> Run:
        directory = RunDirectory(path)
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        pairs = copy_pairs(8, seed=2)
        run = Run(
            directory=directory,
            settings=settings,
            learner=new_learner(tokenizer, settings, dtype),
            tokenizer=tokenizer,
            corpus=corpus,
            valid=ValidationSet(encode_corpus(pairs, tokenizer, settings.data), pairs[:4])
            if valid
            else None,
            identity={},
            progress=Progress(),
            metrics=Metrics(directory.metrics),
        )
        if directory.last.exists():
            run.resume(read_tensors(directory.last))
        else:
            run.start()
        return run

    return make


# Objective


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_loss_is_that_of_torch_on_padded_batches(
    tokenizer: Tokenizer, corpus: EncodedCorpus, smoothing: float
) -> None:
    model = new_learner(tokenizer).model.eval()
    batch = make_batch(corpus, np.arange(20))
    assert (batch.target_out == PAD).any(), "a test without padding would prove nothing"
    on_device = DeviceBatch.from_batch(batch, CPU)
    found = Objective(model, label_smoothing=smoothing)(on_device)
    logits = model(
        on_device.source,
        on_device.target_in,
        source=on_device.source_padding,
        target=on_device.target_padding,
    ).flatten(0, 1)
    targets = torch.from_numpy(batch.target_out).flatten()
    for value, amount in ((found.loss, smoothing), (found.nats, 0.0)):
        expected = F.cross_entropy(
            logits, targets, ignore_index=PAD, reduction="sum", label_smoothing=amount
        )
        torch.testing.assert_close(value, expected)
    assert len(on_device.targets) == (batch.target_out != PAD).sum()


def test_unequal_accumulated_batches_are_one_large_batch(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    settings = replace(in_steps(clip=0.0, beta1=0.0), model=replace(SETTINGS.model, dropout=0.0))
    gradients = []
    for parts in ([np.arange(30)], [np.arange(3), np.arange(3, 30)]):
        learner = new_learner(tokenizer, settings)
        batches = [make_batch(corpus, part) for part in parts]
        train_step(learner, batches, settings.training, step=1, learning_rate=1e-3)
        state = learner.optimizer.state  # with beta1 = 0 the first moment is the gradient
        gradients.append([state[p]["exp_avg"] for p in learner.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_loss_of_a_step_is_the_mean_over_all_its_target_tokens(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    learner = new_learner(tokenizer)
    learner.model.eval()  # no dropout
    batches = [make_batch(corpus, part) for part in (np.arange(2), np.arange(2, 40))]
    with torch.no_grad():
        sums = [float(learner.losses(batch).loss) for batch in batches]
    result = train_step(learner, batches, SETTINGS.training, step=1, learning_rate=1e-3)
    assert result.loss == pytest.approx(sum(sums), rel=1e-5)
    assert result.target_tokens == sum(int(b.target_lengths.sum()) for b in batches)
    assert result.tokens == result.target_tokens + sum(int(b.source_lengths.sum()) for b in batches)


def test_the_objective_may_be_wrapped_and_the_model_stays_plain(
    new_run: Callable[..., Run], whole: RunDirectory, tmp_path: Path
) -> None:
    """As a compiler does it: every loss comes from the wrapper's forward, and its names of weights
    are saved nowhere."""

    class Wrapper(torch.nn.Module):
        calls = 0

        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, batch: DeviceBatch) -> Any:
            self.calls += 1
            return self.module(batch)

    run = new_run(tmp_path)
    wrapper = Wrapper(run.learner.objective)
    run.learner.objective = wrapper
    train(run, Silence())
    assert wrapper.calls > SETTINGS.training.accumulate * SETTINGS.training.steps
    assert_same_run(whole, run.directory)


# Schedule and step


def test_inverse_square_root_schedule() -> None:
    settings = TrainingSettings(learning_rate=1e-3, warmup_steps=100, schedule="inverse_sqrt")
    assert learning_rate(1, settings) == pytest.approx(1e-5)
    assert learning_rate(50, settings) == pytest.approx(5e-4)
    assert learning_rate(100, settings) == pytest.approx(1e-3)
    assert learning_rate(400, settings) == pytest.approx(5e-4)


def test_inverse_square_root_is_the_papers_formula_with_its_peak() -> None:
    d_model, warmup = 512, 4000
    peak = (d_model * warmup) ** -0.5
    settings = TrainingSettings(learning_rate=peak, warmup_steps=warmup)
    for step in (1, 17, 4000, 4001, 100_000):
        paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # section 5.3, equation 3
        assert learning_rate(step, settings) == pytest.approx(paper)


def test_cosine_schedule() -> None:
    settings = TrainingSettings(learning_rate=2.0, warmup_steps=10, schedule="cosine", steps=109)
    assert learning_rate(5, settings) == pytest.approx(1.0)
    assert learning_rate(10, settings) == pytest.approx(2.0)
    assert learning_rate(60, settings) == pytest.approx(1.0)
    assert 0 < learning_rate(109, settings) < 1e-3
    rates = [learning_rate(step, settings) for step in range(10, 110)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine"])
def test_schedule_without_warm_up_starts_at_the_peak(schedule: Any) -> None:
    settings = TrainingSettings(warmup_steps=0, schedule=schedule)
    assert learning_rate(1, settings) == pytest.approx(settings.learning_rate, rel=1e-6)


def test_clipping_scales_the_gradient_to_the_limit_and_returns_the_norm_before() -> None:
    layer = torch.nn.Linear(3, 1, bias=False)
    for limit, expected in ((1.0, 1.0), (10.0, 5.0), (0.0, 5.0)):
        layer.weight.grad = torch.tensor([[3.0, 0.0, 4.0]])
        assert float(clip_gradient(layer, limit)) == pytest.approx(5.0)
        assert float(layer.weight.grad.norm()) == pytest.approx(expected, rel=1e-4)


def test_weight_decay_spares_biases_and_norms(tokenizer: Tokenizer) -> None:
    learner = new_learner(tokenizer, in_steps(weight_decay=0.1))
    decay = {
        parameter: group["weight_decay"]
        for group in learner.optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in learner.model.named_parameters():
        assert decay[parameter] == (0.0 if name.endswith("bias") or "norm" in name else 0.1)


def test_random_numbers_of_a_step_follow_from_seed_and_step(
    tokenizer: Tokenizer, corpus: EncodedCorpus
) -> None:
    """Whatever was drawn before; and no two of them share their dropout masks."""
    batch = make_batch(corpus, np.arange(20))
    losses = {}
    for seed, step, drawn in [(1, 3, 0), (1, 3, 5), (1, 4, 0), (3, 1, 0), (2, 3, 0), (1, 2**33, 0)]:
        learner = new_learner(tokenizer)
        torch.rand(drawn)
        settings = in_steps(seed=seed).training
        result = train_step(learner, [batch], settings, step=step, learning_rate=1e-3)
        assert losses.setdefault((seed, step), result.nats) == result.nats
    assert len(set(losses.values())) == 5


def test_the_state_holds_weights_and_moments_only(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    names = read_tensors(new_run(tmp_path).directory.last).tensors
    assert {name.partition(".")[0] for name in names} <= {"model", "optimizer"}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_before_the_step_and_names_it(
    new_run: Callable[..., Run], tmp_path: Path, bad: float
) -> None:
    run = new_run(tmp_path)

    class Poison(Silence):
        def on_step(self, report: StepReport) -> None:
            if report.step == 6:
                with torch.no_grad():
                    next(run.learner.model.parameters())[5:] = bad
                self.weights = {n: w.clone() for n, w in weights_of(run.learner.model).items()}

    poison = Poison()
    with pytest.raises(Diverged, match=r"step 7: the loss is .*learning_rate"):
        train(run, poison)
    for name, weight in weights_of(run.learner.model).items():
        assert torch.equal(weight.nan_to_num(), poison.weights[name].nan_to_num())
    assert read_tensors(run.directory.last).header["progress"]["step"] == 5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training_on_cuda_follows_the_cpu(
    tokenizer: Tokenizer, corpus: EncodedCorpus, dtype: torch.dtype
) -> None:
    settings = replace(SETTINGS, model=replace(SETTINGS.model, dropout=0.0))
    losses = []
    for device, precision in ((CPU, torch.float32), (torch.device("cuda"), dtype)):
        model = new_learner(tokenizer, settings).model.to(device)
        learner = Learner.create(model, settings.training, device=device, dtype=precision)
        batch = make_batch(corpus, np.arange(30))
        steps = [
            train_step(learner, [batch], settings.training, step=step, learning_rate=1e-3)
            for step in range(1, 31)
        ]
        losses.append(steps[-1].nats / steps[-1].target_tokens)
        assert losses[-1] < steps[0].nats / steps[0].target_tokens
    # fp16 leaves out its first steps, until its loss scale fits.
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if dtype == torch.float32 else 0.1)


# Learning


def test_copy_task_is_learned_in_seconds(tokenizer: Tokenizer) -> None:
    settings = Settings.from_tables(
        {
            "model": {
                "d_model": 64,
                "d_ff": 128,
                "heads": 4,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "dropout": 0.0,
            },
            "training": {
                "steps": 400,
                "learning_rate": 5e-3,
                "warmup_steps": 50,
                "schedule": "cosine",
                "label_smoothing": 0.0,
            },
            "decoding": {"beam": 1},
        },
        "test",
    )
    learner = new_learner(tokenizer, settings)
    corpus = encode_corpus(copy_pairs(4000, seed=3), tokenizer, settings.data)
    stream = BatchStream(corpus, replace(settings.training, batch_tokens=600), Progress())
    for step in range(1, settings.training.steps + 1):
        rate = learning_rate(step, settings.training)
        train_step(learner, stream.take(1), settings.training, step=step, learning_rate=rate)
    held_out = copy_pairs(200, seed=4)
    sources = [[*tokenizer.encode_source(pair.source), EOS] for pair in held_out]
    found = beam_search(learner.model.eval(), sources, settings.decoding)
    right = sum(
        tokenizer.decode_target(best.tokens) == pair.target
        for [best], pair in zip(found, held_out, strict=True)
    )
    assert right > 0.98 * len(held_out)


def test_validation_loss_falls_on_the_built_in_corpus(tiny_model_directory: Path) -> None:
    records = read_metrics(RunDirectory(tiny_model_directory))
    losses = [record["nats_per_token"] for record in records if record["kind"] == "valid"]
    assert len(losses) == 2 and losses[1] < losses[0] < math.log(450)


# The order of events


class StopAfter(Silence):
    """Sends SIGTERM to this process after a step, as a cluster does, or crashes right there."""

    def __init__(self, step: int, *, crash: bool = False) -> None:
        self.step, self.crash = step, crash

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            if self.crash:
                raise RuntimeError("power cut")
            signal.raise_signal(signal.SIGTERM)


def comparable(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what a clock measures."""
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_s")}
        for record in records
    ]


def read_metrics(directory: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in directory.metrics.read_text().splitlines()]


def assert_same_run(a: RunDirectory, b: RunDirectory) -> None:
    names = sorted(path.name for path in a.checkpoints.iterdir())
    assert names == sorted(path.name for path in b.checkpoints.iterdir())
    for path in [a.weights, *a.checkpoints.iterdir()]:
        one = read_tensors(path).tensors
        other = read_tensors(b.path / path.relative_to(a.path)).tensors
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), f"{path.name}: {name}"
    assert comparable(read_metrics(a)) == comparable(read_metrics(b))


@pytest.fixture(scope="module")
def whole_in(
    new_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[torch.dtype], RunDirectory]:
    """Return the directory of a run in a precision that nothing stopped."""

    @functools.cache
    def make(dtype: torch.dtype) -> RunDirectory:
        run = new_run(tmp_path_factory.mktemp("whole"), dtype=dtype)
        train(run, Silence())
        return run.directory

    return make


@pytest.fixture(scope="module")
def whole(whole_in: Callable[[torch.dtype], RunDirectory]) -> RunDirectory:
    return whole_in(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("crash", [False, True], ids=["signal", "crash"])
@pytest.mark.parametrize("stop", [1, 4, 7, 12])
def test_a_run_that_was_stopped_is_bit_for_bit_one_that_was_not(
    new_run: Callable[..., Run],
    whole_in: Callable[[torch.dtype], RunDirectory],
    tmp_path: Path,
    stop: int,
    crash: bool,
    dtype: torch.dtype,
) -> None:
    with pytest.raises(RuntimeError if crash else Interrupted):
        train(new_run(tmp_path, dtype=dtype), StopAfter(stop, crash=crash))
    resumed = new_run(tmp_path, dtype=dtype)
    assert resumed.progress.step == (stop // 5 * 5 if crash else stop)
    torch.rand(3)  # another program's random numbers must not matter
    again = new_run(tmp_path, dtype=dtype)
    train(again, Silence())
    assert_same_run(whole_in(dtype), again.directory)
    assert 0 < again.progress.batch, "the stop must lie within an epoch"


@pytest.mark.parametrize("count", [1, 3, 4], ids=["plain", "before a checkpoint", "of the average"])
def test_a_validation_that_was_stopped_is_done_again(
    new_run: Callable[..., Run],
    whole: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    calls = 0

    def interrupting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            signal.raise_signal(signal.SIGTERM)
        return epoch_batches(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("tfm.model.training.validation.epoch_batches", interrupting)
        with pytest.raises(Interrupted):
            train(new_run(tmp_path), Silence())
    assert calls == count, "it must stop within this validation"
    resumed = new_run(tmp_path)
    assert resumed.progress.step == min(4 * count, 12)
    if count == 4:  # the average was in the model: it is no state to go on from
        trained = read_tensors(resumed.directory.snapshot(12)).tensors
        for name, weight in weights_of(resumed.learner.model).items():
            assert torch.equal(weight, trained[name])
    train(resumed, Silence())
    assert_same_run(whole, resumed.directory)


def test_an_ignored_hang_up_stays_ignored_and_another_stops() -> None:
    for before, expected in ((signal.SIG_IGN, None), (signal.SIG_DFL, signal.SIGHUP)):
        original = signal.signal(signal.SIGHUP, before)
        try:
            with StopSignals() as signals:
                signal.raise_signal(signal.SIGHUP)
            assert signals.received == expected
            assert signal.getsignal(signal.SIGHUP) == before
        finally:
            signal.signal(signal.SIGHUP, original)


def test_best_is_told_with_its_own_step_and_scores_after_a_crash(
    new_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the best weights and the state leaves weights that are younger than it."""
    scores = iter([10.0, 20.0, 5.0])
    monkeypatch.setattr(
        "tfm.model.training.loop.validate",
        lambda *_, **__: Validation(
            ValidationScores(loss=1.0, nats_per_token=1.0, bleu=next(scores))
        ),
    )

    class Crash(Silence):
        def on_validation(self, step: int, scores: ValidationScores, *, best: bool) -> None:
            if step == 8:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        train(new_run(tmp_path), Crash())
    run = new_run(tmp_path, in_steps(steps=6, average_last=0))
    assert (run.progress.step, read_tensors(run.directory.best).header["step"]) == (5, 8)
    outcome = train(run, Silence())
    weights = read_tensors(run.directory.weights)
    assert (outcome.best_step, outcome.scores["best"].bleu) == (8, 20.0)
    assert read_metrics(run.directory)[-1]["best_step"] == 8
    best = read_tensors(run.directory.best).tensors
    assert all(torch.equal(best[name], weight) for name, weight in weights.tensors.items())


def test_bleu_is_recorded_with_its_conditions(whole: RunDirectory) -> None:
    records = read_metrics(whole)
    places = [record for record in records if record["kind"] == "valid"]
    assert len(places) == 3
    for scores in [*places, *records[-1]["candidates"].values()]:
        assert re.match(r"nrefs:1\|case:mixed\|.*tok:13a.*version:", scores["bleu_signature"])
        assert scores["bleu_search"] == "greedy"


def test_a_stop_while_the_final_weights_are_chosen_is_made_up_for(
    new_run: Callable[..., Run],
    whole: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = new_run(tmp_path / "stopped")
    with monkeypatch.context() as patch:
        patch.setattr(stopped, "save", lambda: None)
        patch.setattr(stopped, "checkpoint", lambda: Run.checkpoint(stopped))
        train(stopped, Silence())
    again = new_run(tmp_path / "stopped")
    assert not again.complete
    train(again, Silence())
    assert_same_run(whole, again.directory)
    assert new_run(tmp_path / "stopped").complete


def test_metrics_tell_one_story(new_run: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(new_run(tmp_path), StopAfter(11, crash=True))
    with RunDirectory(tmp_path).metrics.open("a") as file:
        file.write('{"kind": "tra')  # what a crash may leave
    train(new_run(tmp_path), Silence())
    records = read_metrics(RunDirectory(tmp_path))
    assert [(r["kind"], r["step"]) for r in records] == [
        ("valid", 4),
        *[("sample", 4)] * 2,
        ("valid", 8),
        *[("sample", 8)] * 2,
        ("train", 10),
        ("train", 12),
        ("valid", 12),
        *[("sample", 12)] * 2,
        ("final", 12),
    ]
    logged = next(record for record in records if record["kind"] == "train")
    assert logged["learning_rate"] == learning_rate(10, SETTINGS.training)
    assert logged["gradient_norm"] > 0 and logged["tokens_per_s"] > 0
    assert 0 < logged["nats_per_token"] < 10 and logged["loss"] > 0


def test_a_finished_run_writes_a_deleted_model_again(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    train(new_run(tmp_path), Silence())
    directory = RunDirectory(tmp_path)
    before, records = directory.weights.read_bytes(), read_metrics(directory)
    directory.weights.unlink()
    again = new_run(tmp_path)
    assert not again.complete
    train(again, Silence())
    assert directory.weights.read_bytes() == before
    assert [r["kind"] for r in read_metrics(directory)] == [r["kind"] for r in records]
    assert new_run(tmp_path).complete


def test_a_damaged_record_of_the_past_does_not_stop_a_run(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    """metrics.jsonl and provenance.json tell of a run; nothing is continued from them."""
    with pytest.raises(RuntimeError):
        train(new_run(tmp_path), StopAfter(11, crash=True))
    directory = RunDirectory(tmp_path)
    with directory.metrics.open("ab") as file:
        file.write(
            b'\xff\xfe\x00\n{"kind": "train", "step": "x"}\n{"kind": "valid", "step": null}\n'
        )
        file.write(b'{"kind": [], "step": 1}\n' + b"[" * 5000 + b"\n")
        file.write(b'{"kind": "train", "step": 1, "loss": "x"}\n')
    for damaged in (b"\xff", b"[" * 5000, b'{"sittings": 3}', b'{"sittings": ["?"]}'):
        directory.provenance.write_bytes(damaged)
        assert earlier_sittings(directory.provenance) == []
    train(new_run(tmp_path), Silence())
    assert read_metrics(directory)[-1]["kind"] == "final"


def test_a_validation_that_is_to_be_done_again_is_not_told_twice(tmp_path: Path) -> None:
    """The state was saved within it; a kill came after its end and before the next state."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for kind, step in (("valid", 4), ("train", 8), ("valid", 8)):
        metrics.add(kind, step)
    for settled, kinds in ((True, ["valid", "train", "valid"]), (False, ["valid", "train"])):
        metrics.resume(8, settled=settled, finished=False)
        assert [record["kind"] for record in metrics.records] == kinds


def test_validation_may_draw_random_numbers_and_changes_no_weights(
    new_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search_that_draws(learner: Learner, pairs: list[Pair], *_: object) -> list[str]:
        torch.rand(1)
        return [pair.source for pair in pairs]

    monkeypatch.setattr("tfm.model.training.validation.translate_greedily", search_that_draws)
    last = []
    for every in (1, 100):
        run = new_run(tmp_path / str(every), in_steps(validate_every=every))
        train(run, Silence())
        last.append(read_tensors(run.directory.last).tensors)
    for name in last[0]:
        assert torch.equal(last[0][name], last[1][name]), name


def test_blank_and_too_long_pairs_are_not_validated_on(tokenizer: Tokenizer) -> None:
    good = copy_pairs(3, seed=3)
    bad = [Pair("", "red"), Pair("red", " "), Pair("red " * 300, "red")]
    valid = validation_set([*bad, *good], tokenizer, SETTINGS)
    assert valid.pairs == good and len(valid.corpus) == 3


def test_validation_loss_covers_the_whole_corpus_and_ignores_batching(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = new_run(tmp_path)
    assert run.valid is not None
    found = validate(run.learner, run.valid, run.tokenizer, run.settings, check=lambda: None).scores
    batch = make_batch(run.valid.corpus, np.arange(8))
    run.learner.model.eval()
    with torch.no_grad():
        whole = run.learner.losses(batch)
    tokens = int(batch.target_lengths.sum())
    assert found.nats_per_token == pytest.approx(float(whole.nats) / tokens, rel=1e-5)
    assert found.loss == pytest.approx(float(whole.loss) / tokens, rel=1e-5)
    assert found.bleu is not None and 0 <= found.bleu <= 100


def test_patience_stops_after_so_many_validations_without_a_new_best(
    new_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([5.0, 7.0, 6.0, 7.0, 6.5, 9.0, 9.0])
    monkeypatch.setattr(
        "tfm.model.training.loop.validate",
        lambda *_, **__: Validation(
            ValidationScores(loss=1.0, nats_per_token=1.0, bleu=next(scores))
        ),
    )
    settings = in_steps(validate_every=1, patience=3, average_last=0)
    run = new_run(tmp_path, settings)
    outcome = train(run, Silence())
    assert outcome.early and run.progress.step == 5
    assert outcome.best_step == 2
    assert outcome.scores["best"].bleu == 7.0
    assert new_run(tmp_path, settings).complete
    on = new_run(tmp_path, in_steps(validate_every=1, average_last=0))
    assert not on.complete, "without patience the same run goes on"


def test_best_is_the_highest_bleu_or_the_lowest_loss() -> None:
    a, b = ValidationScores(1.0, 2.0, 30.0), ValidationScores(1.0, 1.5, 29.0)
    assert a.better_than(b, "bleu") and not b.better_than(a, "bleu")
    assert b.better_than(a, "loss") and not a.better_than(b, "loss")
    assert a.better_than(None, "bleu")
    assert replace(b, bleu=30.0).better_than(a, "bleu"), "the loss decides between equals"
    assert not a.better_than(a, "bleu")


def test_average_is_the_mean_of_the_snapshots(new_run: Callable[..., Run], tmp_path: Path) -> None:
    run = new_run(tmp_path, in_steps(checkpoint_every=3, average_last=3), valid=False)
    outcome = train(run, Silence())
    assert outcome.chosen == "average" and run.progress.snapshots == [6, 9, 12]
    kept = sorted(run.directory.checkpoints.glob("step-*"))
    assert kept == [run.directory.snapshot(step) for step in (6, 9, 12)]
    parts = [read_tensors(path).tensors for path in kept]
    final = read_tensors(run.directory.weights).tensors
    for name, tensor in final.items():
        mean = torch.stack([part[name] for part in parts]).double().mean(0).float()
        torch.testing.assert_close(tensor, mean, atol=1e-7, rtol=0)


def test_the_better_of_best_and_average_becomes_the_model(
    new_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for average, chosen in ((99.0, "average"), (1.0, "best")):
        monkeypatch.setattr(
            "tfm.model.training.selection.validate",
            lambda *_, bleu=average, **__: Validation(
                ValidationScores(loss=1.0, nats_per_token=1.0, bleu=bleu)
            ),
        )
        monkeypatch.setattr(
            "tfm.model.training.loop.validate",
            lambda *_, **__: Validation(ValidationScores(loss=1.0, nats_per_token=1.0, bleu=50.0)),
        )
        run = new_run(tmp_path / chosen)
        outcome = train(run, Silence())
        assert outcome.chosen == chosen
        final = read_metrics(run.directory)[-1]
        assert (final["kind"], final["chosen"]) == ("final", chosen)
        assert final["candidates"]["average"]["bleu"] == average
        model = new_learner(run.tokenizer).model
        load_weights(run.directory.weights, model)
        best = read_tensors(run.directory.best).tensors
        is_best = all(torch.equal(w, best[name]) for name, w in weights_of(model).items())
        assert is_best == (chosen == "best")


def test_the_directory_is_usable_from_the_first_validation_on(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train(new_run(tmp_path), StopAfter(5))
    directory = RunDirectory(tmp_path)
    assert read_tensors(directory.weights).header["step"] == 4
    assert read_tensors(directory.weights).header["scores"]["bleu"] >= 0
    assert "<svg" in directory.curve.read_text("utf-8"), "drawn at the validation, not at the end"


def test_more_steps_continue_a_finished_run(new_run: Callable[..., Run], tmp_path: Path) -> None:
    train(new_run(tmp_path), Silence())
    run = new_run(tmp_path, in_steps(steps=20))
    assert not run.complete and run.progress.step == 12
    train(run, Silence())
    assert run.progress.step == 20 and run.complete


@pytest.mark.parametrize(
    ("corpus_string", "recorded"),
    [
        ("/home/alice/data/train", "train"),
        ("builtin:200", "builtin:200"),
        ("hf:user/set:config:train", "hf:user/set:config:train"),
        ("hf:/home/alice/set::train", "hf:set::train"),
        ("hf:~/set", "hf:set"),
    ],
)
def test_the_record_of_a_corpus_names_no_place(
    corpus: EncodedCorpus, corpus_string: str, recorded: str
) -> None:
    assert CorpusRecord.of(corpus_string, "0" * 64, corpus).corpus == recorded


def test_attention_that_cannot_take_the_head_width_is_refused_up_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**facts: Any) -> list[str]:
        return [f"head width {facts['head_width']}"]  # as a GPU's flash kernels do beyond 256

    monkeypatch.setattr("tfm.model.attention.flash.refusals", refuse)
    wide = replace(SETTINGS, model=replace(SETTINGS.model, d_model=1200, heads=4))
    order = Order(settings=wide, train="nowhere", valid=None, directory=tmp_path, attention="flash")
    with pytest.raises(BackendError, match="head width 300"), prepare(order, Silence()):
        pass


def test_snapshots_of_an_earlier_sitting_are_averaged_only_if_asked_for(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    train(new_run(tmp_path, in_steps(checkpoint_every=3, average_last=3), valid=False), Silence())
    fewer = new_run(tmp_path, in_steps(checkpoint_every=3, average_last=2, steps=12), valid=False)
    train(fewer, Silence())
    assert fewer.progress.snapshots == [9, 12]
    settings = in_steps(checkpoint_every=3, average_last=0, steps=20)
    run = new_run(tmp_path, settings, valid=False)
    assert train(run, Silence()).chosen == "last"
    assert not list(run.directory.checkpoints.glob("step-*"))
    final, last = (
        read_tensors(path).tensors for path in (run.directory.weights, run.directory.last)
    )
    assert all(torch.equal(weight, last[f"model.{name}"]) for name, weight in final.items())


def test_fewer_steps_than_done_end_the_run_where_it_is(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train(new_run(tmp_path), StopAfter(3))
    run = new_run(tmp_path, in_steps(steps=2))
    train(run, Silence())
    assert run.progress.step == 3 and run.complete and run.directory.weights.exists()


def test_same_seed_same_run_and_another_seed_another(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    runs = [new_run(tmp_path / str(i), in_steps(seed=seed)) for i, seed in enumerate((1, 1, 2))]
    for run in runs:
        torch.manual_seed(run.settings.training.seed)
        train(run, Silence())
    losses = [comparable(run.metrics.records) for run in runs]
    assert losses[0] == losses[1] != losses[2]


def test_bf16_trains_close_to_fp32(tokenizer: Tokenizer, corpus: EncodedCorpus) -> None:
    batch = make_batch(corpus, np.arange(20))
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        learner = replace(new_learner(tokenizer), dtype=dtype)
        results.append(train_step(learner, [batch], SETTINGS.training, step=1, learning_rate=1e-3))
        assert all(p.dtype == torch.float32 for p in learner.model.parameters())
    assert results[0].nats != results[1].nats
    assert results[0].nats == pytest.approx(results[1].nats, rel=0.02)


# The learning curve


def test_learning_curve_is_a_self_contained_svg(
    new_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = new_run(tmp_path)
    train(run, Silence())
    text = run.directory.curve.read_text("utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert text.count("http") == 1, "nothing but the name space points outside"
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("step", "nats per token", "BLEU", "training loss", "validation loss"):
        assert label in words
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [line.get("class") for line in lines] == ["line train", "line valid", "line bleu"]
    for line in lines:
        for place in (line.get("points") or "").split():
            x, y = map(float, place.split(","))
            assert 70 <= x <= 750 and 60 <= y <= 380


def test_learning_curve_of_no_records_is_valid_too(tmp_path: Path) -> None:
    root = ElementTree.fromstring(learning_curve(Metrics(tmp_path / "none"), "a < b & c"))
    assert "a < b & c" in list(root.itertext())


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (0, 6000), (1.31, 9.87), (3.2, 3.2), (0, 41.7), (-2, -1), (1e-9, 2e9)]
)
def test_ticks_are_round_and_cover_the_values(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert 3 <= len(ticks) <= 8
    assert ticks[0] <= low and ticks[-1] >= high
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])
    mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 5, 10)) < 1e-6
