"""Learning rates against the closed forms and their corner points."""

from dataclasses import replace

import pytest

from nmt.config.config import ScheduleConfig, TrainConfig
from nmt.training.schedule import learning_rate, low_peak


def rate(kind: str, update: int, *, warmup: int = 4000, factor: float = 1.0) -> float:
    schedule = ScheduleConfig(kind=kind, warmup=warmup)  # type: ignore[arg-type]
    config = TrainConfig(learning_rate=factor, schedule=schedule)
    return learning_rate(config, dim=512, update=update)


def test_noam_rises_to_the_warmup_and_falls_with_the_root() -> None:
    peak = 512**-0.5 * 4000**-0.5
    assert rate("noam", 4000) == pytest.approx(peak)
    assert rate("noam", 1) == pytest.approx(peak / 4000)
    assert rate("noam", 16000) == pytest.approx(peak / 2)
    assert rate("noam", 100, factor=2.0) == pytest.approx(2 * rate("noam", 100))


def test_inverse_sqrt_peaks_at_the_given_rate() -> None:
    assert rate("inverse_sqrt", 4000, factor=5e-4) == pytest.approx(5e-4)
    assert rate("inverse_sqrt", 1000, factor=5e-4) == pytest.approx(1.25e-4)
    assert rate("inverse_sqrt", 16000, factor=5e-4) == pytest.approx(2.5e-4)


def test_constant_stays_after_the_warmup() -> None:
    assert rate("constant", 2000, factor=1e-3) == pytest.approx(5e-4)
    assert rate("constant", 4000, factor=1e-3) == rate("constant", 10**6, factor=1e-3) == 1e-3
    assert rate("constant", 1, warmup=0, factor=1e-3) == 1e-3


def test_a_rate_that_noam_would_take_for_a_factor_is_named() -> None:
    config = TrainConfig(learning_rate=5e-4, schedule=ScheduleConfig(kind="noam", warmup=4000))
    warning = low_peak(config, dim=512)
    assert warning is not None
    assert "makes the highest rate 3.5e-07; for a rate of 0.0005 set" in warning
    assert low_peak(replace(config, learning_rate=1.0), dim=512) is None
    inverse = ScheduleConfig(kind="inverse_sqrt", warmup=4000)
    assert low_peak(replace(config, schedule=inverse), dim=512) is None


@pytest.mark.parametrize("kind", ["noam", "inverse_sqrt", "constant"])
def test_no_jump_at_the_end_of_the_warmup(kind: str) -> None:
    assert rate(kind, 4001) == pytest.approx(rate(kind, 4000), rel=1e-3)
