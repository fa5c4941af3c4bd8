"""What one run of `tfm translate` does with each batch of records, and what it says in the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, TypeVar

from tfm.cli import console
from tfm.cli.layouts import Layout, Result
from tfm.cli.records import Parse, Record
from tfm.data.counts import counted
from tfm.data.errors import DataError

if TYPE_CHECKING:
    from tfm.model.translator import Translator

Item = TypeVar("Item")

# Lines that are sorted by length together: few at first, so that whoever waits sees the first ones
# soon, and twice as many each time, which is quicker.
FIRST_WINDOW, WINDOW = 64, 1024


@dataclass
class Tally:
    """What has been written so far."""

    records: int = 0
    truncated: int = 0
    bad: int = 0

    def tell(self, seconds: float) -> None:
        """Say how many and how fast, and how many were cut."""
        speed = self.records / seconds
        console.note(f"{counted(self.records, 'line')} in {seconds:.1f} s, {speed:.1f} lines/s")
        if self.truncated:
            console.warn(
                f"translations cut at the maximum length: {self.truncated:,} (see "
                "decoding.max_length and decoding.max_length_ratio)"
            )

    def require_good(self, *, blank: bool) -> None:
        """Raise `DataError` if there were bad records; `blank` says that lines stand for them."""
        if self.bad:
            remedy = "a blank line stands for each" if blank else "each has a field `error`"
            raise DataError(f"records that could not be translated: {self.bad:,}; {remedy}")


@dataclass(frozen=True)
class Job:
    """How records are read, translated and written.

    Args:
        n_best: alternatives to ask for.
        alignment: whether to align the words of each translation, which takes a forced pass.
        strict: whether a bad record ends the run.
    """

    translator: "Translator"
    parse: Parse
    layout: Layout
    n_best: int = 1
    alignment: bool = False
    strict: bool = False

    def write(self, records: Sequence[Record], file: IO[str], tally: Tally) -> None:
        """Translate the records after those in `tally`, write them to `file`, and count them.

        Raises:
            DataError: at a bad record, if `strict`.
        """
        requests = [record.request for record in records]
        translations = self.translator.translate_all(requests, n_best=self.n_best)
        alignments = None
        if self.alignment:
            from tfm.model.inspection.alignments import align_all

            alignments = align_all(self.translator, translations)
        for i, (record, translation) in enumerate(zip(records, translations, strict=True)):
            if record.error is not None and self.strict:
                raise DataError(record.error)
            alignment = None if alignments is None else alignments[i]
            file.write(self.layout(Result(tally.records, record, translation, alignment)))
            tally.records += 1
            tally.truncated += translation.truncated
            tally.bad += record.error is not None
        if len(records) >= WINDOW:  # batches of other shapes would not fit what these have left
            from tfm.model.memory import give_back_freed_memory

            give_back_freed_memory()


def windows(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Yield lists of FIRST_WINDOW items, then of up to WINDOW; those before bad UTF-8 too."""
    window: list[Item] = []
    size = FIRST_WINDOW
    try:
        for item in items:
            window.append(item)
            if len(window) == size:
                yield window
                window, size = [], min(2 * size, WINDOW)
    except DataError:
        if window:
            yield window
        raise
    if window:
        yield window
