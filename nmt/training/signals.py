"""Signals that ask a run to save and stop: SIGTERM, SIGINT, SIGUSR1 (without importing torch)."""

import os
import signal
from types import FrameType, TracebackType
from typing import Self

# SIGUSR1 is how SLURM announces that time is nearly up; the job is queued again: all is well.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 0}


class StopSignal(BaseException):
    """A signal that arrived before the training loop: there is nothing to save."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = EXIT_CODES[signal.Signals(number)]


class StopRequest:
    """A context in which signals stop the run in an orderly way.

    Until `defer` is called a signal raises StopSignal at once. After it the first signal is
    remembered in `signal`, for the loop to look at after each update. A second Ctrl-C ends the
    process at once in both cases. A SIGINT that the parent process ignores (`nohup ... &`) stays
    ignored. With `until_exit` the process ends after the context: its exit code is settled, and
    signals are ignored from then on.
    """

    def __init__(self, *, until_exit: bool = False) -> None:
        self.until_exit = until_exit
        self.signal: int = 0
        self.deferred = False

    def __enter__(self) -> Self:
        self.previous = {
            number: signal.signal(number, self.receive)
            for number in EXIT_CODES
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, signal.SIG_IGN if self.until_exit else handler)

    def defer(self) -> None:
        """From now on the training loop looks at `signal` by itself."""
        self.deferred = True

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """The handler. A file that is being written keeps its temporary name if we leave now."""
        if self.signal and number == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        if self.signal:
            return
        self.signal = number
        if not self.deferred:
            raise StopSignal(number)
