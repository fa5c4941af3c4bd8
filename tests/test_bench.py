"""`tfm bench`: the figures are what they say they are."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tfm.cli.main import main
from tfm.data.batching import Batch, EncodedCorpus, Side, make_batch
from tfm.data.tokenizer import BOS
from tfm.model import linear
from tfm.model.benchmarks.products import training_flops
from tfm.model.benchmarks.training import measure_training, run_lap, stopwatch
from tfm.model.settings import ModelSettings, Settings
from tfm.model.training.state import BatchStream, Progress
from tfm.model.training.step import Learner
from tfm.model.transformer import Transformer

VOCAB = 50
SMALL = ModelSettings(d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=2)
SETTINGS = replace(Settings(), model=SMALL, training=replace(Settings().training, batch_tokens=60))


def side(lengths: list[int]) -> Side:
    offsets = np.cumsum([0, *lengths])
    return Side(np.full(offsets[-1], BOS + 2, dtype=np.int32), offsets)


def corpus(source: list[int], target: list[int]) -> EncodedCorpus:
    return EncodedCorpus(side(source), side(target))


def new_learner(model: ModelSettings = SMALL) -> Learner:
    torch.manual_seed(1)
    network = Transformer(model, source_vocab=VOCAB, target_vocab=VOCAB, joint=True)
    return Learner.create(
        network, SETTINGS.training, device=torch.device("cpu"), dtype=torch.float32
    )


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_flops_are_those_that_torch_counts_where_nothing_is_padded(
    activation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "mkl_is_slow", lambda: False)  # torch counts no products of oneDNN
    model = replace(SMALL, activation=activation)
    batch = make_batch(corpus([6] * 3, [8] * 3), np.arange(3))
    with FlopCounterMode(display=False) as counter:
        new_learner(model).losses(batch).loss.backward()
    assert training_flops(model, VOCAB, batch) == counter.get_total_flops()


def test_an_encoder_layer_counts_the_pairs_that_its_form_multiplies() -> None:
    batch = make_batch(corpus([60] * 3, [8] * 3), np.arange(3))
    tokens = int(batch.source_lengths.sum())

    def flops(**settings: Any) -> int:
        return training_flops(replace(SMALL, **settings), VOCAB, batch)

    spared = flops() - flops(encoder_attention="local", window=10)
    assert spared == 3 * 4 * SMALL.d_model * tokens * (int(batch.source_lengths[0]) - 11)
    width = SMALL.d_model // SMALL.heads
    spared = flops() - flops(encoder_attention="linear")
    assert spared == 3 * 4 * SMALL.d_model * tokens * (int(batch.source_lengths[0]) - width)
    assert flops(encoder_attention="local", window=200) == flops()


def test_padding_counts_neither_as_tokens_nor_as_arithmetic() -> None:
    one, other = ([6], [8]), ([2], [3])
    both = corpus(one[0] + other[0], one[1] + other[1])
    apart = sum(training_flops(SMALL, VOCAB, make_batch(both, np.array([i]))) for i in range(2))

    class OneBatch(BatchStream):
        def take(self, count: int) -> list[Batch]:
            return [make_batch(both, np.arange(2))]

    stream = OneBatch(both, SETTINGS.training, Progress())
    lap = run_lap(new_learner(), stream, SETTINGS, seconds=0)
    assert lap.flops == apart
    assert lap.tokens == 7 + 9 + 3 + 4
    assert lap.padding == pytest.approx(1 - 23 / (2 * 7 + 2 * 9))


def test_phases_add_up_to_the_steps_and_the_stopwatch_leaves_no_trace() -> None:
    learner, pairs = new_learner(), corpus([6] * 9, [8] * 9)
    stream = BatchStream(pairs, SETTINGS.training, Progress())
    before = vars(learner).keys(), vars(learner.optimizer).keys(), vars(stream).keys()
    with stopwatch(learner, stream) as watch:
        learner.losses(stream.take(1)[0]).loss.backward()
    assert before == (vars(learner).keys(), vars(learner.optimizer).keys(), vars(stream).keys())
    assert list(watch.spent) == [
        "data", "encoder", "decoder", "projection and loss", "backward"
    ]  # fmt: skip
    assert all(seconds > 0 for seconds in watch.spent.values())


def test_the_share_of_the_peak_is_that_of_the_arithmetic() -> None:
    speed = measure_training(new_learner(), corpus([6] * 9, [8] * 9), SETTINGS, seconds=0)
    rate = speed.lap.flops / speed.lap.seconds
    assert speed.peak_flops > rate, "nothing beats what large products alone reach"
    assert speed.share_of_peak == pytest.approx(rate / speed.peak_flops)


def test_training_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "--seconds", "0"]) == 2
    assert "--seconds 0: must be above 0" in capsys.readouterr().err


def test_the_command_prints_a_table_or_json(run_tfm: Callable[..., Any]) -> None:
    arguments = ["bench", "train", "--train", "builtin:200", "--seconds", "0.001"]
    for setting in ("tokenizer.vocab_size=450", "model.d_model=32", "training.batch_tokens=600"):
        arguments += ["--set", setting]
    done = run_tfm(*arguments, "--json", "--precision", "fp32")
    assert done.code == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["tokens_per_s"] == pytest.approx(figures["tokens"] / figures["seconds"], rel=0.1)
    assert figures["model"]["d_model"] == 32 and figures["batch_tokens"] == 600
    assert figures["precision"] == "fp32" and figures["train"] == "builtin:200"
    assert sum(phase["share"] for phase in figures["phases"].values()) == pytest.approx(1, abs=0.01)

    table = run_tfm(*arguments).stdout.decode()
    for name in ("tokens per second", "share of peak", *figures["phases"]):
        assert f"\n{name} " in f"\n{table}"
