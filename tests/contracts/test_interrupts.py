"""Tests of Ctrl-C hold where the suite itself cannot be interrupted: `nohup scripts/test.sh &`."""

import signal
import subprocess
import sys

WAIT = """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_child_processes_can_be_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAIT], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert rest == "interrupted\n"


def test_that_holds_where_the_parent_ignores_interrupts() -> None:
    test = f"{__file__}::{test_child_processes_can_be_interrupted.__name__}"
    for workers in ([], ["--numprocesses", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, test],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout
