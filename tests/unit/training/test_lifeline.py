"""A process does not outlive the others of its run, wherever it is stuck."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from nmt.training import lifeline

STUCK = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from nmt.training import lifeline
lifeline.SECONDS_BETWEEN_LOOKS = lifeline.SECONDS_TO_LEAVE = 0.1
port, rank, timeout, *neighbours = map(float, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
store.set_timeout(timedelta(seconds=timeout))
own = lifeline.Lifeline(store, int(rank), 2, timeout, [int(pid) for pid in neighbours])
own.beat()
own.before_leaving = lambda message: print("before", message, flush=True)
store.wait(["0", "1"], timedelta(seconds=60))
own.start()
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def stuck(
    port: int, rank: int, timeout: float, *neighbours: int
) -> Iterator[subprocess.Popen[str]]:
    """A process of two that is stuck in its main thread."""
    numbers = map(str, (port, rank, timeout, *neighbours))
    command = [sys.executable, "-c", STUCK, *numbers]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@contextmanager
def a_store() -> Iterator[dist.TCPStore]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield dist.TCPStore("127.0.0.1", port, is_master=True, timeout=timedelta(seconds=60))


def test_a_stuck_process_ends_after_its_neighbour() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with a_store() as store, stuck(store.port, 1, 60.0, neighbour.pid) as process:
        store.set("0", "1")
        ready(process)
        time.sleep(0.5)
        assert process.poll() is None
        neighbour.send_signal(signal.SIGKILL)
        neighbour.wait()
        assert process.wait(timeout=20) == 1


def test_a_process_that_gives_no_sign_of_life_ends_the_others() -> None:
    """It is stopped, as it would be on another machine; process 0 says who it was."""
    with a_store() as store, stuck(store.port, 0, 2.0) as main, stuck(store.port, 1, 2.0) as other:
        ready(main)
        ready(other)
        time.sleep(3)  # both are stuck, but alive
        assert (main.poll(), other.poll()) == (None, None)
        other.send_signal(signal.SIGSTOP)
        assert main.wait(timeout=20) == 1
        assert main.stdout is not None
        assert main.stderr is not None
        assert "process 1 gave no sign of life for 2 seconds" in main.stdout.readline()
        assert "nmt-train: another process of this run" in main.stderr.read()


def test_a_process_that_was_stopped_itself_blames_nobody() -> None:
    with a_store() as store, stuck(store.port, 0, 2.0) as main, stuck(store.port, 1, 60.0) as other:
        ready(main)
        ready(other)
        main.send_signal(signal.SIGSTOP)
        time.sleep(4)
        main.send_signal(signal.SIGCONT)
        time.sleep(1)
        assert (main.poll(), other.poll()) == (None, None)


def test_nothing_happens_once_it_is_over() -> None:
    over = threading.Event()
    over.set()
    with a_store() as store:
        own = lifeline.Lifeline(store, 0, 2, 0.0, [2**22 + 1], over=over)
        own.watch()
    assert not lifeline.is_alive(2**22 + 1)  # beyond the largest process number
