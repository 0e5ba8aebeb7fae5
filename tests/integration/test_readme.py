"""Every command line of the README runs, in a copy of the project."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import SMALLER, blocks, command_lines, run

PROJECT = Path(__file__).parents[2]
BLOCKS = list(blocks(PROJECT / "README.md"))
COMMANDS = [
    line
    for block in BLOCKS
    if block.language == "bash" and not block.not_run
    for line in command_lines(block)
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a clone has, the environment in use, and texts for a first model."""
    directory = tmp_path_factory.mktemp("project") / "nmt"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (PROJECT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, directory / name)
    environment = Path(sys.prefix)
    (directory / ".venv").symlink_to(environment)
    generate = ["python", "recipes/demo/generate.py", "--output", "."]
    sizes = ["--train", "400", "--validation", "10", "--test", "4", "--noisy", "4"]
    run([*generate, *sizes], directory)
    (mine,) = [block for block in BLOCKS if block.text.startswith("run_dir:")]
    (directory / "mine.yaml").write_text(mine.text, encoding="utf-8")
    return directory


def test_all_command_lines_run_in_order(copy: Path) -> None:
    assert len(COMMANDS) >= 8
    for command in COMMANDS:
        if command == "bash scripts/test.sh":
            run(["bash", "-n", "scripts/test.sh"], copy)  # it runs this very test
        elif command == "bash scripts/demo.sh":
            out = run(["bash", "scripts/demo.sh", "--quick"], copy)
            assert "BLEU" in out
            assert (copy / "demo" / "analysis" / "report.html").stat().st_size > 10_000
        else:
            small = f" {SMALLER}" if command.startswith("nmt-train") else ""
            run(["bash", "-c", f"{command}{small}"], copy)
    assert (copy / "translated.de").read_bytes().count(b"\n") == 10
    (program,) = [block for block in BLOCKS if block.language == "python"]
    assert run([sys.executable, "-c", program.text], copy).count("\n") == 1
