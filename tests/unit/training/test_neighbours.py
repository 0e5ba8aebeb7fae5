"""A process does not outlive those beside it, wherever it is stuck."""

import signal
import subprocess
import sys
import threading
import time

from nmt.training import distributed

STUCK = """
import sys, threading, time
from nmt.training import distributed
distributed.SECONDS_BETWEEN_LOOKS = distributed.SECONDS_TO_LEAVE = 0.1
arguments = ([int(sys.argv[1])], threading.Event())
threading.Thread(target=distributed.leave_with_the_others, args=arguments, daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_stuck_process_ends_after_its_neighbour() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    command = [sys.executable, "-c", STUCK, str(neighbour.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stuck:
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == "ready\n"
        time.sleep(0.5)
        assert stuck.poll() is None
        neighbour.send_signal(signal.SIGKILL)
        neighbour.wait()
        assert stuck.wait(timeout=20) == 1


def test_nothing_happens_once_it_is_over() -> None:
    over = threading.Event()
    over.set()
    distributed.leave_with_the_others([2**22 + 1], over)  # beyond the largest process number
    assert not distributed.is_alive(2**22 + 1)
