"""Every command line of the README runs, in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
# The README's own settings take minutes; these reach the same code in seconds.
SMALLER = (
    "train.max_updates=20 train.schedule.warmup=10 train.save_every=5 train.batch_tokens=512 "
    "model.dim=32 model.encoder_layers=1 model.decoder_layers=1 model.feed_forward_dim=64 "
    "data.subword.merges=200 data.workers=1 validate.sentences=10"
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


COMMANDS = [
    line
    for block in blocks("bash")
    for line in block.replace("\\\n", " ").split("\n")
    if line.strip() and not line.startswith("#")
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
    (mine,) = [block for block in blocks("yaml") if block.startswith("run_dir:")]
    (directory / "mine.yaml").write_text(mine, encoding="utf-8")
    return directory


def run(command: list[str], directory: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


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
    (program,) = blocks("python")
    assert run([sys.executable, "-c", program], copy).count("\n") == 1


def test_the_attention_example_is_a_config(copy: Path) -> None:
    (example,) = [block for block in blocks("yaml") if block.startswith("model:")]
    base = re.sub(r"^model:.*$", "", (copy / "mine.yaml").read_text(encoding="utf-8"), flags=re.M)
    (copy / "example.yaml").write_text(base + example, encoding="utf-8")
    printed = run(["nmt-train", "--config", "example.yaml", "--print-config"], copy)
    assert "alpha: learned" in printed
