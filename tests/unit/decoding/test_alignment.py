"""Word alignments from hand-written attention."""

import json
from pathlib import Path

import pytest
import torch

from nmt.decoding.alignment import AlignmentHead, recommended_head
from nmt.decoding.observation import link_words
from nmt.errors import UserError

# One layer, two heads, three target positions (two pieces and the end), three source positions.
WEIGHTS = torch.tensor(
    [
        [
            [[0.1, 0.8, 0.1], [0.9, 0.1, 0.0], [0.0, 0.3, 0.7]],
            [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
        ]
    ]
)


def test_each_target_word_is_linked_to_its_strongest_source_word() -> None:
    predicting = AlignmentHead(layer=0, head=0, shifted=False)
    assert link_words(WEIGHTS, predicting, source_words=[0, 1], target_words=[0, 1]) == (
        (1, 0),
        (0, 1),
    )


def test_shifted_looks_at_the_step_that_reads_the_word() -> None:
    reading = AlignmentHead(layer=0, head=0, shifted=True)
    assert link_words(WEIGHTS, reading, source_words=[0, 1], target_words=[0, 1]) == (
        (0, 0),
        (1, 1),
    )


def test_a_word_that_attends_to_nothing_but_the_end_has_no_link() -> None:
    head = AlignmentHead(layer=0, head=1, shifted=False)
    assert link_words(WEIGHTS, head, source_words=[0, 1], target_words=[0, 1]) == ()


def test_weights_are_summed_over_source_pieces_and_averaged_over_target_pieces() -> None:
    weights = torch.tensor([[[[0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0] * 4]]])
    head = AlignmentHead(layer=0, head=0, shifted=False)
    assert link_words(weights, head, source_words=[0, 0, 1], target_words=[0, 1]) == (
        (0, 0),
        (1, 1),
    )
    # One target word: 0.3 of word 0 against 0.7 of word 1 on average.
    assert link_words(weights, head, source_words=[0, 0, 1], target_words=[0, 0]) == ((1, 0),)


def test_the_mean_of_all_heads_of_the_middle_layer_is_the_default() -> None:
    weights = torch.zeros(3, 2, 3, 3)
    weights[:, :, :, 0] = 0.5
    weights[1, 0, 1, 1] = 2.0  # layer 1, the step that reads the first word
    assert link_words(weights, AlignmentHead(), source_words=[0, 1], target_words=[0, 1]) == (
        (1, 0),
        (0, 1),
    )


def test_no_words_no_links() -> None:
    assert link_words(WEIGHTS, AlignmentHead(), source_words=[], target_words=[0]) == ()
    assert link_words(WEIGHTS, AlignmentHead(), source_words=[0], target_words=[]) == ()


def test_a_model_directory_may_recommend_a_head(tmp_path: Path) -> None:
    assert recommended_head(tmp_path) == AlignmentHead()
    (tmp_path / "state.json").write_text(json.dumps({"step": 3}))
    assert recommended_head(tmp_path) == AlignmentHead()
    head = {"layer": 1, "head": 3, "shifted": False}
    (tmp_path / "state.json").write_text(json.dumps({"alignment_head": head}))
    assert recommended_head(tmp_path) == AlignmentHead(1, 3, shifted=False)


@pytest.mark.parametrize(
    "head",
    [
        3,
        "0-0",
        [0, 1],
        True,
        {"layer": "0", "head": 1},
        {"layer": 0, "head": 1.5},
        {"layer": True, "head": 1},
        {"layer": [0], "head": {}},
        {"layer": 0, "head": 1, "shifted": "no"},
        {"layer": 0, "head": 1, "other": 2},
    ],
)
def test_a_recommendation_of_another_type_is_an_error(tmp_path: Path, head: object) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"alignment_head": head}))
    with pytest.raises(UserError, match=r"state.json: alignment_head: expected"):
        recommended_head(tmp_path)


def test_a_state_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(b"{")
    with pytest.raises(UserError, match=r"state.json: malformed"):
        recommended_head(tmp_path)
