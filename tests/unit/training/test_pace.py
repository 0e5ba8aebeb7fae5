"""The time that a run still takes."""

from pathlib import Path

import pytest
from support.small_models import small_config

from nmt.config.config import Config, TrainConfig, ValidateConfig
from nmt.training.pace import SILENCE, Pace, duration


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def config(tmp_path: Path) -> Config:
    small = small_config(tmp_path)
    train, validate = TrainConfig(max_updates=2000), ValidateConfig(every=500)
    return Config(small.run_dir, small.data, train=train, validate=validate)


def test_validations_do_not_distort_the_estimate(tmp_path: Path) -> None:
    clock = Clock()
    pace = Pace(config(tmp_path), update=0, clock=clock)
    assert pace.seconds_left() is None
    clock.now += 250 * 0.1
    pace.advance(250)
    assert pace.seconds_left() == pytest.approx(175.0)
    assert pace.describe() == "update 250 of 2,000, 3 min left"
    clock.now += 250 * 0.1
    pace.advance(500)
    clock.now += 60
    pace.validated(60)
    # 1,500 updates of a tenth of a second, and the validations after 1,000, 1,500 and 2,000.
    assert pace.seconds_left() == pytest.approx(150.0 + 3 * 60)


def test_a_resumed_run_counts_its_own_updates(tmp_path: Path) -> None:
    clock = Clock()
    pace = Pace(config(tmp_path), update=1900, clock=clock)
    clock.now += 5
    pace.advance(1950)
    assert pace.seconds_left() == pytest.approx(5.0)


def test_a_line_at_once_and_after_a_silence(tmp_path: Path) -> None:
    clock = Clock()
    pace = Pace(config(tmp_path), update=0, clock=clock)
    pace.advance(1)
    assert pace.line_is_due()
    pace.describe()
    clock.now += SILENCE - 1
    assert not pace.line_is_due()
    clock.now += 1
    assert pace.line_is_due()


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (4.4, 89, 100, 3600, 2 * 3600 + 600, 80 * 3600)]
    assert shown == ["4 s", "89 s", "2 min", "60 min", "2 h 10 min", "3 days 8 h"]
