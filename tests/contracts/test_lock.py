"""The lock files have the SHA-256 of every package of constraints.txt, and of nothing else."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-cuda.lock", "requirements-ray.lock")
LINE = re.compile(
    r"([\w.-]+)==(\S+)(?: ; sys_platform == 'linux')?((?: --hash=sha256:[0-9a-f]{64})+)"
)


def read(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").split("\n")[:-1]
    return [line for line in lines if not line.startswith("#")]


def test_all_versions_are_locked() -> None:
    found = []
    for line in (line for name in LOCKS for line in read(name)):
        match = LINE.fullmatch(line)
        assert match, line[:80]
        found.append(f"{match[1]}=={match[2]}")
    assert sorted(found, key=str.lower) == sorted(read("constraints.txt"), key=str.lower), (
        "run python scripts/lock.py after a change of constraints.txt"
    )


def test_everything_the_project_names_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        named += extra
    pinned = {line.partition("==")[0].lower() for line in read("constraints.txt")}
    names = {re.split(r"[<>=;\[ ]", name)[0].lower() for name in named}
    assert names - {"nmt"} <= pinned  # an extra may name others
