"""The workflows of the forge are valid, run scripts that exist, and pin what they use."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    assert all({"runs-on", "timeout-minutes"} <= job.keys() for job in jobs.values())
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_permissions_are_small(path: Path) -> None:
    lines = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    pinned = re.compile(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [each for each in lines if not pinned.fullmatch(each)] == []
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_and_folders_exist_and_no_expression_reaches_a_shell(path: Path) -> None:
    for command in (step["run"] for step in steps(path) if "run" in step):
        assert "${{" not in command, "pass it in the environment"
        for name in re.findall(r"\b(?:scripts|tests)/[\w./]+", command):
            assert (PROJECT / name).exists(), name


def test_the_checks_the_proofs_and_the_wheels_are_run() -> None:
    commands = {step.get("run") for path in WORKFLOWS for step in steps(path)}
    assert {
        'bash scripts/test.sh -m "not slow and not clock"',
        "bash scripts/test.sh -m slow",
        "bash scripts/wheels.sh",
    } <= commands
