"""A run directory has one master at a time, and a dead one is none."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nmt.checkpoint.store import CheckpointStore
from nmt.errors import LockedError, StorageError
from nmt.storage.lock import check_free, locked, locked_to_write

HOLD = """
import os, sys, time
from pathlib import Path
from nmt.checkpoint.store import CheckpointStore

with CheckpointStore(Path(sys.argv[1])).lock():
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


def test_second_holder_is_told_the_first(tmp_path: Path) -> None:
    """While it lives it blocks; killed, it does not, although its forked child lives on."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            with (
                pytest.raises(
                    LockedError, match=f"process {process.pid} on {socket.gethostname()}"
                ),
                CheckpointStore(tmp_path).lock(),
            ):
                pass
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.kill(child, 0)  # still there
            with CheckpointStore(tmp_path).lock():
                pass
        finally:
            os.kill(child, signal.SIGKILL)
    assert LockedError.exit_code == 5


def test_lock_can_be_taken_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "new" / "run")
    for _ in range(2):
        with store.lock(), pytest.raises(LockedError), CheckpointStore(store.run_dir).lock():
            pass


def test_a_command_started_meanwhile_does_not_hold_the_lock(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path).lock():
        sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with CheckpointStore(tmp_path).lock():
            pass
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
@pytest.mark.parametrize("lock", [locked, locked_to_write], ids=["run", "data"])
def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lock: Callable[[Path], AbstractContextManager[object]],
    number: int,
) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    message = f"cannot lock files .{os.strerror(number)}.; choose"
    with pytest.raises(StorageError, match=message), lock(tmp_path / "run"):
        pass


def test_looking_whether_a_directory_is_free_creates_nothing(tmp_path: Path) -> None:
    check_free(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with locked(tmp_path / "run"), pytest.raises(LockedError, match=f"process {os.getpid()} on"):
        check_free(tmp_path / "run")
    check_free(tmp_path / "run")
