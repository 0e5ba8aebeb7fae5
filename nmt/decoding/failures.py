"""Lines without a result: one rule for every command that runs a model.

A line for which the model computes numbers that are not finite, or that does not fit into memory,
is named in a warning when its turn comes, and is empty in the output. The other lines are not
affected, the output is complete, and the command then ends with an error that counts those lines.
"""

import logging
from collections import Counter

from nmt.decoding.translation import Failure
from nmt.errors import DivergedError, MemoryLimitError

logger = logging.getLogger(__name__)


class LineFailures:
    """The lines of one input that have no result.

    `done` is the participle and `shown` the description of their output for messages.
    """

    def __init__(
        self, name: str, done: str, *, shown: str = "they are empty in the output"
    ) -> None:
        self.name = name
        self.done = done
        self.shown = shown
        self.counts: Counter[Failure] = Counter()
        self.first: dict[Failure, int] = {}

    def add(self, number: int, failure: Failure, problem: str = "") -> None:
        """Name line `number` (from 1); `problem` is the whole message if there is one."""
        self.counts[failure] += 1
        self.first.setdefault(failure, number)
        logger.warning("%s", problem or f"{self.name}:{number}: not {self.done}, {failure}")

    def check(self) -> None:
        """Count the lines without a result; raise if it was not the lines' own fault."""
        if count := self.counts[Failure.UNREADABLE]:
            logger.warning("%s: %d bad lines are empty in the output", self.name, count)
        messages = [
            f"{self.counts[failure]} lines were not {self.done}: {why} (the first is line "
            f"{self.first[failure]}); {self.shown}{advice}"
            for failure, why, advice in (
                (Failure.NON_FINITE, "the model computes numbers that are not finite", ""),
                (
                    Failure.OUT_OF_MEMORY,
                    "there is not enough memory",
                    ". A smaller beam or shorter lines need less",
                ),
            )
            if failure in self.counts
        ]
        if Failure.NON_FINITE in self.counts:
            raise DivergedError(f"{self.name}: {'; '.join(messages)}")
        if messages:
            raise MemoryLimitError(f"{self.name}: {messages[0]}")
