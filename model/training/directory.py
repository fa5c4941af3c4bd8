"""The directory of a run: where its files are, and whether a command may write there.

config.toml  tokenizer.model  model.safetensors      what `translate` needs
metrics.jsonl  learning_curve.svg  provenance.json   what happened
tensorboard/events.out.tfevents.N                    the same for TensorBoard, if asked for
back-translations.tsv  forward-translations.tsv      the pairs that training made itself, if any
diverged-step-7.jsonl                                what could not be learned from, if anything
checkpoints/last.safetensors                         all state: training continues from it
checkpoints/best.safetensors  best-00001000.safetensors ...   weights alone, by validation
checkpoints/step-00001000.safetensors ...            weights alone, the most recent ones
checkpoints/lock                                     held while a command trains there
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tfm.data.errors import CheckpointError
from tfm.data.lines import TEMPORARY
from tfm.model.checkpoint import CONFIG, TOKENIZER, WEIGHTS

if sys.platform != "win32":
    import fcntl


@dataclass(frozen=True)
class RunDirectory:
    """The places of a run's files under `path`."""

    path: Path

    @property
    def config(self) -> Path:
        """All settings."""
        return self.path / CONFIG

    @property
    def tokenizer(self) -> Path:
        """The tokenizer; separate ones stand beside this name."""
        return self.path / TOKENIZER

    @property
    def weights(self) -> Path:
        """The best weights so far, and at the end the chosen ones."""
        return self.path / WEIGHTS

    @property
    def metrics(self) -> Path:
        """One JSON object a line for each logged step and validation."""
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        """The learning curve."""
        return self.path / "learning_curve.svg"

    @property
    def board(self) -> Path:
        """The folder of what TensorBoard shows, if the run writes it."""
        return self.path / "tensorboard"

    @property
    def provenance(self) -> Path:
        """What the model was made from; the first file that a run writes."""
        return self.path / "provenance.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the three below."""
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        """The state that training continues from."""
        return self.checkpoints / "last.safetensors"

    @property
    def best(self) -> Path:
        """The weights of the best validation."""
        return self.checkpoints / "best.safetensors"

    def made(self, what: str) -> Path:
        """Return the place of pairs that training makes, called `what`."""
        return self.path / f"{what}.tsv"

    def diverged(self, step: int, *, rank: int = 0) -> Path:
        """Return the place of the pairs that `step` could not learn from, those of one process."""
        of = f"-rank-{rank}" if rank else ""
        return self.path / f"diverged-step-{step}{of}.jsonl"

    def snapshot(self, step: int) -> Path:
        """Return the place of the weights at the checkpoint after `step`."""
        return self.checkpoints / f"step-{step:08d}.safetensors"

    def ranked(self, step: int) -> Path:
        """Return the place of the weights that were among the best when validated after `step`."""
        return self.checkpoints / f"best-{step:08d}.safetensors"

    def drop_weights(self, *, snapshots: Iterable[int], ranked: Iterable[int]) -> None:
        """Delete the weights of all steps but these; those of the best are kept in any case."""
        kept = {*map(self.snapshot, snapshots), *map(self.ranked, ranked)}
        for pattern in ("step-*.safetensors", "best-*.safetensors"):
            for path in self.checkpoints.glob(pattern):
                if path not in kept:
                    path.unlink(missing_ok=True)

    @property
    def lock(self) -> Path:
        """An empty file that the command at work holds locked; it stays, so that none is lost."""
        return self.checkpoints / "lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the directory and keep other commands out of it; clear what a kill left there.

        The system releases the lock however the process ends. Where it has no locks there is none.

        Raises:
            CheckpointError: if that is not possible, or another command is at work there.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            file = self.lock.open("a")
        except OSError as error:
            raise _cannot_be_made(self.path, error) from None
        with file:
            if not _lock(file.fileno()):
                raise CheckpointError(
                    f"{self.path}: another `tfm train` is at work there; wait until it ends or "
                    f"choose another -o"
                )
            self._clear_leftovers()
            yield

    def _clear_leftovers(self) -> None:
        for folder in (self.path, self.checkpoints):
            for leftover in folder.glob(TEMPORARY):
                leftover.unlink(missing_ok=True)


def holds_run(directory: RunDirectory) -> bool:
    """Return whether there is a run to continue; False if a new one may begin.

    Nothing is left that was not there before.

    Raises:
        CheckpointError: if neither is possible: other content, or no right to write.
    """
    path = directory.path
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise CheckpointError(f"{existing}: a file, not a directory; choose another -o")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CheckpointError(f"{existing}: no right to write there; choose another -o")
    if existing != path:
        _require_makeable(path)
    if directory.last.is_file():
        return True
    if existing != path or _nothing_to_lose(directory):
        return False
    if directory.provenance.is_file():
        raise CheckpointError(
            f"{path}: holds a model but no {directory.last.relative_to(path)}, which training "
            f"continues from; choose another -o"
        )
    raise CheckpointError(f"{path}: exists and is no training run; choose another -o")


def _require_makeable(path: Path) -> None:
    """Make a directory and take it away again: a right to write alone does not say that it works.

    Raises:
        CheckpointError: if it cannot be made.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        for place in reversed(missing):
            place.mkdir(exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(path, error) from None
    finally:
        for place in missing:
            with suppress(OSError):  # not made; or meanwhile another command works there
                place.rmdir()


def _cannot_be_made(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be made ({error.strerror}); choose another -o")


def _nothing_to_lose(directory: RunDirectory) -> bool:
    """Return whether the directory is empty, or of a run that ended before its first checkpoint."""
    ours = directory.provenance.is_file() and not directory.weights.exists()
    files = (place for place in directory.path.rglob("*") if not place.is_dir())
    return ours or all(place.match(TEMPORARY) or place == directory.lock for place in files)


def _lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False if another open file of it is locked."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True
