"""Signals that ask a run to save and stop: SIGTERM, SIGINT, SIGUSR1 (without importing torch)."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

# SIGUSR1 is how SLURM announces that time is nearly up; the job is queued again: all is well.
TRAINING_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
if hasattr(signal, "SIGUSR1"):  # not on Windows
    TRAINING_EXIT_CODES[signal.SIGUSR1] = 0


class StopRequest:
    """A context in which signals stop the run in an orderly way.

    Until `defer` is called there is nothing to save, and a signal ends the process at once: what
    is being written has a temporary name, and the next start removes it. (An exception would not
    do, since it may arrive inside the C++ code of a module that is being imported.) After `defer`
    the first signal is remembered in `signal`, for the loop to look at after each update, and a
    second Ctrl-C ends the process at once. A SIGINT that the parent process ignores
    (`nohup ... &`) stays ignored. With `until_exit` the process ends after the context: its exit
    code is settled, and signals are ignored from then on.
    """

    def __init__(self, *, until_exit: bool = False) -> None:
        self.until_exit = until_exit
        self.signal: int = 0
        self.deferred = False
        self.before_leaving: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        self.previous = {
            number: signal.signal(number, self.receive)
            for number in TRAINING_EXIT_CODES
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, signal.SIG_IGN if self.until_exit else handler)

    def defer(self) -> None:
        """From now on the training loop looks at `signal` by itself."""
        self.deferred = True

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: remember the first, and let a second SIGINT end the process at once."""
        if self.signal:
            if number == signal.SIGINT:
                os._exit(TRAINING_EXIT_CODES[signal.SIGINT])
            return
        self.signal = number
        if not self.deferred:
            self.leave()

    def leave(self) -> None:
        """End the process; the standard streams may be in use, so they are not touched."""
        name = signal.Signals(self.signal).name
        message = f"nmt-train: stopped by {name} before the first update; run again to go on\n"
        try:
            self.before_leaving()
            os.write(2, message.encode())
        finally:
            os._exit(TRAINING_EXIT_CODES[signal.Signals(self.signal)])
