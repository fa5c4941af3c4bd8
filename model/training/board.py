"""metrics.jsonl for TensorBoard: the same records, as points and texts in `DIR/tensorboard`.

Off unless `training.tensorboard` asks for it. Each sitting begins a file of its own with all that
happened before, as metrics.jsonl tells it, and deletes the older ones. So a point stands there
once, whatever was lost in a crash; and the board may be switched on in the middle of a run. The
files are written here, and not by TensorBoard's own writer, which names them after the machine.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tfm.data.errors import UserError
from tfm.data.lines import writing

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

FILES = "events.out.tfevents."  # what TensorBoard looks for in a name
VERSION = "brain.Event:2"  # of the format; the first record says it


def require_tensorboard() -> None:
    """Refuse what needs TensorBoard where it is not installed.

    Raises:
        UserError: says how to install it.
    """
    try:
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    except ImportError:
        raise UserError(
            "training.tensorboard needs the package tensorboard: pip install tensorboard"
        ) from None


class Board:
    """The records of a run as TensorBoard reads them.

    Args:
        folder: where the files are; it is made when the first one begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file: BinaryIO | None = None

    def begin(self, records: Sequence[dict[str, Any]]) -> None:
        """Begin a file with `records`, and delete those of earlier sittings.

        Raises:
            DataError: if it cannot be written.
        """
        now = time.time_ns()
        self.path = self.folder / f"{FILES}{now:020d}"  # readers take the files by name, in order
        self.seconds, self.samples = 0.0, 0
        spent = max((record.get("seconds", 0.0) for record in records), default=0.0)
        self.began = now / 1e9 - spent  # as if training had never paused
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with writing(self.path):
            self.close()
            self.file = self.path.open("xb")
            self._write(self.file, wall_time=self.began, file_version=VERSION)
        for record in records:
            self.add(record)
        for older in self.folder.glob(f"{FILES}*"):
            if older != self.path:
                older.unlink(missing_ok=True)

    def add(self, record: dict[str, Any]) -> None:
        """Append a record of metrics.jsonl.

        Raises:
            DataError: if it cannot be written.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self.file is None:
            return
        self.seconds = record.get("seconds", self.seconds)
        values = list(self._values(record))
        with writing(self.path):
            self._write(
                self.file,
                wall_time=self.began + self.seconds,
                step=record["step"],
                summary=Summary(value=values),
            )
            self.file.flush()  # a reader is not to wait, nor a crash to lose it

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            with suppress(OSError):  # what could not be written is still there; `add` has told
                self.file.close()

    def _values(self, record: dict[str, Any]) -> Iterator["Summary.Value"]:
        """Yield the points and texts of a record, named by its kind."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        kind = record["kind"]
        if kind == "sample":
            self.samples += 1
            texts = ((name, record[name]) for name in ("source", "reference", "translation"))
            # Indented, it is no Markdown.
            text = "\n".join(f"    {name:<12} {text}" for name, text in texts)
            yield from text_pb(f"sample/{self.samples}", text).value
            return
        self.samples = 0
        for key, value in record.items():
            if isinstance(value, float) and key != "seconds":  # it is the axis "relative"
                yield Summary.Value(tag=f"{kind}/{key}", simple_value=value)

    @staticmethod
    def _write(file: BinaryIO, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(file).write(Event(**fields).SerializeToString())
