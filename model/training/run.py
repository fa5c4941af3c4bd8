"""A run: its settings, data, network and files, and how far it has come."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import reduce

import numpy as np

from tfm.data.batching import EncodedCorpus, Ints
from tfm.data.counts import counted
from tfm.data.lines import atomic_writer
from tfm.data.subwords import resegmented
from tfm.data.tokenizer import Tokenizer
from tfm.model.checkpoint import save_weights
from tfm.model.settings import Settings, TrainingSettings
from tfm.model.tensor_file import Stored
from tfm.model.training.curve import learning_curve
from tfm.model.training.directory import RunDirectory
from tfm.model.training.identity import Identity
from tfm.model.training.made_pairs import same_made_pairs
from tfm.model.training.metrics import Metrics
from tfm.model.training.pace import Pace
from tfm.model.training.schedule import Phase, Stretch, phase_of
from tfm.model.training.state import (
    BatchStream,
    Progress,
    Ranked,
    cutting,
    restore_state,
    save_state,
    stored_settings,
)
from tfm.model.training.step import Learner
from tfm.model.training.timetable import Clock, Event, Timetable
from tfm.model.training.validation import ValidationScores, ValidationSet


@dataclass
class Run:
    """Everything a run works with.

    `progress`, `learner`, `made`, `pace` and `prepared` change, the rest does not.
    """

    directory: RunDirectory
    settings: Settings
    learner: Learner
    tokenizer: Tokenizer
    corpus: EncodedCorpus
    valid: ValidationSet | None
    identity: Identity
    progress: Progress
    metrics: Metrics
    made: dict[str, EncodedCorpus] = field(default_factory=dict)  # by training, to learn from too
    pace: Pace = field(default_factory=Pace)
    clock: Clock = field(default_factory=Clock)
    prepared: float = 0.0  # seconds of this sitting that went by before it began to learn

    def stream(self, training: TrainingSettings | None = None) -> BatchStream:
        """Return the batches from here on, by settings that are not the run's if they are given."""
        training = training or self.settings.training
        return BatchStream(self.corpus_of_epochs(training), training, self.progress)

    def corpus_of_epochs(self, training: TrainingSettings) -> Callable[[int], EncodedCorpus]:
        """Return a function that gives all pairs, those made too, in the pieces of an epoch."""
        return resegmented(
            reduce(EncodedCorpus.followed_by, self.made.values(), self.corpus),
            self.tokenizer,
            dropout=training.subword_dropout,
            alpha=training.subword_alpha,
            seed=training.seed,
        )

    @property
    def lines(self) -> Ints:
        """The line of the training corpus that each pair which a step may see comes from."""
        given = self.corpus.lines
        if not self.made:
            return np.tile(given, 2)  # where both directions are learned, each stands there twice
        return np.concatenate([given, *(given[pairs.lines - 1] for pairs in self.made.values())])

    def start(self) -> None:
        """Begin with the weights that `learner` has: the state of step 0 is saved."""
        self.metrics.begin()
        self.save()

    def resume(self, stored: Stored) -> None:
        """Put everything back to where `stored`, checkpoints/last.safetensors, was written."""
        self.progress = restore_state(self.directory.last, stored, self.learner)
        self.take_time_of(self.progress)
        for what, expected in self.progress.made.items():
            path, data = self.directory.made(what), self.settings.data
            self.made[what] = same_made_pairs(path, expected, self.tokenizer, data)
        before, now = stored_settings(stored, self.directory.last), self.settings
        if before and cutting(before.training) != cutting(now.training):
            self.progress.left = self.stream(before.training).left()
            self.progress.batch = 0
        self.metrics.resume(
            self.progress.step, settled=self.progress.settled, finished=self._has_final_weights
        )

    def take_time_of(self, before: Progress) -> None:
        """Count the time that was spent until `before`, and go on by what was decided then."""
        self.clock.before = before.spent
        timetable, seconds = before.timetable, self.settings.training.time
        if timetable and seconds and seconds != timetable.seconds:
            timetable = timetable.rescaled(before.step, seconds)
        self.progress.timetable = timetable

    def describe_position(self, stream: BatchStream) -> str:
        """Return where training goes on, and the best so far; people count from 1."""
        progress = self.progress
        parts = [
            f"continues after step {progress.step:,} of {self.last_step:,}",
            f"{progress.batch:,} of {counted(len(stream.epoch_order), 'batch')} of epoch "
            f"{progress.epoch + 1:,} done",
        ]
        if progress.left is not None:
            parts[-1] += f", cut from the {counted(len(progress.left), 'pair')} left of it"
        if progress.best:
            bleu, nats = progress.best.bleu, progress.best.nats_per_token
            by_loss = self.settings.training.metric == "loss" or bleu is None
            score = f"loss {nats:.3f}" if by_loss else f"BLEU {bleu:.2f}"
            parts.append(f"best {score} at step {progress.best_step:,}")
        if count := progress.validations_without_best:
            parts.append(f"{counted(count, 'validation')} without a new best since")
        return "; ".join(parts)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do: all steps done and the final weights chosen."""
        return self.over and self._has_final_weights

    @property
    def _has_final_weights(self) -> bool:
        # Whoever has deleted the file gets it back by repeating the command.
        return self.progress.finished and self.directory.weights.is_file()

    @property
    def over(self) -> bool:
        """Whether the last step is done or patience has run out."""
        return self.progress.step >= self.last_step or self.out_of_patience

    @property
    def timetable(self) -> Timetable | None:
        """What was decided where the time is limited."""
        return self.progress.timetable if self.settings.training.time else None

    @property
    def place(self) -> float:
        """How many steps of the recipe are done."""
        return self.progress.place(self.progress.step, self.settings.training)

    @property
    def next_stretch(self) -> Stretch:
        """The part of the recipe that the next step stands for."""
        return Stretch(
            self.place, self.progress.place(self.progress.step + 1, self.settings.training)
        )

    @property
    def phase(self) -> Phase:
        """Where the recipe is."""
        return phase_of(self.place, self.settings.training)

    @property
    def last_step(self) -> int:
        """The step to end with, as far as is known."""
        return self.timetable.last if self.timetable else self.settings.training.steps

    @property
    def out_of_patience(self) -> bool:
        """Whether as many validations as `patience` brought no new best, in the last phase."""
        training, progress = self.settings.training, self.progress
        patience = training.patience if self.phase.name == "last" else 0
        return 0 < patience <= progress.validations_without_best

    def due(self, every: int) -> bool:
        """Return whether something that happens `every` so many steps happens now."""
        step = self.progress.step
        return step % every == 0 or step == self.last_step

    def event_due(self, event: Event) -> bool:
        """Return whether a validation or a checkpoint comes after this step."""
        if self.timetable:
            return self.timetable.due(event, self.progress.step)
        training = self.settings.training
        return self.due(
            training.validate_every if event == "validation" else training.checkpoint_every
        )

    @property
    def seconds_left(self) -> float:
        """About how long it still takes."""
        training = self.settings.training
        if training.time:
            return max(0.0, training.time - self.clock.elapsed)
        return self.pace.seconds_left(self.progress.step, training)

    @property
    def writes(self) -> bool:
        """Whether this process writes the files; of several, the first rank does."""
        return self.learner.ranks.first

    def save(self) -> None:
        """Save the state that training continues from."""
        if not self.writes:
            return
        self.progress.spent = self.clock.elapsed
        header = {
            "kind": "training state",
            "identity": self.identity,
            "settings": asdict(self.settings),
            **self.about_weights(),
        }
        save_state(self.directory.last, self.learner, self.progress, header)

    def about_weights(self, scores: ValidationScores | None = None) -> dict[str, object]:
        """Return what is stored beside weights: tokenizer, step and scores."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "step": self.progress.step,
            "scores": asdict(scores) if scores else None,
        }

    def checkpoint(self) -> None:
        """Save the state, and the weights as one of the snapshots to be averaged."""
        model, progress = self.learner.model, self.progress
        if self.snapshots_kept:
            progress.snapshots = [*progress.snapshots, progress.step]
        self.trim_snapshots()
        if not self.writes:
            return
        if self.snapshots_kept:
            save_weights(self.directory.snapshot(progress.step), model, self.about_weights())
        if self.valid is None:
            if self.phase.name != "backward":  # no user wants a network for the way back
                with self.learner.averaged():
                    save_weights(self.directory.weights, model, self.about_weights())
            self.draw()
        self.save()
        self.drop_weights()

    @property
    def snapshots_kept(self) -> int:
        """How many of the last checkpoints stay."""
        return max(self.settings.training.average_last, self.settings.training.keep_last)

    def trim_snapshots(self) -> None:
        """Count the last ones only: an earlier sitting may have kept more."""
        count = self.snapshots_kept
        self.progress.snapshots = self.progress.snapshots[-count:] if count else []

    def rank(self, scores: ValidationScores) -> None:
        """Keep the weights if they are among the `keep_best` best, where that is more than one."""
        training, progress = self.settings.training, self.progress
        if training.keep_best == 1:
            progress.ranking = []
            return
        ranking = progress.ranking
        better = (i for i, r in enumerate(ranking) if scores.better_than(r.scores, training.metric))
        place = next(better, len(ranking))
        new = Ranked(progress.step, scores)
        progress.ranking = [*ranking[:place], new, *ranking[place:]][: training.keep_best]
        if new in progress.ranking and self.writes:
            path = self.directory.ranked(progress.step)
            save_weights(path, self.learner.model, self.about_weights(scores))

    def drop_weights(self) -> None:
        """Delete weights that the state, which is saved, does not count any more."""
        ranked = [ranked.step for ranked in self.progress.ranking]
        self.directory.drop_weights(snapshots=self.progress.snapshots, ranked=ranked)

    def draw(self) -> None:
        """Refresh the learning curve."""
        title = f"{self.settings.data.source} to {self.settings.data.target}"
        with atomic_writer(self.directory.curve) as file:
            file.write(learning_curve(self.metrics, title))
