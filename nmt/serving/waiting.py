"""The lines that wait for a worker, and how they are put together into batches.

Lines of all clients share batches, and requests take turns, so that a long document does not hold
up a short one. A translation has the same bits whatever the other lines of its batch are.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BATCH_LINES = 128
BATCH_CHARACTERS = 16_000  # workers cut batches further, by subwords
ATTEMPTS = 2  # workers that may end unexpectedly while they work on the same line

Answer = dict[str, Any]


class RefusedError(Exception):
    """A request that is not answered: the HTTP status and the reason, for the client."""

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True)
class BatchKind:
    """The properties that the lines of a batch share."""

    task: str
    model: str
    nbest: int = 1

    @property
    def lines(self) -> int:
        """The most lines of a batch."""
        return BATCH_LINES if self.task == "translate" else 1


@dataclass(eq=False)
class Item:
    """A line that waits, and the answer to come."""

    content: Any
    answer: "asyncio.Future[Answer]"
    endings: int = 0  # workers that ended unexpectedly while they had it

    @property
    def size(self) -> int:
        """The length in characters."""
        return len(self.content) if isinstance(self.content, str) else BATCH_CHARACTERS


@dataclass(eq=False)
class Submission:
    """The lines of one request."""

    kind: BatchKind
    items: list[Item]
    arrived: float = field(default_factory=time.monotonic)
    waiting: deque[Item] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = deque(self.items)


@dataclass(frozen=True)
class Batch:
    """Lines that are given to a worker together."""

    kind: BatchKind
    items: Sequence[Item]


class WaitingLines:
    """The requests that wait for workers, in the order of their turns."""

    def __init__(self, *, wait: float) -> None:
        self.wait = wait  # seconds that a line waits for others
        self.turns: deque[Submission] = deque()
        self.idle = 0  # workers that wait for a batch
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return sum(len(submission.waiting) for submission in self.turns)

    def submit(self, kind: BatchKind, contents: Sequence[Any]) -> Submission:
        """Put the lines of a request into the queue; their answers are futures."""
        loop = asyncio.get_running_loop()
        submission = Submission(kind, [Item(each, loop.create_future()) for each in contents])
        self.turns.append(submission)
        self.changed.set()
        return submission

    def withdraw(self, submission: Submission) -> None:
        """Take out the lines of a request that have not begun."""
        submission.waiting.clear()
        for item in submission.items:
            item.answer.cancel()

    def put_back(self, batch: Batch) -> None:
        """Let lines be tried again, each by itself, after their worker ended unexpectedly."""
        for item in batch.items:
            item.endings += 1
            if item.endings >= ATTEMPTS and not item.answer.done():
                item.answer.set_exception(
                    RefusedError(500, f"{ATTEMPTS} workers ended while they translated this text")
                )
            if not item.answer.done():
                again = Submission(batch.kind, [item])
                self.turns.appendleft(again)
        self.changed.set()

    async def next_batch(self) -> Batch:
        """The next lines for a worker, after a short time in which others may come."""
        self.idle += 1
        try:
            while True:
                self._drop_finished()
                if not self.turns:
                    self.changed.clear()
                    await self.changed.wait()
                    continue
                delay = self.turns[0].arrived + self.wait - time.monotonic()
                if delay > 0 and len(self) < BATCH_LINES:
                    await asyncio.sleep(delay)
                    self._drop_finished()
                if self.turns:
                    return self._take()
        finally:
            self.idle -= 1

    def _drop_finished(self) -> None:
        """Take out requests of which no line waits any more."""
        while self.turns and not self.turns[0].waiting:
            self.turns.popleft()

    def _take(self) -> Batch:
        """Lines of one kind, taken from the requests in turn; idle workers share what is there."""
        kind = self.turns[0].kind
        alike = deque(one for one in self.turns if one.kind == kind and one.waiting)
        most = min(kind.lines, -(-sum(len(one.waiting) for one in alike) // max(self.idle, 1)))
        items: list[Item] = []
        size = 0
        while alike and len(items) < most:
            submission = alike[0]
            item = submission.waiting[0]
            alone = item.endings > 0  # it may be what ended its worker
            if items and (alone or items[0].endings or size + item.size > BATCH_CHARACTERS):
                break
            items.append(submission.waiting.popleft())
            size += item.size
            alike.rotate(-1)
            if not submission.waiting:
                alike.pop()
        first = self.turns[0]
        if first.waiting:  # its next line has to wait for its turn
            self.turns.rotate(-1)
        return Batch(kind, items)
