"""Checkpoints survive crashes, full disks and damage; what is not whole is never used."""

import errno
import logging
import os
import random
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.small_models import (
    DISK_ERRORS,
    content,
    crash_at,
    flip_bit,
    largest_file,
    leftover_names,
    plain_files,
    refuse_at,
    small_files,
    truncate,
    zero_page,
)

from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.store import CheckpointStore, verify
from nmt.errors import IntegrityError, NoCheckpointError, StorageError
from nmt.storage.directories import bytes_writer, json_writer, settled, write_directory
from nmt.storage.manifest import MANIFEST, FileEntry, encode_manifest, parse_manifest
from nmt.storage.tensors import tensors_writer


def store_with(path: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(path)
    for step in steps:
        store.save(step, plain_files(step))
    return store


def test_newest_is_highest_step(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3, 200, 10)
    assert store.newest() == tmp_path / "checkpoints" / "step-00000200"
    assert store.steps() == [3, 10, 200]


def test_a_new_run_has_no_newest(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").newest() is None


def test_damaged_newest_falls_back_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_with(tmp_path, 1, 2)
    flip_bit(tmp_path / "checkpoints/step-00000002/model.safetensors", 77)
    store = CheckpointStore(tmp_path)
    assert store.newest() == store.path(1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "step 2" in record.getMessage()
    assert "model.safetensors" in record.getMessage()


def test_damage_after_own_save_is_seen(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    assert store.newest() == store.path(2)
    flip_bit(store.path(2) / "state.json", 5)
    assert store.newest() == store.path(1)


def test_nothing_good_left_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    store_with(tmp_path, 1, 2)
    for step in (1, 2):
        truncate(tmp_path / f"checkpoints/step-0000000{step}/optimizer.safetensors", 7)
    before = content(tmp_path)
    store = CheckpointStore(tmp_path)
    with pytest.raises(NoCheckpointError, match="none of the 2 checkpoints"), store.lock():
        store.newest()
    assert NoCheckpointError.exit_code == 3
    after = content(tmp_path)
    after.pop(".lock")
    assert after == before


def test_save_again_replaces_a_damaged_checkpoint(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    flip_bit(store.path(2) / "state.json", 0)
    store.save(2, plain_files(2))
    verify(store.path(2))
    assert leftover_names(store.directory) == []


def test_prune_keeps_the_newest_good_ones(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2, 3, 4, 5)
    flip_bit(store.path(4) / "model.safetensors", 9)
    assert store.prune(keep_last=4) == []
    assert store.prune(keep_last=2) == [1, 2]
    assert store.steps() == [3, 4, 5]
    assert leftover_names(store.directory) == []


def test_prune_never_goes_below_two(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2, 3)
    assert store.prune(keep_last=1) == [1]
    flip_bit(store.path(3) / "model.safetensors", 9)
    assert store.prune(keep_last=1) == []
    assert store.newest() == store.path(2)


def test_prune_orders_steps_as_numbers(tmp_path: Path) -> None:
    store = store_with(tmp_path, 99_999_998, 99_999_999, 100_000_000)
    assert store.prune(keep_last=2) == [99_999_998]


def test_prune_does_not_read_what_was_just_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_with(tmp_path, 1, 2, 3)
    opened: list[object] = []
    original = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest: opened.append(path) or original(path, *rest)
    )
    assert store.prune(keep_last=2) == [1]
    assert not any(
        "safetensors" in str(path) for path in opened if "step-00000001" not in str(path)
    )


def test_best_is_replaced(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for seed in (1, 2, 3):
        store.put("best", plain_files(seed))
        verify(tmp_path / "best")
    assert b'"step": 3' in (tmp_path / "best/state.json").read_bytes()
    assert leftover_names(tmp_path) == []


def test_modes_follow_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = store_with(tmp_path, 1).path(1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o640}


def test_write_directory_refuses_what_exists(tmp_path: Path) -> None:
    write_directory(tmp_path / "model", plain_files(1))
    before = content(tmp_path)
    with pytest.raises(StorageError, match="model"):
        write_directory(tmp_path / "model", plain_files(2))
    assert content(tmp_path) == before


# Crashes


def test_sync_comes_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File by file, manifest last, directory, rename, parent: for new and for replaced ones."""
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(descriptor: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        events.append(("rename", Path(target).name))
        rename(source, target)

    store = store_with(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    store.save(2, plain_files(2))
    names = [*plain_files(2), MANIFEST]
    assert [event for event in events if not event[1].startswith(".")] == [
        *(("fsync", name) for name in names),
        ("rename", "step-00000002"),
        ("fsync", "checkpoints"),
    ]
    assert events[len(names)][0] == "fsync"  # the directory itself, still under its other name
    assert events[len(names)][1].startswith(".nmt-new-step-00000002")


@pytest.mark.parametrize("name", ["save", "save again", "best", "prune"])
def test_every_crash_point_is_recoverable(tmp_path: Path, name: str) -> None:
    """Stop before each operation on the disk in turn: the old or the new is there, whole."""

    def act(store: CheckpointStore) -> None:
        if name == "save":
            store.save(4, plain_files(4))
        elif name == "save again":
            store.save(3, plain_files(33))
        elif name == "best":
            store.put("best", plain_files(4))
        else:
            store.prune(keep_last=2)

    operation = 0
    while True:
        run_dir = tmp_path / str(operation)
        store_with(run_dir, 1, 2, 3).put("best", plain_files(3))
        with crash_at(operation) as done:
            act(CheckpointStore(run_dir))
        crashed = len(done) > operation
        best = settled(run_dir / "best")
        assert best is not None
        verify(best)
        store = CheckpointStore(run_dir)
        with store.lock():
            newest = store.newest()
            assert newest in (store.path(3), store.path(4))
            verify(run_dir / "best")
            assert store.steps()[-2:] in ([2, 3], [3, 4])
            for step in store.steps():
                verify(store.path(step))
        assert leftover_names(run_dir) + leftover_names(store.directory) == []
        if not crashed:
            break
        operation += 1
    assert operation >= 5


SAVE_FOR_EVER = """
import random, sys
from pathlib import Path
from nmt.checkpoint.store import CheckpointStore
from nmt.storage.directories import bytes_writer

store = CheckpointStore(Path(sys.argv[1]))
with store.lock():
    newest = store.newest()
    step = int(newest.name[5:]) if newest else 0
    while True:
        step += 1
        data = random.Random(step).randbytes(1 << 20)
        files = {"model.safetensors": bytes_writer(data), "state.json": bytes_writer(b"{}")}
        store.save(step, files)
        store.put("best", files)
        store.prune(keep_last=2)
        print(step, flush=True)
"""


def kill_while_saving(run_dir: Path, *, seconds: float) -> None:
    """Kill a process that saves without a pause, and look at what it leaves."""
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = int(process.stdout.readline())
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        reported = max([reported, *(int(line) for line in process.stdout if line.endswith("\n"))])
    assert process.returncode == -signal.SIGKILL
    store = CheckpointStore(run_dir)
    assert len(leftover_names(run_dir)) <= 2  # old and new `best`
    assert len(leftover_names(store.directory)) <= 1
    best = settled(run_dir / "best")
    assert best is not None
    verify(best)
    with store.lock():
        newest = store.newest()
        assert newest is not None
        assert int(newest.name[5:]) in (reported, reported + 1)
        verify(run_dir / "best")
    assert leftover_names(run_dir) + leftover_names(store.directory) == []


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_while_saving(tmp_path: Path, count: int) -> None:
    generator = random.Random(count)
    for _ in range(count):
        kill_while_saving(tmp_path, seconds=generator.uniform(0, 0.12))


# Disks that refuse


def refused(store: CheckpointStore, step: int, reason: str) -> bool:
    """Try to save; whether the disk refused, in which case the message is looked at."""
    try:
        store.save(step, plain_files(step))
    except StorageError as error:
        return str(error).endswith(f"step-{step:08d}: cannot be written ({reason})")
    return False


@pytest.mark.parametrize("number", DISK_ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", [3, 4], ids=["again", "new"])
def test_refused_operation(tmp_path: Path, number: int, step: int) -> None:
    """Each operation in turn fails: StorageError or success, and what was there stays."""
    with refuse_at(-1, number) as operations:
        store_with(tmp_path / "count", 3).save(step, plain_files(step))
    store = store_with(tmp_path / "run", 1, 2, 3)
    before = content(store.directory)
    errors = 0
    for operation in range(len(operations)):
        with refuse_at(operation, number):
            errors += refused(store, step, os.strerror(number))
        assert before.items() <= content(store.directory).items()
        with store.lock():
            assert store.newest() in (store.path(3), store.path(4))
            assert leftover_names(store.directory) == []
    assert errors >= 8


@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.slow)])
def test_disk_full_at_any_byte(tmp_path: Path, count: int) -> None:
    """Of plain files and of tensors: what was there before is untouched, and nothing is left."""
    generator = random.Random(count)
    size = 300_000
    tensors = {"model.safetensors": tensors_writer({"weights": torch.ones(size // 4)})}
    files = [plain_files(2, size=size), tensors | {"state.json": json_writer({"step": 2})}]
    store = CheckpointStore(tmp_path)
    store.save(1, plain_files(1, size=size))
    before = content(store.directory)
    for number in range(count):
        with (
            largest_file(generator.randrange(size)),
            pytest.raises(StorageError, match=r"step-00000002: cannot be written \(.*large"),
        ):
            store.save(2, files[number % 2])
        assert content(store.directory) == before
        assert leftover_names(store.directory) == []
    store.save(2, files[1])
    assert store.newest() == store.path(2)


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)

    with pytest.raises(ZeroDivisionError):
        store.save(
            2, {"state.json": bytes_writer(b"{}"), "model.safetensors": lambda path: 1 // 0 * path}
        )
    assert os.listdir(store.directory) == ["step-00000001"]


# Damage


def test_every_bit_of_the_manifest_counts() -> None:
    entries = {"a.json": FileEntry(12, "0f" * 32), "model.safetensors": FileEntry(0, "a" * 64)}
    data = encode_manifest(entries)
    assert parse_manifest(data, "here").files == entries
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError):
            parse_manifest(bytes(changed), "here")
    for size in range(len(data)):
        with pytest.raises(IntegrityError):
            parse_manifest(data[:size], "here")


@pytest.mark.parametrize(
    ("flips", "cuts", "pages"),
    [(100, 25, 25), pytest.param(1000, 200, 200, marks=pytest.mark.slow)],
)
def test_all_damage_is_detected(tmp_path: Path, flips: int, cuts: int, pages: int) -> None:
    """Over all files, by verification and by loading, with the file and the step in the message."""
    path = tmp_path / "step-00000007"
    write_directory(
        path,
        small_files(tmp_path, seed=7)
        | {"optimizer.safetensors": bytes_writer(bytes(range(1, 256)) * 80)},
    )
    files = sorted(path.iterdir())
    assert len(files) == 8
    generator = random.Random(flips)
    for number in range(flips + cuts + pages):
        file = files[number % len(files)]
        data = file.read_bytes()
        if number < flips:
            flip_bit(file, generator.randrange(8 * len(data)))
        elif number < flips + cuts:
            truncate(file, generator.randrange(len(data)))
        else:
            zero_page(file, generator.randrange(-(-len(data) // 4096)) * 4096, 4096)
        with pytest.raises(IntegrityError, match=f"step-00000007/{file.name}"):
            verify(path)
        if file.name != "optimizer.safetensors":  # which is not read to translate
            with pytest.raises(IntegrityError, match=f"step-00000007/{file.name}"):
                load_model(path)
        file.write_bytes(data)
    verify(path)


def test_missing_and_extra_files_are_damage(tmp_path: Path) -> None:
    path = store_with(tmp_path, 1).path(1)
    (path / "extra.py").write_text("print()")
    with pytest.raises(IntegrityError, match=r"'extra\.py' is not in MANIFEST\.json"):
        verify(path)
    (path / "extra.py").unlink()
    verify(path)
    (path / "state.json").unlink()
    with pytest.raises(IntegrityError, match=r"state\.json is missing"):
        verify(path)
    (path / MANIFEST).unlink()
    with pytest.raises(IntegrityError, match=r"MANIFEST\.json: missing"):
        verify(path)
