"""`tfm bench train`: how fast training is, how near to the machine's peak, and what takes the time.

The steps are those of `tfm train`, by the same code; the learning rate alone is constant.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfm.data.batching import Batch, EncodedCorpus
from tfm.model.benchmarks.products import measure_peak, training_flops, wait_for
from tfm.model.settings import Settings
from tfm.model.training.state import BatchStream, Progress
from tfm.model.training.step import Learner, train_step

Result = TypeVar("Result")
WARM_UP = 3  # steps before the clock runs
RATE = 1e-4  # the learning rate


@dataclass
class Lap:
    """What a number of steps took and did. `padding` is the share of positions without a token."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0
    flops: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Source and target tokens per second; end of sentence is a token, padding is not."""
        return self.tokens / self.seconds

    @property
    def padding(self) -> float:
        """The share of positions in the batches that hold no token."""
        return 1 - self.tokens / self.positions


@dataclass(frozen=True)
class TrainingSpeed:
    """The result. `phases` are seconds per step."""

    lap: Lap
    peak_flops: float  # per second
    phases: dict[str, float]

    @property
    def share_of_peak(self) -> float:
        """The products that the tokens need, per second, over those the machine can do at most."""
        return self.lap.flops / self.lap.seconds / self.peak_flops

    def to_json(self) -> dict[str, Any]:
        """Return the figures by names that scripts may rely on."""
        total = sum(self.phases.values())
        return {
            "tokens_per_s": round(self.lap.tokens_per_s, 1),
            "steps": self.lap.steps,
            "seconds": round(self.lap.seconds, 3),
            "tokens": self.lap.tokens,
            "padding": round(self.lap.padding, 4),
            "gflops_per_s": round(self.lap.flops / self.lap.seconds / 1e9, 2),
            "peak_gflops_per_s": round(self.peak_flops / 1e9, 2),
            "share_of_peak": round(self.share_of_peak, 4),
            "phases": {
                name: {"ms_per_step": round(1e3 * seconds, 3), "share": round(seconds / total, 4)}
                for name, seconds in self.phases.items()
            },
        }


def measure_training(
    learner: Learner, corpus: EncodedCorpus, settings: Settings, *, seconds: float
) -> TrainingSpeed:
    """Train for `seconds`, and then for a third of that with a stopwatch in every step."""
    learner.model.train()
    stream = BatchStream(corpus, settings.training, Progress())
    for _ in range(WARM_UP):
        _step(learner, stream, settings)
    lap = run_lap(learner, stream, settings, seconds=seconds)
    peak = measure_peak(learner.device, learner.dtype)
    with stopwatch(learner, stream) as watch:
        timed = run_lap(learner, stream, settings, seconds=seconds / 3)
    phases = {name: spent / timed.steps for name, spent in watch.spent.items()}
    return TrainingSpeed(lap, peak, phases)


def run_lap(learner: Learner, stream: BatchStream, settings: Settings, *, seconds: float) -> Lap:
    """Train for `seconds`, one step at least."""
    lap = Lap()
    begin = time.perf_counter()
    while not lap.steps or lap.seconds < seconds:
        for batch in _step(learner, stream, settings):
            lap.tokens += int(batch.source_lengths.sum() + batch.target_lengths.sum())
            lap.positions += batch.source.size + batch.target_in.size
            lap.flops += training_flops(settings.model, learner.model.target_vocab, batch)
        lap.steps += 1
        lap.seconds = time.perf_counter() - begin
    return lap


def _step(learner: Learner, stream: BatchStream, settings: Settings) -> Sequence[Batch]:
    training = settings.training
    batches = stream.take(training.accumulate)
    train_step(learner, batches, training, step=1, learning_rate=RATE)
    return batches


@dataclass
class Stopwatch:
    """Seconds by phase. A phase lasts until the next one begins."""

    wait: Callable[[], None]
    spent: dict[str, float] = field(default_factory=dict)
    phase: str | None = None
    begin: float = 0.0

    def start(self, phase: str) -> None:
        """End the present phase and begin another."""
        self.wait()
        now = time.perf_counter()
        if self.phase is not None:
            self.spent[self.phase] = self.spent.get(self.phase, 0.0) + now - self.begin
        self.phase, self.begin = phase, now

    def around(self, call: Callable[..., Result], before: str, after: str) -> Callable[..., Result]:
        """Return `call` with a phase that begins before it and another that begins after it."""

        def timed(*arguments: Any, **options: Any) -> Result:
            self.start(before)
            result = call(*arguments, **options)
            self.start(after)
            return result

        return timed


@contextmanager
def stopwatch(learner: Learner, stream: BatchStream) -> Iterator[Stopwatch]:
    """Watch the parts of every step inside the context, on this learner and this stream only."""
    watch = Stopwatch(lambda: wait_for(learner.device))
    parts: list[tuple[Any, str, str, str]] = [
        (stream, "take", "data", "data"),
        (learner.model, "encode", "encoder", "decoder"),
        (learner.model, "decode", "decoder", "projection and loss"),
        (learner, "losses", "data", "backward"),
        (learner.optimizer, "step", "optimizer", "data"),
    ]
    for owner, name, before, after in parts:
        setattr(owner, name, watch.around(getattr(owner, name), before, after))
    try:
        yield watch
    finally:
        watch.start("data")
        for owner, name, _, _ in parts:
            delattr(owner, name)  # the class's own is there again
