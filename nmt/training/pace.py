"""How long a run still takes, by the pace of its updates and of its validations."""

import time
from collections.abc import Callable

from nmt.config.config import Config

SILENCE = 30.0  # seconds without a line about progress, where no progress bar is drawn


class Pace:
    """Measures updates and validations apart, since a validation takes as long as many updates."""

    def __init__(
        self, config: Config, *, update: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.clock = clock
        self.first_update = self.update = update
        self.started = clock()
        self.validation_seconds = 0.0  # of the last one
        self.last_line: float | None = None

    def advance(self, update: int) -> None:
        """Count the updates up to this one as done."""
        self.update = update

    def validated(self, seconds: float) -> None:
        """Take the time of a validation out of that of the updates."""
        self.started += seconds
        self.validation_seconds = seconds

    def seconds_left(self) -> float | None:
        """The time for the updates and validations still to do; None before the first update."""
        done = self.update - self.first_update
        if done == 0:
            return None
        most, every = self.config.train.max_updates, self.config.validate.every
        validations = -(-most // every) - self.update // every
        per_update = (self.clock() - self.started) / done
        return (most - self.update) * per_update + validations * self.validation_seconds

    def describe(self) -> str:
        """The place in the run and the time left, such as `update 250 of 2,000, 3 min left`."""
        left = self.seconds_left()
        self.last_line = self.clock()
        place = f"update {self.update:,} of {self.config.train.max_updates:,}"
        return place if left is None else f"{place}, {duration(left)} left"

    def line_is_due(self) -> bool:
        """Whether nothing has been said of the progress for long: at first, and after SILENCE."""
        return self.last_line is None or self.clock() - self.last_line >= SILENCE


def duration(seconds: float) -> str:
    """A time in the one or two units that matter."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"
