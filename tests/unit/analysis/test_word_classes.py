"""Null rates after words of a class, on attention made by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from translation_models import make_config

from nmt.analysis.pairs import PairBatch, SegmentedPair
from nmt.analysis.word_classes import NullAfterWords, WordClasses, read_word_classes
from nmt.data.codec import Codec
from nmt.errors import DataError, UserError
from nmt.model.observe import Site

PAIRS = [("a b", "er hat , sie"), ("b a", "sie hat")]


@pytest.fixture(scope="module")
def batch() -> tuple[PairBatch, Codec]:
    codec = Codec.learn(make_config("rela-g").data, PAIRS)
    pairs = [
        SegmentedPair(index, codec.source.segment(source), codec.target.segment(target))
        for index, (source, target) in enumerate(PAIRS)
    ]
    return PairBatch.of(pairs, "cpu"), codec


def null_after(classes: WordClasses, batch: tuple[PairBatch, Codec]) -> dict[str, Any]:
    """Head 0 attends only after `hat`, head 1 always."""
    pairs, codec = batch
    weights = torch.zeros(2, 2, pairs.target_input.shape[1], pairs.source.shape[1])
    weights[:, 1, :, 0] = 1.0
    for number, (_, target) in enumerate(PAIRS):
        weights[number, 0, target.split().index("hat") + 1, 1] = 2.0
    site = Site("cross", 0)
    statistics = NullAfterWords(classes, codec.target, frozenset({site}))
    observe = statistics.observer(pairs)
    observe(site, weights, pairs.source_visible[:, None, None])
    observe(Site("cross", 1), weights, pairs.source_visible[:, None, None])  # cannot be null
    summary: dict[str, Any] = {"cross": {"layer_0": {}}}
    statistics.add_to(summary)
    return summary["cross"]["layer_0"]["null_after"]


def test_lists_of_tokens(batch: tuple[PairBatch, Codec], tmp_path: Path) -> None:
    (tmp_path / "aux").write_text("HAT\nist\n")
    (tmp_path / "pronoun").write_text("er\n\nsie\n")
    (tmp_path / "comma").write_text(",\n")
    names = [f"{name}={tmp_path / name}" for name in ("aux", "pronoun", "comma")]
    classes = read_word_classes(names, None, count=2)
    assert classes is not None
    assert null_after(classes, batch) == {
        "aux": {"queries": 2, "null_rate": 0.0, "heads": [0.0, 0.0]},
        "comma": {"queries": 1, "null_rate": 0.5, "heads": [1.0, 0.0]},
        "pronoun": {"queries": 3, "null_rate": 0.5, "heads": [1.0, 0.0]},
    }


def test_tags_of_words(batch: tuple[PairBatch, Codec], tmp_path: Path) -> None:
    tags = tmp_path / "tags"
    tags.write_text("PRON AUX PUNCT PRON\nPRON AUX\nX\n")
    classes = read_word_classes([], tags, count=2, max_pairs=2)
    assert classes is not None
    found = null_after(classes, batch)
    assert {name: rates["queries"] for name, rates in found.items()} == {
        "AUX": 2,
        "PRON": 3,
        "PUNCT": 1,
    }
    assert found["AUX"]["heads"] == [0.0, 0.0]
    tags.write_text("PRON AUX PUNCT PRON\nPRON\n")
    wrong = read_word_classes([], tags, count=2)
    assert wrong is not None
    with pytest.raises(DataError, match=r"tags:2: expected 2 tags.*got 1"):
        null_after(wrong, batch)


def test_mistakes_are_named(tmp_path: Path) -> None:
    assert read_word_classes([], None, count=3) is None
    with pytest.raises(UserError, match="expected NAME=FILE, got 'aux'"):
        read_word_classes(["aux"], None, count=3)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="empty: expected a word per line"):
        read_word_classes([f"aux={tmp_path / 'empty'}"], None, count=3)
    (tmp_path / "tags").write_text("A\n")
    with pytest.raises(DataError, match="expected a line for each of 3 pairs, got 1"):
        read_word_classes([], tmp_path / "tags", count=3)
    # More lines are cut only to the pairs that were asked for.
    (tmp_path / "tags").write_text("A\nA\nA\nA\n")
    with pytest.raises(DataError, match="expected a line for each of 3 pairs, got 4"):
        read_word_classes([], tmp_path / "tags", count=3)
    with pytest.raises(DataError, match="expected a line for each of 2 pairs, got 3"):
        read_word_classes([], tmp_path / "tags", count=2, max_pairs=3)


def test_a_name_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("a\n")
    with pytest.raises(UserError, match="a name is given twice"):
        read_word_classes([f"verbs={words}", f"verbs={words}"], None, count=1)
