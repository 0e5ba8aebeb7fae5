"""The state of a run survives JSON, and dropout seeds are a function of where a pass stands."""

import json

import pytest

from nmt.errors import IntegrityError
from nmt.training.state import TrainingState, dropout_seed


def test_round_trip_through_json_is_exact() -> None:
    state = TrainingState(update=7, epoch=1, position=12, best_score=0.1 + 0.2)
    state.log_sums = [3.0, 1e17, 1 / 3, 2 / 3, 1e-300]
    assert TrainingState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_a_missing_field_takes_its_default() -> None:
    """So a run of a version without the field stays resumable."""
    values = TrainingState(update=7, epoch=1, position=12, skipped_updates=3).to_dict()
    values.pop("skipped_updates")
    assert TrainingState.from_dict(values) == TrainingState(update=7, epoch=1, position=12)


def test_an_unknown_field_is_named_as_that_of_a_later_version() -> None:
    values = TrainingState().to_dict() | {"colour": 1}
    with pytest.raises(IntegrityError, match=r"later version.*colour"):
        TrainingState.from_dict(values)


def test_what_is_no_state_of_a_run_is_refused() -> None:
    with pytest.raises(IntegrityError, match="epoch, position"):
        TrainingState.from_dict({"update": 3})


def test_dropout_seeds_differ_and_do_not_depend_on_the_machine() -> None:
    seeds = {dropout_seed(s, u, p) for s in range(3) for u in range(50) for p in range(8)}
    assert len(seeds) == 3 * 50 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert dropout_seed(1, 1, 0) == 2553429759812580548
