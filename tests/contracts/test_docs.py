"""The pages of docs/ are current."""

from dataclasses import dataclass

import pytest
from support.project_scripts import load_script

config_reference = load_script("config_reference")


def test_the_config_reference_is_that_of_the_dataclasses() -> None:
    written = config_reference.PAGE.read_text(encoding="utf-8").partition(config_reference.BEGIN)[2]
    assert written.lstrip("\n") == config_reference.reference(), (
        "run python scripts/config_reference.py --write"
    )


def test_a_reference_has_type_default_and_meaning_of_each_key() -> None:
    lines = config_reference.reference().split("\n")
    length = "a whole number (at least 1 and at most 65,536)"
    assert f"| `k` | {length} | required |" in "\n".join(lines)
    for expected in (
        f"| `max_length` | {length} | `256` | subwords per side; longer pairs are left out",
        "| `vocabulary_size` | a whole number (at least 0 and at most 1,000,000) | `0` | sentencep",
        "| `run_dir` | a path | required | ",
        "| `beam` | a whole number (at least 1 and at most 1,000) | `4` | hypotheses kept; 1 is",
        "| `rela-g` (`ReLA-g`) | `gate` | true or false | `true` | ",
        "| `kind` | one of softmax, sparsemax, entmax15, entmax, rela-i, rela-g, topk | `softmax`",
    ):
        assert sum(line.startswith(expected) for line in lines) == 1, expected


@dataclass(frozen=True)
class Undescribed:
    """A section with a key that nobody described."""

    described: int = 1  # its meaning
    undescribed: int = 2


def test_a_key_without_a_meaning_is_rejected() -> None:
    with pytest.raises(AssertionError, match=r"Undescribed\.undescribed: write its meaning"):
        list(config_reference.section_lines(Undescribed, ["some"], Undescribed()))
