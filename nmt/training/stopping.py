"""All processes of a run stop at the same update, without a message for each update."""

import time

from nmt.training.distributed import Processes

SECONDS_BETWEEN_QUESTIONS = 1.0
MAX_INTERVAL = 1000  # between two questions


class StopAgreement:
    """Asks all processes about once per second whether one of them wants to stop.

    The updates at which they ask each other follow from the speed of the slowest process, which is
    part of each answer, so all processes ask at the same ones. A process alone asks itself after
    every update.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.asked_at = time.monotonic()
        self.updates = 1  # between the last question and the next
        self.next: int | None = None  # the update of the next question; the first of this process

    def number(self, own: int, *, update: int) -> int:
        """The largest number that a process wants to stop with; 0 to go on, or if none is asked."""
        if self.processes.size == 1:
            return own
        if self.next is not None and update < self.next:
            return 0
        now = time.monotonic()
        per_update = (now - self.asked_at) / self.updates
        number, microseconds = self.processes.maxima([own, round(1e6 * per_update)])
        self.asked_at = now
        self.updates = round(1e6 * SECONDS_BETWEEN_QUESTIONS) // max(microseconds, 1)
        self.updates = min(max(self.updates, 1), MAX_INTERVAL)
        self.next = update + self.updates
        return number
