"""The state of a run, saved whole: a run that continues is bit for bit one that never stopped.

Tensors (weights, their average, Adam's moments) and counters go into one file that is replaced in
one step. Random numbers and the order of batches need no state but their position: they are pure
functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfm.data.batching import Batch, EncodedCorpus, Ints, epoch_batches, make_batch
from tfm.data.errors import CheckpointError
from tfm.model.checkpoint import architecture_of, fill_weights, weights_of
from tfm.model.settings import Settings, TrainingSettings
from tfm.model.tensor_file import Stored, read_tensors, write_tensors
from tfm.model.training.distributed import ALONE, Ranks
from tfm.model.training.micro_batches import positions
from tfm.model.training.schedule import phase_of
from tfm.model.training.step import Learner, StepResult
from tfm.model.training.timetable import Timetable
from tfm.model.training.validation import ValidationScores


@dataclass
class Sums:
    """What has been seen since the last logged step.

    Args:
        positions: of the batches, padding included.
        padding: those of them that hold no token.
    """

    loss: float = 0.0
    nats: float = 0.0
    target_tokens: int = 0
    tokens: int = 0
    positions: int = 0
    padding: int = 0
    seconds: float = 0.0

    def add(self, result: StepResult, batches: Sequence[Batch], seconds: float) -> None:
        """Count one more step, taken on `batches`."""
        self.loss += result.loss
        self.nats += result.nats
        self.target_tokens += result.target_tokens
        self.tokens += result.tokens
        for batch in batches:
            self.positions += positions(batch)
            self.padding += positions(batch) - batch.tokens
        self.seconds += seconds


@dataclass
class Ranked:
    """A validation whose weights are kept, and what they are worth."""

    step: int
    scores: ValidationScores

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Ranked":
        """Read what `dataclasses.asdict` gave."""
        return cls(values["step"], ValidationScores(**values["scores"]))


@dataclass
class Progress:
    """How far training has come.

    Args:
        batch: how many batches of `epoch`, cut from `left`, were learned from.
        left: the pairs that were left of the epoch when its batches were last cut anew, because
            a setting of `cutting` had changed; None when they are cut from all pairs.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    left: Ints | None = field(default=None, compare=False)
    seconds: float = 0.0
    settled: bool = True  # whether what is due after `step` is done: validation, checkpoint
    best: ValidationScores | None = None  # what others are compared with
    best_step: int = 0
    ranking: list[Ranked] = field(default_factory=list)  # the best, if several are kept, in order
    validations_without_best: int = 0
    snapshots: list[int] = field(default_factory=list)
    since_log: Sums = field(default_factory=Sums)
    made: dict[str, str] = field(default_factory=dict)  # what training made, and its fingerprint
    finished: bool = False
    spent: float = 0.0  # seconds of all sittings, reading and waiting included
    timetable: Timetable | None = None  # where the time is limited
    more_steps: int | None = None  # of the order that set the last step, if it was to add steps

    def place(self, step: int, settings: TrainingSettings) -> float:
        """Return how many steps of the recipe are done after `step`, the present or the next."""
        if self.timetable is None or not settings.time:
            return step
        return self.timetable.at(step) * settings.steps

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Progress":
        """Read what `dataclasses.asdict` gave."""
        best = ValidationScores(**values["best"]) if values["best"] else None
        ranking = [Ranked.from_json(ranked) for ranked in values.get("ranking", [])]
        since_log = Sums(**values["since_log"])
        decided = values.get("timetable")
        read = {"best": best, "ranking": ranking, "since_log": since_log}
        return cls(**{**values, **read, "timetable": Timetable(**decided) if decided else None})


class BatchStream:
    """The batches of all epochs, one after the other, from the position in `progress` on.

    Args:
        corpus: what every epoch sees, or a function of the epoch, counted from 0.
    """

    def __init__(
        self,
        corpus: EncodedCorpus | Callable[[int], EncodedCorpus],
        settings: TrainingSettings,
        progress: Progress,
    ) -> None:
        self.of_epoch = corpus if callable(corpus) else lambda _: corpus
        self.settings, self.progress = settings, progress
        self._begin_epoch(step=progress.step)

    def take(self, count: int, *, ranks: Ranks = ALONE) -> list[Batch]:
        """Return the next `count` batches of this rank, and move the position behind all ranks'.

        The ranks take turns, so that each gets as many, and all together what one would get that
        took so many times as many.
        """
        batches = []
        for i in range(count * ranks.size):
            indices = self._next()
            if i % ranks.size == ranks.rank:
                batches.append(make_batch(self.corpus, indices))
        return batches

    def left(self) -> Ints:
        """Return the pairs that are still to come in this epoch, in the order of the corpus."""
        nothing = np.zeros(0, dtype=np.int64)
        return np.sort(np.concatenate([nothing, *self.epoch_order[self.progress.batch :]]))

    @property
    def epochs(self) -> float:
        """How often all pairs were seen; each phase counts on from the one before."""
        progress = self.progress
        left = 1.0 if progress.left is None else len(progress.left) / len(self.corpus)
        done = progress.batch / len(self.epoch_order) if len(self.epoch_order) else 1.0
        return progress.epoch + 1 - left * (1 - done)

    def _next(self) -> Ints:
        if self.progress.batch == len(self.epoch_order):
            self.next_epoch()
        indices = self.epoch_order[self.progress.batch]
        self.progress.batch += 1
        return indices

    def next_epoch(self) -> None:
        """Leave what is left of the epoch; the next one is of the phase of the next step."""
        self.progress.epoch += 1
        self.progress.batch, self.progress.left = 0, None
        self._begin_epoch(step=self.progress.step + 1)

    def _begin_epoch(self, *, step: int) -> None:
        """Cut the epoch that `step` learns from into batches."""
        corpus = self.of_epoch(self.progress.epoch)
        phase = phase_of(self.progress.place(step, self.settings), self.settings)
        learned = {"both directions": corpus.both_directions, "backward": corpus.backward}
        self.corpus = learned.get(phase.name, lambda: corpus)()
        self.epoch_order = epoch_batches(
            self.corpus,
            batch_tokens=self.settings.batch_tokens,
            seed=self.settings.seed,
            epoch=self.progress.epoch,
            among=self.progress.left,
        )


def cutting(settings: TrainingSettings) -> tuple[object, ...]:
    """Return the settings that decide which batches an epoch is cut into, beside its seed.

    After a change of one of them, what is left of the epoch is cut anew: it has every pair once.
    """
    return settings.batch_tokens, settings.subword_dropout, settings.subword_alpha


MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # Adam's state of one parameter
LEFT = "position.left"


def save_state(path: Path, learner: Learner, progress: Progress, header: Mapping[str, Any]) -> None:
    """Write everything that `restore_state` needs, and the JSON-ready `header`.

    Raises:
        CheckpointError: if it cannot be written; the older state is intact then.
    """
    tensors = {f"model.{name}": weight for name, weight in weights_of(learner.model).items()}
    for name, parameter in learner.model.named_parameters():
        state = learner.optimizer.state.get(parameter, {})
        tensors |= {f"optimizer.{name}.{key}": state[key] for key in MOMENTS if state}
    if learner.average:
        tensors |= {f"average.{name}": mean for name, mean in learner.average.weights.items()}
    position = asdict(progress)
    if (left := position.pop("left")) is not None:
        tensors[LEFT] = torch.from_numpy(left)
    counters = {"progress": position, "scaler": learner.scaler.state_dict()}
    write_tensors(path, tensors, {**header, **counters, "model": architecture_of(learner.model)})


def read_state(path: Path) -> Stored:
    """Read a file of `save_state`.

    Raises:
        CheckpointError: if it is damaged or holds weights only.
    """
    stored = read_tensors(path)
    if "progress" not in stored.header:
        raise CheckpointError(f"{path}: holds weights only; training cannot continue from it")
    return stored


def stored_settings(stored: Stored, path: Path) -> Settings | None:
    """Return the settings that training had when it saved `path`; None if it did not say.

    Raises:
        SettingsError: if they are those of a later version.
    """
    tables = stored.header.get("settings")
    return Settings.from_tables(tables, str(path)) if tables else None


def restore_state(path: Path, stored: Stored, learner: Learner) -> Progress:
    """Put weights, optimizer and counters back as they were saved.

    Raises:
        CheckpointError: if what was stored in `path` does not fit the model.
    """
    weights = _named(stored.tensors, "model.")
    fill_weights(learner.model, weights, stored.header, path=path)
    for name, parameter in learner.model.named_parameters():
        state = _named(stored.tensors, f"optimizer.{name}.")
        if state:  # none before the first step
            learner.optimizer.state[parameter] = {
                key: tensor.to(parameter.device) for key, tensor in state.items()
            }
    if learner.average:  # one that was not kept until now begins with the weights of now
        learner.average.set(_named(stored.tensors, "average.") or weights)
    if learner.scaler.is_enabled() and stored.header["scaler"]:
        learner.scaler.load_state_dict(stored.header["scaler"])
    progress = Progress.from_json(stored.header["progress"])
    if LEFT in stored.tensors:
        progress.left = stored.tensors[LEFT].numpy()
    return progress


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
