"""A few steps of a run, taken to see what it will cost; what they learn is thrown away."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tfm.data.batching import Batch, Ints, make_batch
from tfm.model.training.diversification import search
from tfm.model.training.pace import Pace
from tfm.model.training.run import Run
from tfm.model.training.schedule import learning_rate, translations_due
from tfm.model.training.state import BatchStream
from tfm.model.training.step import Learner, train_step
from tfm.model.training.validation import ValidationSet, validate

WARM_UP = 2  # steps before the clock runs
STEPS = 10  # under the clock
SENTENCES = 100  # translated under the clock


@dataclass(frozen=True)
class Memory:
    """Bytes that training holds at once on one device.

    Args:
        saved: what the forward pass over the largest batch of an epoch keeps for the backward pass,
            without weights. Results that are dropped within the step come on top.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    saved: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.gradients + self.optimizer + self.average + self.saved


@dataclass(frozen=True)
class Rehearsal:
    """What a run was seen to cost."""

    memory: Memory
    pace: Pace
    tokens_per_s: float  # source and target, without padding

    @property
    def trial(self) -> float:
        """Seconds of all its steps at their pace; that the first are slower, a run pays too."""
        return (WARM_UP + STEPS) * self.pace.step


def rehearse(run: Run) -> Rehearsal:
    """Take a few steps on batches of the run, validate on a part of its validation set, and
    translate a part of the training corpus if that is to come.

    Nothing is written, but the learner is another one after it: use it for nothing else. A run that
    goes on within its time knows what the last two take, and does not try them.
    """
    run.learner.model.train()
    stream = run.stream()
    for _ in range(WARM_UP):
        _step(run, stream)
    pace, tokens = Pace(warm=True), 0
    for _ in range(STEPS):
        begin = time.perf_counter()
        batches = _step(run, stream)
        pace.add_step(time.perf_counter() - begin)
        tokens += sum(batch.tokens for batch in batches)
    if run.valid is not None and run.timetable is None:
        pace.validation = time_validation(run, run.valid)
    if run.timetable is None and translations_due(run.place, run.settings.training):
        pace.translation = time_translation(run)
    return Rehearsal(measure_memory(run.learner, largest(stream)), pace, tokens / sum(pace.steps))


def _step(run: Run, stream: BatchStream) -> list[Batch]:
    training = run.settings.training
    batches = stream.take(training.accumulate)
    train_step(run.learner, batches, training, step=1, learning_rate=learning_rate(1, training))
    return batches


def time_validation(run: Run, valid: ValidationSet) -> float:
    """Return about how many seconds a validation takes; it is tried with a part of the sentences.

    A network that has not learned to end a sentence would go on to the largest length, so that here
    translations are at most as long as their sources, and a few pieces more.
    """
    part = ValidationSet(valid.corpus.first(SENTENCES), valid.pairs[:SENTENCES])
    decoding = replace(run.settings.decoding, max_length_ratio=1.0)
    settings = replace(run.settings, decoding=decoding)
    begin = time.perf_counter()
    validate(run.learner, part, run.tokenizer, settings, check=lambda: None)
    seconds = time.perf_counter() - begin
    whole = len(valid.corpus) + len(valid.pairs)
    return seconds * whole / (len(part.corpus) + len(part.pairs))


def time_translation(run: Run) -> float:
    """Return about how many seconds it takes to translate the training corpus.

    It is tried with a part of it, after a warm-up; as in `time_validation`, lengths are limited.
    """
    count = len(run.corpus)
    part = [run.corpus.source.sentence(i).tolist() for i in range(0, count, -(-count // SENTENCES))]
    settings = replace(run.settings.decoding, max_length_ratio=1.0)
    for _ in range(2):
        begin = time.perf_counter()
        search(run, part, settings, lambda: None)
    return (time.perf_counter() - begin) * count / len(part)


def largest(stream: BatchStream) -> Batch:
    """Return the batch of the stream's epoch that has the most positions, padding included."""
    corpus = stream.corpus

    def positions(pairs: Ints) -> int:
        longest = [side.lengths_of(pairs).max() + 1 for side in (corpus.source, corpus.target)]
        return len(pairs) * int(sum(longest))

    return make_batch(corpus, max(stream.epoch_order, key=positions))


def measure_memory(learner: Learner, batch: Batch) -> Memory:
    """Count what a step on `batch` holds, after a step that has made the optimizer's state."""
    weights = sum(weight.nbytes for weight in learner.model.parameters())
    states = learner.optimizer.state.values()
    average = learner.average.weights.values() if learner.average else ()
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=sum(tensor.nbytes for state in states for tensor in state.values()),
        average=sum(mean.nbytes for mean in average),
        saved=saved_bytes(learner, lambda: learner.losses(batch).loss),
    )


def saved_bytes(learner: Learner, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that `forward` keeps for its backward pass, the weights not counted."""
    weights = {weight.untyped_storage().data_ptr() for weight in learner.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()  # views share one storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(kept.values())
