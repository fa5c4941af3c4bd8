"""Steps that fail: memory that runs out, losses that are no numbers, fp16 that overflows."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tfm.data.batching import Batch, make_batch
from tfm.data.corpus import Pair, read_pairs
from tfm.model.checkpoint import weights_of
from tfm.model.tensor_file import read_tensors
from tfm.model.training.loop import train
from tfm.model.training.micro_batches import TooLarge, positions, split
from tfm.model.training.objective import DeviceBatch
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence, StepReport
from tfm.model.training.run import Run
from tfm.model.training.state import read_state, restore_state, save_state
from tfm.model.training.step import Diverged, Learner, StepResult, train_step

TrainSmall = Callable[..., Run]
SmallOrder = Callable[..., Any]


class SmallMemory(torch.nn.Module):
    """An objective on a GPU that holds `limit` positions, as the forward or backward pass sees."""

    def __init__(self, learner: Learner, limit: int, *, backward: bool) -> None:
        super().__init__()
        self.objective, self.limit, self.backward = learner.objective, limit, backward
        self.sizes: list[int] = []

    def forward(self, batch: DeviceBatch) -> Any:
        size = batch.source.numel() + batch.target_in.numel()
        self.sizes.append(size)
        if size <= self.limit or not torch.is_grad_enabled():
            return self.objective(batch)
        if not self.backward:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        losses = self.objective(batch)
        # The encoder's first gradient is the last to be known: all others are there by then.
        first = next(self.objective.model.encoder[0].parameters())
        handle = first.register_hook(lambda _: self.refuse(handle))
        return losses

    def refuse(self, handle: Any) -> None:
        handle.remove()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.fixture
def run(small_order: SmallOrder, tmp_path: Path) -> Run:
    """Return a run without dropout whose first moments are the last gradient."""
    order = small_order(tmp_path, clip=0.0, beta1=0.0)
    model = replace(order.settings.model, dropout=0.0)
    with prepare(replace(order, settings=replace(order.settings, model=model)), Silence()) as run:
        return run


def batches_of(run: Run) -> list[Batch]:
    return [make_batch(run.corpus, np.arange(*ends)) for ends in ((0, 3), (3, 40), (40, 60))]


def step(run: Run) -> tuple[StepResult, list[torch.Tensor]]:
    """Take a step; return what it saw and the gradient."""
    training = run.settings.training
    result = train_step(run.learner, batches_of(run), training, step=1, learning_rate=1e-3)
    state = run.learner.optimizer.state
    return result, [state[p]["exp_avg"].clone() for p in run.learner.model.parameters()]


# Memory


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("pairs", [1, 2, 9])
def test_a_batch_that_does_not_fit_is_split_and_gives_the_same_gradient(
    run: Run, pairs: int, backward: bool
) -> None:
    """There is room for `pairs` of the longest pairs."""
    limit = pairs * max(positions(make_batch(run.corpus, np.array([i]))) for i in range(60))
    assert max(positions(batch) for batch in batches_of(run)) > 2 * limit, "split more than once"
    weights = {name: weight.clone() for name, weight in weights_of(run.learner.model).items()}
    expected, gradient = step(run)
    for name, weight in weights_of(run.learner.model).items():
        weight.copy_(weights[name])
    run.learner.optimizer.state.clear()
    memory = SmallMemory(run.learner, limit, backward=backward)
    run.learner.objective = memory
    found, split_gradient = step(run)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.nats == pytest.approx(expected.nats, rel=1e-5)
    assert found.target_tokens == expected.target_tokens and found.tokens == expected.tokens
    for one, other in zip(gradient, split_gradient, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
    assert max(memory.sizes) > limit
    memory.sizes.clear()
    step(run)
    assert max(memory.sizes) <= limit, "it is known from the first step on what does not fit"


def test_parts_hold_all_pairs_once_with_no_more_padding_than_they_need(run: Run) -> None:
    whole = batches_of(run)[1]
    parts = list(split(whole, 100))
    assert len(parts) > 4
    assert np.concatenate([part.indices for part in parts]).tolist() == whole.indices.tolist()
    for part in parts:
        assert positions(part) < 100 or len(part.indices) == 1
        for name, values in vars(make_batch(run.corpus, part.indices)).items():
            assert np.array_equal(getattr(part, name), values), name
    assert list(split(whole, None)) == [whole]


def test_running_out_of_memory_is_said_once_and_training_goes_on(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    notes: list[str] = []

    class Notes(Silence):
        def on_note(self, text: str) -> None:
            notes.append(text)

    with prepare(small_order(tmp_path), Silence()) as run:
        run.learner.objective = SmallMemory(run.learner, 100, backward=False)
        train(run, Notes())
    assert run.progress.step == 12
    [note] = [note for note in notes if "memory" in note]
    assert re.search("^step 1: .*split.*training.batch_tokens", note)


def test_a_single_pair_that_does_not_fit_ends_the_run_with_a_remedy(run: Run) -> None:
    before = {name: weight.clone() for name, weight in weights_of(run.learner.model).items()}
    run.learner.objective = SmallMemory(run.learner, 5, backward=False)
    with pytest.raises(TooLarge, match=r"single pair of \d+ source and \d+ target .*--precision"):
        step(run)
    assert all(before[n].equal(w) for n, w in weights_of(run.learner.model).items())


# Losses that are no numbers


class Poison(Silence):
    """Spoils the network after a step, in one piece or in all of it."""

    def __init__(self, run: Run, step: int, piece: int | None = None) -> None:
        self.run, self.step, self.piece = run, step, piece

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            which = slice(None) if self.piece is None else self.piece
            with torch.no_grad():
                self.run.learner.model.target_embedding.weight[which] = math.nan


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_loss_that_is_no_number_leaves_the_pairs_of_the_step(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    corpus = list(read_pairs("builtin:60", source="en", target="de", split="train"))
    with prepare(small_order(tmp_path), Silence()) as run:
        coming = replace(run, progress=replace(run.progress)).stream()
        coming.take(12)
        expected = [batch.indices.tolist() for batch in coming.take(2)]  # those of step 7
        with pytest.raises(Diverged) as error:
            train(run, Poison(run, 6))
    path = tmp_path / "diverged-step-7.jsonl"
    message = re.escape(f"of the training corpus, listed in {path}; lower training.learning_rate")
    assert re.search(
        rf"^step 7: the loss is nan on lines \d+.* and \d+ more {message}", str(error.value)
    )
    records = rows_of(path)
    for number, indices in enumerate(expected, start=1):
        assert [r["line"] - 1 for r in records if r["batch"] == number] == indices
    for record in records:
        pair = Pair(record["source"], record["target"])
        assert pair == corpus[record["line"] - 1]
        assert record["nats_per_token"] is None
        pieces = run.tokenizer.encode_source(pair.source)
        assert record["source_pieces"] == len(pieces) + 1
    assert read_tensors(run.directory.last).header["progress"]["step"] == 5, "before the step"


def test_lines_whose_own_loss_is_no_number_are_named_first(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    """Only pairs with a certain piece in their source are affected."""
    order = replace(small_order(tmp_path, batch_tokens=100_000, accumulate=1), train=None)
    path = tmp_path / "text"
    words = ["red house", "blue cat", "", "two dogs", "a red dog", "x " * 300, "four red cats"]
    for language in ("en", "de"):
        Path(f"{path}.{language}").write_text("\n".join(words) + "\n")
    order = replace(order, train=str(path), valid=None, directory=tmp_path / "run")
    with prepare(order, Silence()) as run:
        [batch] = run.stream().take(1)
        red = run.tokenizer.encode_source("dogs two")[0]
        objective = run.learner.objective

        class Fragile(torch.nn.Module):
            def forward(self, batch: DeviceBatch) -> Any:
                losses = objective(batch)
                return losses._replace(
                    **{
                        name: value * (math.nan if (batch.source == red).any() else 1)
                        for name, value in losses._asdict().items()
                    }
                )

        run.learner.objective = Fragile()
        run.progress = replace(run.progress, batch=0)
        with pytest.raises(Diverged) as error:
            train(run, Silence())
    records = rows_of(run.directory.diverged(1))
    assert sorted(record["line"] for record in records) == [1, 2, 4, 5, 7], (
        "blank and long: left out"
    )
    bad = sorted(r["line"] for r in records if r["nats_per_token"] is None)
    assert bad and len(bad) < len(records)
    named = re.search(r"loss is nan on lines? ([\d, ]+) of the", str(error.value))
    assert named and [int(n) for n in named[1].split(", ")] == bad
    for record in records:
        assert record["line"] in bad or record["nats_per_token"] > 0


def test_a_gradient_that_is_no_number_stops_before_the_step_too(run: Run) -> None:
    before = {name: weight.clone() for name, weight in weights_of(run.learner.model).items()}
    parameter = next(run.learner.model.parameters())
    parameter.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(Diverged, match=r"step 1: the norm of the gradient is .* on lines"):
        train(run, Silence())
    assert all(before[n].equal(w) for n, w in weights_of(run.learner.model).items())
    assert all(r["nats_per_token"] > 0 for r in rows_of(run.directory.diverged(1)))


def test_each_process_of_a_run_writes_its_own_pairs(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    with prepare(small_order(tmp_path), Silence()) as run:
        names = {run.directory.diverged(7, rank=rank).name for rank in range(3)}
    assert len(names) == 3 and "diverged-step-7.jsonl" in names


def test_where_the_pairs_cannot_be_written_the_step_is_named_all_the_same(
    small_order: SmallOrder, tmp_path: Path
) -> None:
    with prepare(small_order(tmp_path), Silence()) as run:
        run.directory.diverged(3).mkdir()
        with pytest.raises(Diverged, match="step 3: the loss is nan .*could not be listed.*lower"):
            train(run, Poison(run, 2))


# fp16, which training takes on a GPU only; the arithmetic of its loss scale is the same on a CPU


def in_half(run: Run, *, scale: float) -> Learner:
    """Return a learner of the run's network that computes in fp16."""
    training = run.settings.training
    cpu = torch.device("cpu")
    learner = Learner.create(run.learner.model, training, device=cpu, dtype=torch.float16)
    learner.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return learner


def half_step(
    learner: Learner, run: Run, *, step: int, overflows: bool, rate: float = 1e-3
) -> StepResult:
    """Take a step, whose gradient overflows or not."""
    weight = next(learner.model.parameters())
    hook = weight.register_hook(lambda gradient: gradient + math.inf if overflows else None)
    training = run.settings.training
    try:
        return train_step(learner, batches_of(run), training, step=step, learning_rate=rate)
    finally:
        hook.remove()


def test_an_fp16_step_that_overflows_is_left_out_and_the_scale_halved(run: Run) -> None:
    learner = in_half(run, scale=1024.0)
    before = {name: weight.clone() for name, weight in weights_of(learner.model).items()}
    left_out = half_step(learner, run, step=1, overflows=True)
    assert not math.isfinite(left_out.gradient_norm) and math.isfinite(left_out.loss)
    after = weights_of(learner.model)
    assert all(after[name].equal(before[name]) for name in before)
    assert learner.scaler.get_scale() == 512.0
    taken = half_step(learner, run, step=2, overflows=False)
    assert math.isfinite(taken.gradient_norm)
    assert not all(after[name].equal(before[name]) for name in before)
    assert learner.scaler.get_scale() == 512.0


def test_the_gradient_of_an_fp16_step_does_not_depend_on_the_scale(run: Run) -> None:
    """At a rate of 0 all have the same weights."""
    norms = [
        half_step(in_half(run, scale=s), run, step=1, overflows=False, rate=0.0).gradient_norm
        for s in (8.0, 1024.0)
    ]
    plain = step(run)[0].gradient_norm
    assert norms == pytest.approx([plain, plain], rel=1e-2)


def test_fp16_that_overflows_at_any_scale_ends_training_with_the_way_out(run: Run) -> None:
    learner = in_half(run, scale=1.0)
    half_step(learner, run, step=1, overflows=True)
    with pytest.raises(Diverged, match=r"step 2: the gradient overflows fp16.*--precision bf16"):
        half_step(learner, run, step=2, overflows=True)


def test_a_run_that_goes_on_has_the_scale_that_it_had(run: Run, tmp_path: Path) -> None:
    """Promise 6, for the loss scale."""
    learner = in_half(run, scale=1024.0)
    half_step(learner, run, step=1, overflows=True)
    half_step(learner, run, step=2, overflows=False)
    path = tmp_path / "state.safetensors"
    save_state(path, learner, run.progress, {})
    other = in_half(run, scale=64.0)
    restore_state(path, read_state(path), other)
    assert other.scaler.state_dict() == learner.scaler.state_dict()
    assert other.scaler.get_scale() == 512.0
