"""The watch over the loss: no alarm for healthy runs, one soon after a blow-up or a standstill.

curves.json holds mean losses a token of every ten updates of real runs: small Transformers of many
attention kinds on Multi30k (1,000 BPE merges) and on reversed sequences of words. In those that
diverge the learning rate rises, or jumps, until they do.
"""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from encoded_corpora import write_corpus
from torch import nn

from nmt.errors import DivergedError
from nmt.training.divergence import LOSS_WINDOW, LossBounds, Watch, loss_bounds
from nmt.training.state import TrainingState

UPDATES_A_POINT = 10
CURVES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "curves.json").read_bytes())
BOUNDS = {name: LossBounds(**bounds) for name, bounds in CURVES["bounds"].items()}


def watch(bounds: LossBounds = BOUNDS["multi30k"], *, warmup: int = 100) -> Watch:
    return Watch(
        nn.Linear(1, 1),  # type: ignore[arg-type]
        TrainingState(),
        warmup=warmup,
        loss_bounds=lambda: bounds,
    )


def judge(watched: Watch, losses: list[float]) -> None:
    """Windows of 1,000 tokens each with these mean losses."""
    for loss in losses:
        watched.state.update += LOSS_WINDOW
        watched.judge([LOSS_WINDOW, 1000.0, 1000.0 * loss, 0.0, 0.0])


def windows(points: list[float]) -> list[float]:
    size = LOSS_WINDOW // UPDATES_A_POINT
    return [sum(points[i : i + size]) / size for i in range(0, len(points) - size + 1, size)]


@pytest.mark.parametrize("name", CURVES["healthy"])
def test_healthy_runs_raise_no_alarm(name: str) -> None:
    curve = CURVES["healthy"][name]
    judge(watch(BOUNDS[curve["task"]]), windows(curve["losses"]))


@pytest.mark.parametrize("name", CURVES["diverging"])
def test_a_blow_up_is_told_within_200_updates(name: str) -> None:
    curve = CURVES["diverging"][name]
    watched = watch(BOUNDS[curve["task"]])
    with pytest.raises(DivergedError, match="diverged"):
        judge(watched, windows(curve["losses"]))
    assert 0 < watched.state.update - curve["blow_up"] <= 200


def test_a_spike_of_one_window_is_forgiven() -> None:
    judge(watch(), [6.5, 5.0, 4.0, 9.0, 4.0, 3.5, 30.0, 3.4])


@pytest.mark.parametrize("border", [2 * LOSS_WINDOW, 2 * LOSS_WINDOW + 20])
def test_other_text_may_have_a_higher_loss(border: int) -> None:
    """An easy corpus and then a hard one, of which the model knows nothing at first."""
    losses = [1.9, 1.9, 2.8 if border % LOSS_WINDOW else 3.6, 3.6, 3.6, 3.5]
    with pytest.raises(DivergedError):
        judge(watch(), losses)
    watched = watch()
    watched.borders = [0, border]
    judge(watched, losses)
    assert watched.state.lowest_loss == 3.5
    with pytest.raises(DivergedError):
        judge(watched, [9.0, 9.0])


def test_what_was_learned_from_other_text_counts() -> None:
    watched = watch()
    border = watched.warn_every - 2 * LOSS_WINDOW
    watched.borders = [0, border]
    judge(watched, [2.8] * (border // LOSS_WINDOW))
    judge(watched, [6.4, 6.0])
    watched.conclude()


def test_a_fall_back_to_word_frequencies_is_told() -> None:
    """Above them again after 5.0: not far, as numbers go, but all that was learned is lost."""
    bounds = LossBounds(perfect=1.3, frequency=7.0)
    judge(watch(bounds), [8.0, 6.0, 5.0, 6.9, 6.9, 6.9])
    with pytest.raises(DivergedError):
        judge(watch(bounds), [8.0, 6.0, 5.0, 7.1, 7.1])


def test_a_run_that_learns_nothing_is_warned_and_ended_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Flat at the loss of word frequencies, as ReLU without a norm in many layers is."""
    bounds = LossBounds(perfect=1.22, frequency=6.66)
    watched = watch(bounds)
    flat = [7.6, 6.8, 6.5] + [6.45] * 1000
    with (
        caplog.at_level(logging.WARNING, logger="nmt"),
        pytest.raises(DivergedError, match="10000 updates"),
    ):
        judge(watched, flat)
    assert watched.state.update == 10_000
    assert len(caplog.records) == 4
    assert "nothing is learned" in caplog.text


def test_a_long_warm_up_is_waited_for() -> None:
    """Ten times over; and a run that has learned in the meantime goes on."""
    bounds = LossBounds(perfect=1.3, frequency=7.0)
    judge(watch(bounds, warmup=4000), [7.2] * (39_950 // LOSS_WINDOW))
    judge(watch(bounds, warmup=4000), [7.2] * (39_000 // LOSS_WINDOW) + [5.0] * 100)


def test_a_run_that_ends_without_having_learned_is_told() -> None:
    """Unless it was too short to tell, or its warm-up was."""
    bounds = LossBounds(perfect=1.22, frequency=6.66)
    flat = [7.6, 6.8, 6.5] + [6.45] * 1000
    for updates, warmup, fails in ((1950, 100, False), (2000, 100, True), (2600, 2000, False)):
        watched = watch(bounds, warmup=warmup)
        judge(watched, flat[: updates // LOSS_WINDOW])
        if fails:
            with pytest.raises(DivergedError, match="counting words"):
                watched.conclude()
        else:
            watched.conclude()
    learned = watch(bounds)
    judge(learned, [7.6, 6.8, 6.5, *[5.0] * 60])
    learned.conclude()
    watch(bounds).conclude()  # no update at all


def test_windows_in_which_every_update_was_skipped_say_nothing() -> None:
    watched = watch()
    watched.judge([0.0] * 5)
    assert watched.state.lowest_loss is None


def test_the_bounds_of_a_corpus(tmp_path: Path) -> None:
    """Tokens 2, 4 and 5 are half, a quarter and a quarter of all: an entropy of 1.5 bits."""
    corpus = write_corpus(tmp_path, [[4, 2], [4, 2]], [[4, 2], [5, 2]])
    plain = loss_bounds(corpus, vocabulary_size=6, smoothing=0.0)
    assert plain.frequency == pytest.approx(1.5 * math.log(2))
    assert plain.perfect == 0.0
    smoothed = loss_bounds(corpus, vocabulary_size=6, smoothing=0.6)
    wanted = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]  # 0.4 times the frequencies, and a tenth for each
    assert smoothed.frequency == pytest.approx(-sum(p * math.log(p) for p in wanted))
    assert smoothed.perfect == pytest.approx(-(0.5 * math.log(0.5) + 0.5 * math.log(0.1)))
