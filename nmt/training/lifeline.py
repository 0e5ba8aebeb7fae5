"""Signs of life between the processes of a run: when one of them is gone, the others end."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch._C._distributed_c10d import Store

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_LEAVE = 5.0  # that a process has to end by itself after one beside it has died
EXIT_CODE = 1  # of torchrun, too


def lost_message(reason: str) -> str:
    """The line for a run that ends because of another process."""
    return (
        f"another process of this run has ended or does not answer ({reason}); run again to go "
        "on from the last checkpoint"
    )


@dataclass
class Lifeline:
    """Tells the other processes that this one is alive, and ends it when one of them is not.

    Collectives wait for a process that compiles, reads data or writes a checkpoint, however long
    that takes. A process counts as dead if it gives no sign of life for `timeout` seconds. Each one
    counts up a number in the store; process 0 watches all of them, the others watch process 0.
    """

    store: Store  # used by no other thread
    rank: int
    size: int
    timeout: float  # seconds
    neighbours: Sequence[int] = ()  # process ids of the others on this machine
    before_leaving: Callable[[str], object] = lambda _message: None
    over: threading.Event = field(default_factory=threading.Event)
    beats: int = 0

    def beat(self) -> None:
        """Give a sign of life. The first has to be there before the others look for it."""
        self.beats += 1
        self.store.set(str(self.rank), str(self.beats))

    def start(self) -> None:
        """Watch the others from a thread."""
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """Look at the others until it is over, or until one of them is gone."""
        watched = range(self.size) if self.rank == 0 else range(1)
        seen = dict.fromkeys(watched, b"")
        changed = dict.fromkeys(watched, time.monotonic())
        while not self.over.wait(min(SECONDS_BETWEEN_LOOKS, self.timeout / 4)):
            # Gloo notices a lost connection nearly always, but was seen to wait on.
            if not all(map(is_alive, self.neighbours)) and not self.over.wait(SECONDS_TO_LEAVE):
                self.leave("a process on this machine has ended")
            seen, before = self.read(seen), seen
            now = time.monotonic()
            changed |= {rank: now for rank in watched if seen[rank] != before[rank]}
            for rank in watched:
                if now - changed[rank] > self.timeout and not self.over.is_set():
                    self.leave(f"process {rank} gave no sign of life for {self.timeout:g} seconds")

    def read(self, seen: dict[int, bytes]) -> dict[int, bytes]:
        """The newest signs of life; those seen before if the store is out of reach."""
        try:
            self.beat()
            values = self.store.multi_get([str(rank) for rank in seen])
        except RuntimeError:
            return seen
        return dict(zip(seen, values, strict=True))

    def leave(self, reason: str) -> None:
        """End this process: its main thread waits in a collective, and nothing can wake it."""
        message = lost_message(reason)
        try:
            self.before_leaving(message)
            os.write(2, f"nmt-train: {message}\n".encode())
        finally:
            end_stopped(self.neighbours)
            os._exit(EXIT_CODE)


def end_stopped(pids: Sequence[int]) -> None:
    """Kill the processes that were stopped: torchrun would wait for them for half a minute."""
    for pid in filter(is_stopped, pids):
        os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_stopped(pid: int) -> bool:
    """Whether a process is there but was stopped, by SIGSTOP for example."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
