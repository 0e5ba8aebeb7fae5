"""Model directories with any number, word or byte changed, and resealed as an attacker would.

Each is taken by the command itself: it translates, or it ends in one line. The many cases of the
slow run are taken in forked processes, whose memory and death can be told apart.
"""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.small_models import reseal
from translation_models import make_codec, make_config, make_directory, make_model

from nmt.cli.translate import main

CASES = 300
SLOW_CASES = 200  # for each of ten seeds
TEXTS = ["config.yaml", "state.json", "codec.json", "source.vocabulary", "target.codes"]
HOSTILE: list[Any] = [
    0, 1, -1, 2, 3, 255, 65_536, 10**6, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 10**30, 0.5, -0.0,
    1e-300, 1e38, 1e300, -1e300, float("nan"), float("inf"), True, False, None, "", "x", "learned",
    "../../etc/passwd", "\0", "\ud800", "\u2028", "x" * 10_000, [], [[]], {}, {"kind": "topk"},
    "rela-g", "entmax", "sentencepiece", "moses", "jieba", "all", "none",
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model with subwords and a recommended head; another of the kind with most options."""
    made = []
    for kind in ("softmax", "rela-g"):
        config = make_config(kind, subword="bpe")
        codec = make_codec(config)
        path = tmp_path_factory.mktemp(kind) / "model"
        make_directory(path, config, codec, make_model(config, codec))
        state = {"update": 3, "alignment_head": {"layer": 1, "head": 0, "shifted": True}}
        (path / "state.json").write_text(json.dumps(state))
        reseal(path)
        made.append(path)
    return made


def mutate_lines(text: str, chosen: random.Random) -> str:
    """A text of `key: value` lines with one value, key or line changed."""
    lines = text.split("\n")
    number = chosen.randrange(len(lines))
    line = lines[number]
    key, colon, _ = line.partition(": ")
    value = json.dumps(chosen.choice(HOSTILE))
    match chosen.randrange(5):
        case 0:
            del lines[number]
        case 1:
            lines.insert(chosen.randrange(len(lines)), line)
        case 2:
            lines[number] = line[: chosen.randrange(len(line) + 1)] + value
        case _:
            lines[number] = f"{key}{colon}{value}" if colon else f"{line} {value}"
    return "\n".join(lines)


def mutate_json(value: Any, chosen: random.Random) -> Any:
    """A JSON value with something in it changed, lost or new."""
    if isinstance(value, dict) and value and chosen.random() < 0.9:
        name = chosen.choice(sorted(value))
        match chosen.randrange(6):
            case 0:
                return {key: item for key, item in value.items() if key != name}
            case 1:
                return value | {"more": chosen.choice(HOSTILE)}
            case _:
                return value | {name: mutate_json(value[name], chosen)}
    return chosen.choice(HOSTILE)


def mutate_bytes(data: bytes, chosen: random.Random) -> bytes:
    """A few bytes changed, lost or new."""
    changed = bytearray(data)
    for _ in range(chosen.randrange(1, 4)):
        place = chosen.randrange(len(changed) + 1)
        match chosen.randrange(3):
            case 0:
                changed[place : place + chosen.randrange(1, 30)] = b""
            case 1:
                changed[place:place] = chosen.randbytes(chosen.randrange(1, 6))
            case _:
                changed[place : place + 1] = bytes([chosen.randrange(256)])
    return bytes(changed)


def mutate(path: Path, chosen: random.Random) -> str:
    """Change one file of a model directory; returns what was done."""
    name = chosen.choice([name for name in TEXTS if (path / name).exists()])
    data = (path / name).read_bytes()
    kind = chosen.randrange(4)
    if kind == 0:
        new = mutate_bytes(data, chosen)
    elif name.endswith(".json"):
        new = json.dumps(mutate_json(json.loads(data), chosen)).encode()
    else:
        new = mutate_lines(data.decode(), chosen).encode(errors="replace")
    (path / name).write_bytes(new)
    reseal(path)
    return name


def in_child(work: Callable[[], int]) -> tuple[int, str, int]:
    """Exit status, standard error and largest memory in kB of work in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        try:
            code = work()
        except SystemExit as stop:
            code = int(str(stop.code))
        except BaseException as error:
            os.write(2, f"traceback: {error!r}".encode(errors="replace"))
            code = 1
        os._exit(code)
    os.close(writing)
    with io.FileIO(reading) as file:
        said = file.readall().decode(errors="replace")
    _, status, usage = os.wait4(child, 0)
    return status, said, usage.ru_maxrss


def in_process(work: Callable[[], int]) -> tuple[int, str, int]:
    """The same in this process; its memory is how much more it took than other tests before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = work()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return code << 8, said.getvalue(), after - before


def check_cases(
    models: list[Path],
    tmp_path: Path,
    count: int,
    run: Callable[[Callable[[], int]], tuple[int, str, int]],
    *,
    seed: int,
) -> None:
    chosen = random.Random(seed)
    (tmp_path / "source").write_text("the old man\n\nthe cat sees a tree\n")
    codes: dict[int, int] = {}
    for number in range(count):
        path = tmp_path / "model"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(chosen.choice(models), path)
        name = mutate(path, chosen)
        given = ["--model", str(path), "--input", str(tmp_path / "source")]
        given += ["--output", str(tmp_path / "output"), "--alignments", str(tmp_path / "links")]
        status, said, memory = run(lambda given=given: main(given))  # type: ignore[misc]
        what = f"case {number} of seed {seed}, {name}: {said[-500:]}"
        assert os.WIFEXITED(status), f"killed by signal {os.WTERMSIG(status)}: {what}"
        code = os.WEXITSTATUS(status)
        codes[code] = codes.get(code, 0) + 1
        assert code in (0, 2, 3, 6, 7), what
        assert "raceback" not in said, what
        assert memory < 1_000_000, what
        errors = [line for line in said.split("\n") if line.startswith("nmt-translate: ")]
        assert len(errors) == (code != 0), what
    assert codes[0] > count // 20  # the mutations are not all of one kind
    assert codes[2] > count // 4


def test_mutated_models(models: list[Path], tmp_path: Path) -> None:
    check_cases(models, tmp_path, CASES, in_process, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_mutated_models(models: list[Path], tmp_path: Path, seed: int) -> None:
    check_cases(models, tmp_path, SLOW_CASES, in_child, seed=seed)
