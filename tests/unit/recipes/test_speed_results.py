"""The tables of the comparison with other toolkits are right for given measurements."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "recipes" / "speed"))

from results import best_peer, markdown, rates, ratio

FIRST_LINE = (
    "2026-01-02, nmt at 12ab; rounds: 3, by the time on the wall; "
    "reference matrix product: 100 (50 to 100) GFLOP/s"
)


def training_part() -> dict[str, object]:
    """Three rounds; the machine is half as quick in the second."""

    def one(seconds: float, *, peer: int, other: int) -> dict[str, object]:
        return {
            "matrix_rate": 100e9 / seconds,
            "measured": {
                "nmt softmax": {"tokens": 2000, "seconds": seconds, "cpu_seconds": 4.0},
                "nmt rela-g": {"tokens": 1000, "seconds": seconds, "cpu_seconds": 4.0},
                "peer": {"tokens": peer, "seconds": seconds, "cpu_seconds": 4.0},
                "other": {"tokens": other, "seconds": 2 * seconds, "cpu_seconds": 4.0},
            },
        }

    rounds = [
        one(1.0, peer=1000, other=1000),
        one(2.0, peer=1250, other=1000),
        one(1.0, peer=800, other=1000),
    ]
    return {
        "title": "Training",
        "kind": "train",
        "date": "2026-01-02",
        "threads": 2,
        "clock": "wall",
        "version": "12ab",
        "rounds": rounds,
    }


def test_ratios_are_taken_within_rounds() -> None:
    found = ratio(training_part(), "nmt softmax", "peer")
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 1.6, 2.5))
    assert ratio(training_part(), "nmt rela-g", "other").median == pytest.approx(2.0)


def test_time_of_processors_is_shared_by_threads() -> None:
    part = {**training_part(), "clock": "cpu"}
    assert rates(part, "nmt softmax") == [1000.0, 1000.0, 1000.0]
    assert ratio(part, "nmt softmax", "nmt rela-g").high == pytest.approx(2.0)
    assert "by the time of the processors" in markdown({"machine": "x", "parts": {"a": part}})


def test_best_peer_is_the_quickest_of_those_built_on_torch() -> None:
    part = training_part()
    assert best_peer(part) == "peer"
    for one in part["rounds"]:  # type: ignore[attr-defined]
        one["measured"]["ctranslate2 float32"] = {"tokens": 10**6, "seconds": 1.0}
        one["measured"]["other"]["tokens"] *= 10
    assert best_peer(part) == "other"


def test_tables() -> None:
    decoding = {
        "title": "Decoding",
        "kind": "decode",
        "date": "2026-01-02",
        "threads": 1,
        "clock": "wall",
        "version": "12ab",
        "rounds": [
            {
                "matrix_rate": 50e9,
                "measured": {
                    "nmt softmax": {"sentences": 64, "seconds": 0.5},
                    "peer": {"sentences": 64, "seconds": 2.0},
                },
            }
        ],
        "agreement": {"nmt softmax": 1.0, "peer": None},
    }
    results = {"machine": "two cores", "parts": {"a": training_part(), "b": decoding}}
    lines = markdown(results).split("\n")
    assert "Machine: two cores." in lines
    assert FIRST_LINE in lines
    assert "| nmt softmax | 2,000 (1,000 to 2,000) |" in lines
    assert "| nmt softmax | 2.00 (1.60 to 2.50) | 4.00 (4.00 to 4.00) |" in lines
    assert "| ours over theirs | peer | other |" in lines
    assert "| nmt softmax | 128 (128 to 128) | 100 % |" in lines
    assert "| peer | 32.0 (32.0 to 32.0) | |" in lines
    assert "| nmt softmax | 4.00 (4.00 to 4.00) |" in lines


def test_a_contender_that_missed_a_round_is_left_out() -> None:
    part = training_part()
    del part["rounds"][1]["measured"]["peer"]  # type: ignore[index]
    assert best_peer(part) == "other"
    assert "peer |" not in markdown({"machine": "x", "parts": {"a": part}})
