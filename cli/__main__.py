"""Where `python -m tfm.cli` and the installed script `tfm` begin: an interrupt counts from here.

`main` handles Ctrl-C, but loading it takes a moment, and a user may be quicker.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn


class Interrupt(KeyboardInterrupt):
    """Ctrl-C. Only the class itself makes Python end by the signal once C code has let it pass.

    C code of torch runs Python as it is imported. Python remembers that KeyboardInterrupt came out
    of there, and kills itself at the end, whatever was caught and whatever the exit code is.
    """


def run() -> int:
    """Run `tfm` on the arguments of the command line and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from tfm.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("tfm: error: interrupted", file=sys.stderr)
        return 130


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise Interrupt


if __name__ == "__main__":
    sys.exit(run())
