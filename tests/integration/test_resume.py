"""A run that was killed and started again is the run that never was: bit for bit."""

import os
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.runs import die_at_call, outcome, tiny_config, train_in_child, write_run

from nmt.training.saving import Saver
from nmt.training.trainer import Trainer
from nmt.training.update import Updater
from nmt.training.validation import Validator

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished, undisturbed run."""
    directory = tmp_path_factory.mktemp("reference")
    assert train_in_child(write_run(directory)) == 0
    return directory


def fresh(reference: Path, directory: Path, config: dict[str, Any] | None = None) -> Path:
    """The config of a new run on the same prepared data."""
    for name in ("data", "prepared"):
        shutil.copytree(reference / name, directory / name)
    return write_run(directory, config)


@pytest.mark.parametrize("micro_step", range(13, 21))
def test_kill_at_each_micro_step(reference: Path, tmp_path: Path, micro_step: int) -> None:
    """Eight points, in every part of the accumulation window and across a checkpoint."""
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Updater, "backward", micro_step)) == KILLED
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


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
