"""What a run says while it works. It goes to stderr: stdout carries results and nothing else.

`log` takes text as it is: no markup, no emoji codes, no highlighting, so that a user's text can be
printed without escaping. Under NO_COLOR, in CI and without a terminal it is plain text, without
escape sequences: lines instead of a progress bar, too.
"""

import errno
import os
import sys
from typing import Any

from rich.console import Console

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
PLAIN = IN_CI or os.environ.get("NO_COLOR", "") != ""  # even on what says that it is a terminal


class Log(Console):
    """A console whose reader may leave: the work goes on in silence."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console` does; a terminal that is gone is like a pipe without a reader."""
        try:
            super().print(*objects, **options)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Say no more. rich would end the process: `tfm train 2>&1 | head` would end the run."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


log = Log(
    stderr=True,
    markup=False,
    emoji=False,
    highlight=False,
    force_terminal=False if PLAIN else None,
)


def note(text: str) -> None:
    """Print one line of information."""
    log.print(one_line(text), soft_wrap=True)


def warn(text: str) -> None:
    """Print one line that the user should act on, or at least know of."""
    log.print(f"tfm: warning: {one_line(text)}", style="yellow", soft_wrap=True)


def one_line(text: str) -> str:
    """Return `text` as one printable line: breaks become spaces, control characters escapes."""
    joined = " ".join(part.strip() for part in text.splitlines() if part.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)
