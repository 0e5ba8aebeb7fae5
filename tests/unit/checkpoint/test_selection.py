"""Which model of a run directory is used, and which checkpoints of it are averaged."""

import logging
from pathlib import Path
from typing import Any

import pytest
from support.small_models import small_codec, small_config, small_transformer

from nmt.checkpoint.cadence import close_steps
from nmt.checkpoint.model_directory import model_files
from nmt.checkpoint.selection import find_model
from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import TrainConfig
from nmt.config.loading import dump_config, parse_config
from nmt.storage.directories import json_writer, write_directory


def write(path: Path, state: dict[str, Any], settings: str = "") -> None:
    """A model directory with this state.json; `settings` adds sections to its config."""
    plain = small_config(path.parent)
    codec = small_codec(plain)
    weights = small_transformer(plain, codec, seed=1).state_dict()
    text = dump_config(plain)
    sections = [line.split(":")[0] for line in settings.splitlines() if line[:1].strip()]
    for section in sections:
        start = text.index(f"\n{section}:") + 1
        rest = text[start:].split("\n")
        end = next((i for i, line in enumerate(rest[1:], 1) if line[:1].strip()), len(rest))
        text = text[:start] + "\n".join(rest[end:])
    config = parse_config(text + settings, name="test", directory=path.parent)
    write_directory(path, {**model_files(config, codec, weights), "state.json": json_writer(state)})


def best(score: float | None, data: str = "data") -> dict[str, Any]:
    return {"step": 2, "training": {"best_score": score}, "data_fingerprint": data}


def average(score: float | None, data: str = "data") -> dict[str, Any]:
    state: dict[str, Any] = {"step": 2, "average_of": [], "data_fingerprint": data}
    return state if score is None else {**state, "validation_score": score}


@pytest.mark.parametrize(
    ("of_average", "of_best", "settings", "chosen"),
    [
        (14.4, 16.4, "", "best"),
        (17.4, 16.4, "", "average"),
        (16.4, 16.4, "", "average"),
        (2.5, 3.5, "validate: {metric: loss}\n", "average"),
        (4.5, 3.5, "validate: {metric: loss}\n", "best"),
        (None, 16.4, "", "average"),
        (14.4, None, "", "average"),
    ],
)
def test_the_better_one_is_used(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    of_average: float | None,
    of_best: float | None,
    settings: str,
    chosen: str,
) -> None:
    write(tmp_path / "average", average(of_average), settings)
    write(tmp_path / "best", best(of_best), settings)
    caplog.set_level(logging.INFO, "nmt")
    assert find_model(tmp_path) == tmp_path / chosen
    if of_average is not None and of_best is not None:
        assert f"{of_average:.2f}" in caplog.text
        assert f"{of_best:.2f}" in caplog.text


def test_scores_on_other_data_or_of_another_metric_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path / "a" / "average", average(14.4))
    write(tmp_path / "a" / "best", best(16.4, data="other"))
    write(tmp_path / "b" / "average", average(14.4))
    write(tmp_path / "b" / "best", best(60.0), "validate: {metric: chrf}\n")
    for run in (tmp_path / "a", tmp_path / "b"):
        assert find_model(run) == run / "average"


@pytest.mark.parametrize(
    ("steps", "max_updates", "expected"),
    [
        ((1000, 2000), 2000, [2000]),
        ((1800, 1850, 1900, 1950, 2000), 2000, [2000, 1950, 1900, 1850, 1800]),
        ((500, 1000, 1900, 2000), 2000, [2000, 1900]),
        ((1200, 1600, 2000), 2000, [2000, 1600, 1200]),
        ((1600, 1700, 1800, 1900, 2000), 2000, [2000, 1900, 1800]),
        ((1000, 2000), 100_000, [2000]),
        ((2000, 3000, 4000, 5000, 6000), 100_000, [6000, 5000, 4000, 3000, 2000]),
        ((5700, 5800, 5900, 6000), 100_000, [6000, 5900, 5800, 5700]),
    ],
)
def test_checkpoints_that_lie_close_together(
    tmp_path: Path, steps: tuple[int, ...], max_updates: int, expected: list[int]
) -> None:
    store = CheckpointStore(tmp_path)
    for step in steps:
        state = {"step": step, "cause": "schedule"}
        settings = f"train: {{max_updates: {max_updates}, schedule: {{warmup: 10}}}}\n"
        write(store.path(step), state, settings)
    assert close_steps(store, 5) == expected


def test_a_short_run_saves_often_enough_to_be_averaged() -> None:
    assert TrainConfig(max_updates=2000).save_interval == 40
    assert TrainConfig(max_updates=100).save_interval == 20
    assert TrainConfig().save_interval == 1000
    assert TrainConfig(max_updates=2000, save_every=1000).save_interval == 1000
