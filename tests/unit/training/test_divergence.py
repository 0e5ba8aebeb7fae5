"""The watch over the loss: no alarm for healthy curves, an alarm soon after a blow-up."""

import math
import random

import pytest
from torch import nn

from nmt.errors import DivergedError
from nmt.training.divergence import WINDOW, Watch
from nmt.training.state import TrainingState


def watch() -> Watch:
    return Watch(nn.Linear(1, 1), TrainingState(), precision="float32")  # type: ignore[arg-type]


def judge(watched: Watch, losses: list[float]) -> None:
    """Windows of 1,000 tokens each with these mean losses."""
    for loss in losses:
        watched.state.update += WINDOW
        watched.judge([WINDOW, 1000.0, 1000.0 * loss, 0.0, 0.0])


@pytest.mark.parametrize("seed", range(20))
def test_healthy_curves_raise_no_alarm(seed: int) -> None:
    """From ln V down to some floor, with noise and now and then a spike of one window."""
    generator = random.Random(seed)
    floor, speed = generator.uniform(1.2, 4.5), generator.uniform(5, 60)
    curve = [
        floor + (10.4 - floor) * math.exp(-number / speed) + generator.gauss(0, 0.1)
        for number in range(400)
    ]
    for number in range(50, 400, 70):
        curve[number] += 3.0
    judge(watch(), curve)


@pytest.mark.parametrize("low", [1.5, 3.0, 5.0])
@pytest.mark.parametrize("high", [9.0, 50.0, 1e6])
def test_a_blow_up_is_told_within_200_updates(low: float, high: float) -> None:
    watched = watch()
    judge(watched, [10.0, 8.0, low, low])
    blown_up_at = watched.state.update
    with pytest.raises(DivergedError, match="diverged"):
        judge(watched, [high] * 10)
    assert watched.state.update - blown_up_at <= 200


def test_windows_in_which_every_update_was_skipped_say_nothing() -> None:
    watched = watch()
    watched.judge([0.0] * 5)
    assert watched.state.lowest_loss is None
