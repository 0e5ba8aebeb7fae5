"""Model directories whose weights are any float32, and resealed: translated, or refused with 6.

The configuration is right, so the weights reach the engine in C. A case ends the whole process if
the engine reads or writes where it must not.
"""

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small_models import reseal
from translation_models import KINDS, make_codec, make_config, make_directory, make_model

from nmt.cli.translate import main
from nmt.config.config import AttentionTypesConfig, SublayerAttentionConfig

REQUIRED: dict[str, Any] = {"entmax": {"alpha": 1.3}, "topk": {"k": 2}}
WEIGHTS = "model.safetensors"
NUMBERS = (0x7FC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x80000000)


def poison(path: Path, chosen: random.Random, count: int) -> None:
    """Overwrite this many weights by NaN, infinities, the largest and smallest numbers, or bits."""
    data = bytearray((path / WEIGHTS).read_bytes())
    first = 8 + struct.unpack("<Q", data[:8])[0]
    for _ in range(count):
        place = first + 4 * chosen.randrange((len(data) - first) // 4)
        bits = chosen.choice((*NUMBERS, chosen.getrandbits(32)))
        data[place : place + 4] = struct.pack("<I", bits)
    (path / WEIGHTS).write_bytes(data)
    reseal(path)


def check(tmp_path: Path, kind: str, *, cases: int, seed: int) -> None:
    chosen = random.Random(f"{kind} {seed}")
    sublayer = SublayerAttentionConfig(kind, **REQUIRED.get(kind, {}))
    types = AttentionTypesConfig(sublayer, sublayer, sublayer)
    config = make_config(kind)
    config = replace(config, model=replace(config.model, attention=types))
    codec = make_codec(config)
    made = make_directory(tmp_path / "made", config, codec, make_model(config, codec))
    clean = (made / WEIGHTS).read_bytes()
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("the old man\n\nthe cat sees a tree\n")
    (tmp_path / "prefix").write_text("CAT\n\nOLD MAN THE CAT\n")
    for number in range(cases):
        (made / WEIGHTS).write_bytes(clean)
        poison(made, chosen, chosen.choice((1, 1, 5, 1000)))
        options = ["--beam", str(chosen.choice((1, 4, 60))), "--max-length", "6"]
        options += chosen.choice(([], ["--int8"], ["--prefix", str(tmp_path / "prefix")]))
        options += chosen.choice(([], ["--sample", "1.0"]))
        given = ["--model", str(made), "--input", str(source), "--output", str(output)]
        code = main([*given, *options])
        assert code in (0, 6), f"case {number} of {kind}, seed {seed}: exit {code}"
        lines = output.read_text().split("\n")
        assert len(lines) == 4, f"case {number} of {kind}, seed {seed}"
        assert lines[1] == ""


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_any_value(tmp_path: Path, kind: str) -> None:
    check(tmp_path, kind, cases=6, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_many_weights_of_any_value(tmp_path: Path, kind: str) -> None:
    check(tmp_path, kind, cases=1000, seed=2)
