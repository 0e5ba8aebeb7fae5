"""The tables of the comparison with other toolkits are right for given measurements."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "recipes" / "speed"))

from results import MARKS, markdown, rates, ratio, write_readme


def part(kind: str, rounds: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A part of a machine that is as fast as its matrix product says."""
    return {
        "kind": kind,
        "size": "middle",
        "batch": 0,
        "threads": 2,
        "clock": "wall",
        "version": "12ab",
        "machine": "two cores",
        "date": "2026-01-02",
        "rounds": rounds,
        **more,
    }


def training_part() -> dict[str, Any]:
    """Three rounds; the machine is half as fast in the second."""

    def one(seconds: float, *, peer: int, other: int) -> dict[str, Any]:
        tokens = {"nmt softmax": 2000, "nmt rela-g": 1000, "marian": peer, "fairseq": other}
        memory = {"nmt softmax": 500e6, "nmt rela-g": 510e6, "marian": 700e6, "fairseq": 1.2e9}
        times = {"seconds": seconds, "cpu_seconds": 4.0}
        return {
            "matrix_rate": 100e9 / seconds,
            "measured": {
                name: {"tokens": tokens[name], "memory": memory[name] * seconds, **times}
                for name in tokens
            },
        }

    rounds = [
        one(1.0, peer=1000, other=500),
        one(2.0, peer=1250, other=500),
        one(1.0, peer=800, other=500),
    ]
    return part("train", rounds)


def decoding_part(**more: Any) -> dict[str, Any]:
    """One round; int8 is twice as fast for us, and as fast as float32 for the others."""
    seconds = {
        "nmt softmax": 0.5,
        "nmt softmax int8": 0.25,
        "ctranslate2": 1.0,
        "ctranslate2 int8": 1.0,
        "marian": 2.0,
        "marian int8": 2.0,
    }
    measured = {
        name: {"sentences": 64, "seconds": time, "cpu_seconds": time, "memory": 1e8}
        for name, time in seconds.items()
    }
    return part("decode", [{"matrix_rate": 50e9, "measured": measured}], batch=64, **more)


def test_ratios_are_taken_within_rounds() -> None:
    found = ratio(training_part(), "nmt softmax", "marian")
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 1.6, 2.5))
    assert ratio(training_part(), "nmt rela-g", "fairseq").median == pytest.approx(2.0)


def test_time_of_processors_is_shared_by_threads() -> None:
    found = {**training_part(), "clock": "cpu"}
    assert rates(found, "nmt softmax") == [1000.0, 1000.0, 1000.0]
    assert ratio(found, "nmt softmax", "nmt rela-g").high == pytest.approx(2.0)
    assert "| 3 | processors |" in markdown({"parts": {"a": found}})


def test_tables() -> None:
    parts = {
        "a": training_part(),
        "b": decoding_part(),
        "c": decoding_part(size="base", threads=1),
    }
    lines = markdown({"parts": parts}).split("\n")
    assert "Machine: two cores." in lines
    # Training: our speed over theirs, speeds and memory.
    assert lines.count("|  | middle, 2 threads |") == 4
    assert "| marian | 2.00 (1.60 to 2.50) |" in lines
    assert "| nmt softmax | 2,000 (1,000 to 2,000) |" in lines
    assert "| fairseq | 2,400 MB |" in lines
    # Decoding: every type against the same type.
    head = "|  | ctranslate2, float32 | marian, float32 | ctranslate2, int8 | marian, int8 |"
    assert head in lines
    cells = " | ".join(f"{x:.2f} ({x:.2f} to {x:.2f})" for x in (2.0, 4.0, 4.0, 8.0))
    assert f"| middle, batch 64, 2 threads | {cells} |" in lines
    assert f"| base, batch 64, 1 thread | {cells} |" in lines
    assert any(line.startswith("| base, batch 64, 1 thread | 128 (128 to 128) |") for line in lines)
    conditions = "2026-01-02 | 12ab | 3 | wall | 100 (50 to 100) |"
    assert f"| training, middle, 2 threads | {conditions}" in lines


def test_a_contender_that_missed_a_round_is_left_out() -> None:
    found = training_part()
    del found["rounds"][1]["measured"]["marian"]
    assert "| marian |" not in markdown({"parts": {"a": found}})


def test_the_tables_of_the_page_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n", encoding="utf-8")
    for _ in range(2):
        write_readme({"parts": {"a": training_part()}}, page)
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"before\n{MARKS[0]}\n\nMachine: two cores.")
        assert text.endswith(f"|\n\n{MARKS[1]}\nafter\n")
        assert "old" not in text
    page.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected the lines"):
        write_readme({"parts": {}}, page)
