"""The system calls of a writer: nothing takes its place before it is on disk."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import tiny_config, write_run

CALLS = "openat,mkdir,write,pwrite64,writev,fsync,rename,renameat,renameat2"
QUOTED = re.compile(r'"([^"]*)"')
DESCRIPTOR = re.compile(r"\(\d+<([^>]*)>")

STORE = """
import sys
from pathlib import Path
from nmt.storage.directories import bytes_writer, replace_directory, write_directory
from nmt.storage.files import replace_file

root = Path(sys.argv[1])
files = {"model": bytes_writer(bytes(3_000_000)), "state": bytes_writer(b"{}")}
for step in range(3):
    write_directory(root / "deep" / str(step), files)
    replace_directory(root / "best", files)
    replace_file(root / "result", bytes(3_000_000))
"""


def traced(command: list[str], output: Path) -> list[str]:
    """The system calls of a program and all its threads, in order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    line = [strace, "-f", "-y", "-s", "500", "-e", f"trace={CALLS}", "-o", str(output), *command]
    done = subprocess.run(line, capture_output=True, text=True)
    if "ptrace" in done.stderr and done.returncode:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return output.read_text(errors="replace").split("\n")


class Disk:
    """The changes that a power cut could still undo."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.unsynced: set[str] = set()  # files with content, and directories with names
        self.must_sync: set[str] = set()  # directories into which something took its place
        self.placed: list[str] = []

    def see(self, line: str) -> None:
        """Follow one system call."""
        call = line.split(" ", 1)[-1].lstrip()
        if self.root not in call or " = -1 " in call:
            return
        name = call.partition("(")[0]
        paths = QUOTED.findall(call)
        if name in ("openat", "mkdir") and (name == "mkdir" or "O_CREAT" in call):
            self.appear(paths[0])
        elif name in ("write", "pwrite64", "writev") and (opened := DESCRIPTOR.search(call)):
            self.unsynced.add(opened[1])
        elif name == "fsync" and (opened := DESCRIPTOR.search(call)):
            self.unsynced.discard(opened[1])
            self.must_sync.discard(opened[1])
        elif name.startswith("rename"):
            self.move(paths[0], paths[1])

    def appear(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if name.startswith(".nmt-new-"):
            assert not self.must_sync, f"{path} is begun before {self.must_sync} is synced"
        self.unsynced.add(parent)

    def move(self, source: str, target: str) -> None:
        inside = {path for path in self.unsynced if path == source or path.startswith(source + "/")}
        parent, _, name = target.rpartition("/")
        if source.rpartition("/")[2].startswith(".nmt-new-"):
            assert not inside, f"{target} takes its place before {inside} is synced"
            self.must_sync.add(parent)
            self.placed.append(name)
        self.unsynced -= inside
        self.unsynced |= {target + path.removeprefix(source) for path in inside} | {parent}


def follow(lines: list[str], root: Path) -> list[str]:
    """Check the order of all calls below `root`; the names that took their place."""
    disk = Disk(root)
    for line in lines:
        disk.see(line)
    assert not disk.must_sync
    return disk.placed


def test_everything_is_on_disk_before_it_takes_its_place(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STORE, str(tmp_path / "root")]
    placed = follow(traced(command, tmp_path / "trace"), tmp_path / "root")
    assert placed == ["0", "best", "result", "1", "best", "result", "2", "best", "result"]


@pytest.mark.parametrize("saves", [pytest.param(100, marks=pytest.mark.slow)])
def test_every_save_of_a_run_is_on_disk_before_it_takes_its_place(
    tmp_path: Path, saves: int
) -> None:
    settings = tiny_config(tmp_path, max_updates=saves, save_every=1)
    command = [
        sys.executable,
        "-m",
        "nmt.cli.train",
        "--config",
        str(write_run(tmp_path, settings)),
    ]
    placed = follow(traced(command, tmp_path / "trace"), tmp_path)
    steps = [name for name in placed if name.startswith("step-")]
    assert len(set(steps)) == saves
    assert {"prepared", "best", "config.yaml", "result.json"} <= set(placed)
