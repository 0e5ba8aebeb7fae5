"""Files appear whole or not at all, and survive a power cut once they have appeared."""

import errno
import os
import random
import stat
from pathlib import Path

import pytest
from support.small_models import crash_at, largest_file, refuse_at

from nmt.errors import StorageError
from nmt.storage.directories import built_directory, install_directory, recover
from nmt.storage.files import install_file, replace_file, replaced_file

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EXDEV)


def test_order_of_write_sync_rename_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes are there when the file is synced, and nothing is renamed before that."""
    events: list[tuple[str, str, int]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        size = os.fstat(descriptor).st_size if name.startswith(".") else 0
        events.append(("fsync", name[:9], size))
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        events.append(("rename", target.name, 0))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    replace_file(tmp_path / "result", b"x" * 5_000_000)
    assert events == [
        ("fsync", ".nmt-new-", 5_000_000),
        ("rename", "result", 0),
        ("fsync", tmp_path.name[:9], 0),
    ]


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
def test_a_refusal_leaves_the_old_file_and_nothing_else(tmp_path: Path, number: int) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old")
    with (
        refuse_at(0, number),
        pytest.raises(StorageError, match=f"result: .*{os.strerror(number)}"),
    ):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result"]


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, count: int) -> None:
    generator = random.Random(count)
    path = tmp_path / "result"
    path.write_bytes(b"old")
    for _ in range(count):
        with (
            largest_file(generator.randrange(3_000_000)),
            pytest.raises(StorageError, match="result: cannot be written"),
        ):
            replace_file(path, bytes(3_000_000))
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["result"]


def test_an_error_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replaced_file(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result"]


def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    replace_file(tmp_path / "result", b"old")
    with crash_at(0):
        replace_file(tmp_path / "result", b"new")
    assert len(os.listdir(tmp_path)) == 2
    recover(tmp_path, name="result", exclusive=True)
    assert os.listdir(tmp_path) == ["result"]
    assert (tmp_path / "result").read_bytes() == b"old"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    replace_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "elsewhere") == ["file"]


def test_modes_follow_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "result", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == 0o640


def test_another_file_system_is_an_error(tmp_path: Path) -> None:
    """A rename that cannot work, in earnest: /dev/shm is another file system."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with built_directory(Path("/dev/shm") / tmp_path.name) as temporary:
        (temporary / "file").write_bytes(b"content")
        with pytest.raises(StorageError, match=r"result: cannot be written .*device"):
            install_file(temporary / "file", tmp_path / "result")
        with pytest.raises(OSError, match="device"):
            install_directory(temporary, tmp_path / "directory")
        assert (temporary / "file").read_bytes() == b"content"
    assert os.listdir(tmp_path) == []
    assert not [name for name in os.listdir("/dev/shm") if tmp_path.name in name]
