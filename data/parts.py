"""The parts of a file that several processes write, each whole or not there, and made one at last.

A part stands in a directory beside the file, under its number and the fingerprint of all that it
follows from. So a run that was killed goes on from the parts that are there, whoever made them, and
a part of another input, or of other settings, is never taken for one of this.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tfm.data.errors import DataError
from tfm.data.lines import TEMPORARY, atomic_writer, reason

PART = re.compile(r"\d{6,}-[0-9a-f]{32}")  # the name of one: its number and its fingerprint


@dataclass(frozen=True)
class Parts:
    """The directory of the parts of `output`.

    Args:
        output: the file that they become.
        identity: what all of them follow from, beside their own lines; any JSON.
    """

    output: Path
    identity: Any

    @property
    def directory(self) -> Path:
        """Where the parts stand until `output` is written."""
        return self.output.with_name(self.output.name + ".parts")

    def path(self, number: int, lines: Iterable[bytes]) -> Path:
        """Return where the part is, or is to be, that `lines` of the input make."""
        digest = hashlib.sha256(json.dumps([self.identity, number], sort_keys=True).encode())
        for line in lines:
            digest.update(b"%d:" % len(line) + line)
        return self.directory / f"{number:06}-{digest.hexdigest()[:32]}"

    def write(self, path: Path, header: dict[str, Any], text: str) -> None:
        """Write a part: what is to be known of it, on one line, and then its text.

        Raises:
            DataError: if it cannot be written.
        """
        try:
            self.directory.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.directory}: cannot be made: {reason(error)}") from None
        with atomic_writer(path) as file:
            file.write(json.dumps(header) + "\n" + text)

    def join(self, paths: Iterable[Path], file: IO[str]) -> list[dict[str, Any]]:
        """Write the text of the parts to `file`, in order, and return their headers.

        Raises:
            DataError: if one is missing or cannot be read.
        """
        headers = []
        for path in paths:
            try:
                with path.open(encoding="utf-8", newline="") as part:
                    headers.append(json.loads(part.readline()))
                    shutil.copyfileobj(part, file)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{path}: no part of {self.output} any more ({error}); was the input changed "
                    "meanwhile? Repeat the command"
                ) from None
        return headers

    def remove(self) -> None:
        """Remove all parts, of earlier inputs too, and the directory if that leaves it empty."""
        for path in self.directory.glob("*"):
            if PART.fullmatch(path.name) or path.match(TEMPORARY):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it holds what is not ours
            self.directory.rmdir()
