"""A run that was killed and started again is the run that never was: bit for bit."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.runs import die_at_call, fresh, newest, outcome, tiny_config, train_in_child, write_run

from nmt.training.result import read_result
from nmt.training.saving import Saver
from nmt.training.trainer import Trainer
from nmt.training.update import Updater
from nmt.training.validation import Validator

KILLED = -signal.SIGKILL


@pytest.mark.parametrize("micro_step", range(13, 21))
def test_kill_at_each_micro_step(reference: Path, tmp_path: Path, micro_step: int) -> None:
    """Eight points, in every part of the accumulation window and across a checkpoint."""
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Updater, "backward", micro_step)) == KILLED
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def test_kill_in_bfloat16(reference: Path, tmp_path: Path) -> None:
    """In the middle of an accumulation window; the copies are no part of checkpoints."""
    directories = tmp_path / "whole", tmp_path / "killed"
    for directory in directories:
        config = fresh(reference, directory, tiny_config(directory, precision="bfloat16"))
        if directory.name == "killed":
            sabotage = partial(die_at_call, Updater, "backward", 18)
            assert train_in_child(config, sabotage) == KILLED
        assert train_in_child(config) == 0
    whole, killed = (outcome(directory / "run") for directory in directories)
    assert killed == whole
    assert whole != outcome(reference / "run")


@pytest.mark.parametrize(
    ("owner", "name", "count"),
    [
        (Updater, "step", 1),  # the first update
        (Updater, "step", 24),  # the last
        (Validator, "losses", 2),  # in validation
        (Saver, "prune", 2),  # between save and prune
        (Trainer, "save", 3),
    ],
)
def test_kill_in_odd_places(
    reference: Path, tmp_path: Path, owner: type, name: str, count: int
) -> None:
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, owner, name, count)) == KILLED
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def test_kill_while_saving(reference: Path, tmp_path: Path) -> None:
    config = fresh(reference, tmp_path)
    sabotage = partial(die_at_call, os, "fsync", 22)
    assert train_in_child(config, sabotage) == KILLED
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def test_many_kills_in_one_run(reference: Path, tmp_path: Path) -> None:
    config = fresh(reference, tmp_path)
    generator = random.Random(11)
    kills = 0
    while kills < 5:
        count = generator.randint(11, 16)
        code = train_in_child(config, partial(die_at_call, Updater, "backward", count))
        if code == 0:
            break
        assert code == KILLED
        kills += 1
    assert kills >= 2
    train_in_child(config)
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def kill_after_every_save(reference: Path, directory: Path, *, kills: int) -> None:
    """A kill between each save and its pruning; the number of checkpoints never grows."""
    settings = tiny_config(directory, save_every=1, max_updates=max(kills + 2, 24))
    config = fresh(reference, directory, settings)
    checkpoints = directory / "run" / "checkpoints"
    for done in range(1, kills + 1):
        # The first call is the one at the start, which makes good what the kill before prevented.
        assert train_in_child(config, partial(die_at_call, Saver, "prune", 2)) == KILLED
        assert len(list(checkpoints.iterdir())) == min(done, 4)
    assert len(list((directory / "run" / "tensorboard").iterdir())) == 1
    assert train_in_child(config) == 0
    assert len(list(checkpoints.iterdir())) == 3


def test_kills_between_save_and_prune_leave_no_checkpoints_behind(
    reference: Path, tmp_path: Path
) -> None:
    kill_after_every_save(reference, tmp_path / "killed", kills=6)
    whole = fresh(reference, tmp_path / "whole", tiny_config(tmp_path / "whole", save_every=1))
    assert train_in_child(whole) == 0
    assert outcome(tmp_path / "killed" / "run") == outcome(tmp_path / "whole" / "run")


def test_a_finished_run_is_pruned_when_it_is_started_again(reference: Path, tmp_path: Path) -> None:
    """The kill came after the very last save."""
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Saver, "prune", 6)) == KILLED
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 4
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills_in_one_run(reference: Path, tmp_path: Path) -> None:
    kill_after_every_save(reference, tmp_path / "killed", kills=50)
    settings = tiny_config(tmp_path / "whole", save_every=1, max_updates=52)
    assert train_in_child(fresh(reference, tmp_path / "whole", settings)) == 0
    assert outcome(tmp_path / "killed" / "run") == outcome(tmp_path / "whole" / "run")


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_prefetch_may_change_at_resume(reference: Path, tmp_path: Path, prefetch: int) -> None:
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Updater, "step", 13)) == KILLED
    changed = write_run(tmp_path, tiny_config(tmp_path, prefetch=prefetch))
    assert train_in_child(changed) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 0)]
)
def test_signals_save_the_current_update(
    reference: Path, tmp_path: Path, number: int, code: int
) -> None:
    config = fresh(reference, tmp_path)
    sabotage = partial(die_at_call, Updater, "step", 8, number=number)
    assert train_in_child(config, sabotage) == code
    assert (tmp_path / "run" / "checkpoints" / "step-00000008").is_dir()
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def test_a_finished_run_is_left_alone(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "copy")
    config = write_run(tmp_path / "copy")
    config.write_text(
        config.read_text(encoding="utf-8").replace(str(reference), str(tmp_path / "copy")),
        encoding="utf-8",
    )
    before = contents(tmp_path / "copy" / "run")
    assert train_in_child(config) == 0
    assert contents(tmp_path / "copy" / "run") == before


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_random_kills(reference: Path, tmp_path: Path) -> None:
    generator = random.Random(12)
    for attempt in range(100):
        directory = tmp_path / str(attempt)
        config = fresh(reference, directory)
        owner, name, most = generator.choice(
            [(Updater, "backward", 46), (Updater, "step", 24), (os, "fsync", 90)]
        )
        count = generator.randint(1, most)
        train_in_child(config, partial(die_at_call, owner, name, count))
        assert train_in_child(config) == 0
        assert outcome(directory / "run") == outcome(reference / "run"), (name, count)
        shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("before", [0, 1, 2, 4])
@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_any_prefetch_before_and_after_a_kill(
    reference: Path, tmp_path: Path, before: int, after: int
) -> None:
    config = fresh(reference, tmp_path, tiny_config(tmp_path, prefetch=before))
    assert train_in_child(config, partial(die_at_call, Updater, "step", 13)) == KILLED
    changed = write_run(tmp_path, tiny_config(tmp_path, prefetch=after))
    assert train_in_child(changed) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def signal_at_random_moments(
    reference: Path, directory: Path, *, count: int, seconds: float
) -> dict[str, int]:
    """Signals at random times after the start of real processes; what they were found doing."""
    generator = random.Random(15)
    found: dict[str, int] = {}
    for attempt in range(count):
        own = directory / str(attempt)
        config = fresh(reference, own)
        number, code = generator.choice(
            [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 0)]
        )
        command = [sys.executable, "-m", "nmt.cli.train", "--config", str(config)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_for_handler(process, signal.SIGUSR1)
        time.sleep(generator.uniform(0, seconds))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors, errors
        status = read_result(own / "run").get("status")
        found[str(status)] = found.get(str(status), 0) + 1
        if status == "stopped":
            stopped = f"stopped by a signal at update {read_result(own / 'run')['update']};"
            assert stopped in errors
            assert int(newest(own / "run").name[-8:]) == read_result(own / "run")["update"]
        assert process.returncode == (0 if status == "finished" else code), (status, errors)
        assert train_in_child(config) == 0
        assert outcome(own / "run") == outcome(reference / "run")
        shutil.rmtree(own)
    return found


def wait_for_handler(process: subprocess.Popen[str], number: int) -> None:
    """Wait until a process has a handler for a signal, which takes a fraction of a second."""
    caught = 0
    while not caught >> (number - 1) & 1:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        time.sleep(0.002)


def test_signals_at_random_moments(reference: Path, tmp_path: Path) -> None:
    signal_at_random_moments(reference, tmp_path, count=2, seconds=6.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_signals_at_random_moments(reference: Path, tmp_path: Path) -> None:
    found = signal_at_random_moments(reference, tmp_path, count=50, seconds=8.0)
    print(found)  # None: before the loop
    assert found["stopped"] >= 5
