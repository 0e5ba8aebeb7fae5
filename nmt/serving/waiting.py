"""The lines that wait for a worker, and how they are put together into batches.

Lines of all clients share batches, and requests take turns, so that a long document does not hold
up a short one. A translation has the same bits whatever the other lines of its batch are.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

BATCH_LINES = 128
BATCH_CHARACTERS = 16_000  # workers cut batches further, by subwords
BATCH_SECONDS = 1.0  # of work, as far as known; nothing stops a worker that has begun
LEAST_LINES = 16  # that make good use of a worker, however slow the model is
MOST_WAITS = 6  # of a worker for further lines
MAX_ENDINGS = 3  # workers that may end unexpectedly while they work on the same line
RETRY_AFTER = 5  # seconds after which a client may try again

Answer = dict[str, Any]


class RefusedError(Exception):
    """A request that is not answered: the HTTP status and the reason, for the client."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def busy(reason: str) -> RefusedError:
    """The refusal of a request that may be sent again a little later."""
    return RefusedError(503, f"the server is busy: {reason}", retry_after=str(RETRY_AFTER))


@dataclass(frozen=True)
class BatchKind:
    """The properties that the lines of a batch share."""

    task: str
    model: str
    nbest: int = 1

    @property
    def most_lines(self) -> int:
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
        return len(self.content) if isinstance(self.content, str) else 0

    def refuse(self, error: RefusedError) -> None:
        """Answer with an error, unless nobody waits for the answer any more."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(eq=False)
class Submission:
    """Lines of one request."""

    kind: BatchKind
    items: Sequence[Item]
    arrived: float = field(default_factory=time.monotonic)
    waiting: deque[Item] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = deque(self.items)


@dataclass(frozen=True)
class LineBatch:
    """Lines that are given to a worker together."""

    kind: BatchKind
    items: Sequence[Item]


class WaitingLines:
    """The requests that wait for workers, in the order of their turns."""

    def __init__(self, *, wait: float, limit: int) -> None:
        self.wait = wait  # seconds; a worker waits on while lines keep coming
        self.limit = limit  # most lines that wait; beyond, requests are refused
        self.turns: deque[Submission] = deque()
        self.num_lines = 0  # that wait
        self.num_idle = 0  # workers that wait for a batch
        self.speeds: dict[BatchKind, float] = {}  # characters per second of a worker
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return self.num_lines

    @property
    def full(self) -> bool:
        """Whether no further lines are taken."""
        return len(self) >= self.limit

    def check_room(self) -> None:
        """Raise if no further lines are taken."""
        if self.full:
            raise busy("too many lines wait")

    def submit(self, kind: BatchKind, contents: Sequence[Any]) -> Submission:
        """Put lines into the queue; their answers are futures."""
        self.check_room()
        loop = asyncio.get_running_loop()
        submission = Submission(kind, [Item(each, loop.create_future()) for each in contents])
        self._add([submission])
        return submission

    def withdraw(self, submission: Submission) -> None:
        """Take out the lines that have not begun, and leave the answers of the others unread."""
        self.num_lines -= len(submission.waiting)
        submission.waiting.clear()
        for item in submission.items:
            if not item.answer.cancel() and not item.answer.cancelled():
                item.answer.exception()  # mark it as seen

    def put_back(self, batch: LineBatch) -> None:
        """Let lines be tried again, each by itself, after their worker ended unexpectedly."""
        for item in batch.items:
            item.endings += 1
            if item.endings >= MAX_ENDINGS:
                item.refuse(
                    RefusedError(500, f"{MAX_ENDINGS} workers ended while they worked on this text")
                )
        again = [item for item in batch.items if not item.answer.done()]
        self._add([Submission(batch.kind, [item]) for item in again])

    def note_speed(self, batch: LineBatch, seconds: float) -> None:
        """Learn from the time that a worker took for a batch."""
        speed = sum(item.size for item in batch.items) / max(seconds, 1e-6)
        self.speeds[batch.kind] = (self.speeds.get(batch.kind, speed) + speed) / 2

    def _add(self, submissions: Sequence[Submission]) -> None:
        """Let submissions wait for their turns."""
        self.turns.extend(submissions)
        self.num_lines += sum(len(submission.waiting) for submission in submissions)
        self.wake()

    def wake(self, _cause: object = None) -> None:
        """Let all who wait for a batch look whether they still want one."""
        self.changed.set()

    async def next_batch(self, wanted: Callable[[], bool]) -> LineBatch | None:
        """The next lines for a worker, after a short time in which others may come.

        None if it is not wanted any more.
        """
        self.num_idle += 1
        try:
            gathered = 0  # lines that were there when others were waited for
            waits = 0
            while wanted():
                if not self._prune():
                    self.changed.clear()
                    await self.changed.wait()
                elif waits < MOST_WAITS and gathered < len(self) < BATCH_LINES:
                    gathered = len(self)
                    waits += 1
                    await asyncio.sleep(self.wait)
                else:
                    return self._take()
            return None
        finally:
            self.num_idle -= 1

    def _prune(self) -> bool:
        """Take out requests of which no line waits any more; whether others do."""
        if any(not one.waiting for one in self.turns):
            self.turns = deque(one for one in self.turns if one.waiting)
        return bool(self.turns)

    def _take(self) -> LineBatch:
        """Lines of one kind, one of each request in turn; idle workers share what there is."""
        kind = self.turns[0].kind
        alike = deque(one for one in self.turns if one.kind == kind)
        share = -(-sum(len(one.waiting) for one in alike) // self.num_idle)
        enough = self.speeds.get(kind, math.inf) * BATCH_SECONDS
        items: list[Item] = []
        size = 0
        while alike and len(items) < min(share, kind.most_lines):
            item = alike[0].waiting[0]
            suspect = item.endings > 0  # of having ended a worker: it goes alone
            most = BATCH_CHARACTERS if len(items) < LEAST_LINES else min(BATCH_CHARACTERS, enough)
            if items and (suspect or size + item.size > most):
                break
            items.append(alike[0].waiting.popleft())
            size += item.size
            if suspect:
                break
            if alike[0].waiting:
                alike.rotate(-1)
            else:
                alike.popleft()
        self.turns.rotate(-1)
        self.num_lines -= len(items)
        return LineBatch(kind, items)
