"""Ctrl-C and SIGTERM ask training to stop after the current step instead of in the midst of it."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupted(Exception):
    """Training stopped after saving, because of the signal `number`."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}")
        self.number, self.step = number, step


class StopSignals:
    """While entered, note the first SIGINT or SIGTERM; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> Self:
        # Python lets only the main thread set handlers; elsewhere signals keep their meaning.
        self._handled = threading.current_thread() is threading.main_thread()
        if self._handled:
            numbers = (signal.SIGINT, signal.SIGTERM)
            self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handled:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        self.received = number
