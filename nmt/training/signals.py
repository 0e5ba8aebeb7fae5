"""Signals that ask a run to save and stop: SIGTERM, SIGINT, SIGUSR1."""

import os
import signal
from types import FrameType, TracebackType
from typing import Self

# SIGUSR1 is how SLURM announces that time is nearly up; the job is queued again: all is well.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 0}


class StopRequest:
    """A context in which the first signal is remembered and a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.signal: int = 0

    def __enter__(self) -> Self:
        self.previous = {number: signal.signal(number, self.receive) for number in EXIT_CODES}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """The handler: what is being written stays under its temporary name if we leave now."""
        if self.signal and number == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self.signal = number
