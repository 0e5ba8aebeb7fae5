"""Run by test_other_systems.py: a process without the names that macOS or Windows do not have.

It imports every module of the package, then calls `module.main` with arguments, one call per line
of standard input, as JSON.
"""

# The libraries decide for themselves by the system they were built for, so they come first.
import fcntl as real
import importlib
import json
import os
import signal
import sys
import types
from pathlib import Path

# The libraries decide for themselves by the system that they were built for, so they come first.
LIBRARIES = (
    "asyncio.subprocess concurrent.futures.process multiprocessing.pool tempfile numpy "
    "torch.distributed torch.multiprocessing sacrebleu uvicorn starlette.applications"
)
MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
OS_NAMES = (
    "sched_getaffinity fork forkpty register_at_fork pread pwrite O_CLOEXEC O_NOFOLLOW O_NONBLOCK "
    "O_DIRECTORY getloadavg sysconf uname killpg"
)
SIGNALS = "SIGUSR1 SIGUSR2 SIGHUP SIGKILL SIGSTOP SIGCONT SIGALRM"


def windows_locking(descriptor: int, mode: int, size: int) -> None:
    """Fail as msvcrt.locking does: at once, or after some seconds."""
    assert os.lseek(descriptor, 0, os.SEEK_CUR) > 0
    assert size == 1
    real.flock(descriptor, real.LOCK_EX | (real.LOCK_NB if mode == 1 else 0))


def hide() -> None:
    """Remove what other systems do not have, and add what Windows has instead."""
    for name in LIBRARIES.split():
        importlib.import_module(name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in OS_NAMES.split():
        delattr(os, name)
    for name in SIGNALS.split():
        delattr(signal, name)
    windows = types.ModuleType("msvcrt")
    vars(windows).update(LK_NBLCK=1, LK_LOCK=2, locking=windows_locking)
    sys.modules["msvcrt"] = windows


def import_all() -> int:
    """The number of modules of the package, but for those that need Triton or Ray."""
    import nmt

    package = Path(nmt.__file__).parent
    files = [path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")]
    names = [".".join(file.parts).removesuffix(".__init__") for file in sorted(files)]
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("triton", "ray"):
                raise
    return len(names)


if __name__ == "__main__":
    hide()
    print(import_all(), file=sys.stderr)
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        code = importlib.import_module(module).main(arguments)
        if code != 0:
            sys.exit(f"{module} {arguments}: exit {code}")
