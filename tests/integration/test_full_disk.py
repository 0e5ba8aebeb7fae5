"""A disk that is full, really: for a while it costs nothing, for ever it is exit 4 in one line."""

import errno
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.disks import before_call, empty, fill, limit_during, small_disk
from support.runs import fresh, newest, outcome, train_in_child

from nmt.checkpoint.store import CheckpointStore, verify
from nmt.training.result import read_result
from nmt.training.saving import Saver
from nmt.training.update import Updater


@pytest.fixture
def disk(config: Path) -> Iterator[Path]:
    """A small file system in the place of the run directory."""
    with small_disk(config.parent / "run", size="4m") as path:
        yield path


def assert_orderly(run_dir: Path, errors: str, code: int) -> None:
    """One line at the end that names a file, no traceback, good checkpoints, a true result."""
    assert "Traceback" not in errors
    store = CheckpointStore(run_dir)
    assert list(store.good_steps()) == list(reversed(store.steps()))
    if (run_dir / "best").exists():
        verify(run_dir / "best")
    if code:
        assert code == 4
        last = errors.rstrip("\n").split("\n")[-1]
        assert last.startswith("nmt-train: ")
        assert str(run_dir) in last
        assert read_result(run_dir).get("status") in ("failed", None)
    else:
        assert read_result(run_dir)["status"] == "finished"


def test_checkpoints_refused_for_a_while_lose_nothing(config: Path, reference: Path) -> None:
    assert train_in_child(config, partial(limit_during, Saver, "save", 2, 3)) == 0
    run_dir = config.parent / "run"
    assert newest(run_dir).name == "step-00000024"
    assert outcome(run_dir)["model"] == outcome(reference / "run")["model"]


def test_checkpoints_refused_three_times_are_exit_4(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_in_child(config, partial(limit_during, Saver, "save", 2, 99)) == 4
    errors = capfd.readouterr().err
    assert errors.count("training goes on") == 2
    assert_orderly(config.parent / "run", errors, 4)


def full_between(disk: Path, first: int, last: int, *, leave: int = 0) -> None:
    """Fill the disk before one update and empty it before another."""
    before_call(Updater, "step", first, partial(fill, disk, leave=leave))
    before_call(Updater, "step", last, partial(empty, disk))


def test_a_disk_that_is_full_for_a_while_leaves_no_trace(
    config: Path, reference: Path, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In that time `best`, a checkpoint, records and log lines were due."""
    assert train_in_child(config, partial(full_between, disk, 9, 14)) == 0
    errors = capfd.readouterr().err
    assert_orderly(disk, errors, 0)
    assert "No space left on device" in errors
    assert outcome(disk) == outcome(reference / "run") | {
        "checkpoints": outcome(disk)["checkpoints"]
    }


@pytest.mark.parametrize("leave", [0, 4096, 60_000])
def test_a_disk_that_stays_full_is_exit_4(
    config: Path, disk: Path, capfd: pytest.CaptureFixture[str], leave: int
) -> None:
    """The room that is left is none, that for a line of the log, or that for a `best`."""
    code = train_in_child(config, partial(full_between, disk, 9, 999, leave=leave))
    assert code == 4
    assert_orderly(disk, capfd.readouterr().err, code)
    empty(disk)
    assert train_in_child(config) == 0


def test_a_run_that_is_resumed_on_a_full_disk(
    config: Path, disk: Path, reference: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From its first line on nothing can be written."""
    assert train_in_child(config, partial(stop_at, 8)) == 143
    fill(disk)
    capfd.readouterr()
    assert train_in_child(config) == 4
    assert_orderly(disk, capfd.readouterr().err, 4)
    empty(disk)
    assert train_in_child(config) == 0
    assert outcome(disk) == outcome(reference / "run")


def stop_at(update: int) -> None:
    before_call(Updater, "step", update, lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_best_is_written_as_soon_as_there_is_room(config: Path, reference: Path) -> None:
    """Refused after update 24, the last validation, it is written with the last checkpoint."""
    sabotage = partial(limit_during, Saver, "put_best", 4, 4, limit=20_000)
    assert train_in_child(config, sabotage) == 0
    assert outcome(config.parent / "run") == outcome(reference / "run")


def test_a_best_that_was_lost_is_found_again(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused after update 12; the checkpoint of 15 believes in it, and then comes a kill."""

    def sabotage() -> None:
        # It is tried after the saves of 5, 10, 15, too.
        limit_during(Saver, "write_waiting_best", 4, 99, limit=20_000)
        before_call(Updater, "step", 17, lambda: os.kill(os.getpid(), signal.SIGKILL))

    assert train_in_child(config, sabotage) == -signal.SIGKILL
    assert train_in_child(config) == 0
    assert "the model of update 12 is missing" in capfd.readouterr().err
    assert outcome(config.parent / "run")["state"]["best_update"] == 24


def refuse_to_sync(number: int, first: int, last: int) -> None:
    """Let fsync fail with an error of the file system in some saves."""
    original_save, original_sync = Saver.save, os.fsync
    saves = 0

    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    def save(*arguments: Any, **named: Any) -> None:
        nonlocal saves
        saves += 1
        os.fsync = refuse if first <= saves <= last else original_sync
        try:
            original_save(*arguments, **named)
        finally:
            os.fsync = original_sync

    Saver.save = save  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_other_errors_of_the_disk_are_forgiven_alike(
    config: Path, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    assert train_in_child(config, partial(refuse_to_sync, number, 2, 3)) == 0
    errors = capfd.readouterr().err
    assert os.strerror(number) in errors
    assert_orderly(config.parent / "run", errors, 0)


# ---------------------------------------------------------------- the whole count


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_full_disk_at_fifty_places(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Full from a random update on, with random room left; then with room again to the end."""
    generator = random.Random(13)
    codes: dict[int, int] = {}
    for attempt in range(50):
        directory = tmp_path / str(attempt)
        config = fresh(reference, directory)
        with small_disk(directory / "run", size="4m") as disk:
            first, leave = generator.randint(1, 24), int(10 ** generator.uniform(0, 5.5))
            code = train_in_child(config, partial(full_between, disk, first, 999, leave=leave))
            errors = capfd.readouterr().err
            codes[code] = codes.get(code, 0) + 1
            assert_orderly(disk, errors, code)
            empty(disk)
            assert train_in_child(config) == 0
            assert outcome(disk)["model"] == outcome(reference / "run")["model"], (first, leave)
            assert outcome(disk)["records"] == outcome(reference / "run")["records"]
    print(codes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_files_cut_at_fifty_places(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No file can grow beyond a random size, from a random save on.

    The size is larger than what the run has printed, since that is captured in a file, too.
    """
    generator = random.Random(14)
    for attempt in range(50):
        directory = tmp_path / str(attempt)
        config = fresh(reference, directory)
        first, limit = generator.randint(1, 4), generator.randint(20_000, 75_000)
        code = train_in_child(config, partial(limit_during, Saver, "save", first, 99, limit=limit))
        assert_orderly(directory / "run", capfd.readouterr().err, code)
        assert train_in_child(config) == 0
        assert outcome(directory / "run")["model"] == outcome(reference / "run")["model"]
