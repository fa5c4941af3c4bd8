"""Ctrl-C, SIGTERM and a hang-up ask training to stop at the next safe place, not at once."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self


class Interrupted(Exception):
    """Training stopped because of the signal `number`; its state is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class StopSignals:
    """While entered, note the first SIGINT, SIGTERM or SIGHUP; a second SIGINT interrupts at once.

    A signal that is ignored stays so: under nohup training outlives its terminal.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> Self:
        self._before = {}
        # Python lets only the main thread set handlers; elsewhere signals keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # None is a handler that was not set from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def check(self, agree: Callable[[int], int] = int) -> None:
        """Raise `Interrupted` if a signal has come. Call it where stopping loses nothing.

        Args:
            agree: makes one number of those that several processes have received; 0 is none.
        """
        if number := agree(self.received or 0):
            raise Interrupted(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        self.received = number
