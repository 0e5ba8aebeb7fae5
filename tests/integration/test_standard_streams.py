"""Closed, full and broken standard streams: one rule for every command."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from translation_models import make_directory, random_lines, trained_model

LINES = random_lines(5, seed=3, longest=6)

# A command without a model: it reads lines, answers each, says so, and prints a summary.
ECHO = """
import logging, sys
from pathlib import Path
from nmt.cli import console
from nmt.data.text import LineWriter
from nmt.decoding.streaming import open_lines

def echo(arguments):
    lines = open_lines(None).lines
    with LineWriter(arguments.output) as writer:
        for line in lines:
            writer.write(line)
            logging.getLogger("nmt.echo").warning("answered %s", line)
    if arguments.output is not None:
        print("summary")

parser = console.Parser(prog="echo")
parser.add_argument("--output", type=Path)
sys.exit(console.run(parser, echo, None))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model") / "best", *trained_model())


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("echo") / "echo.py"
    path.write_text(ECHO)
    return path


def shell(command: str, text: str = "a\nb\n") -> subprocess.CompletedProcess[bytes]:
    """Run a command line of a POSIX shell with text on its standard input."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        ["sh", "-c", command], input=text.encode(), capture_output=True, env=environment, timeout=60
    )


PYTHON = shlex.quote(sys.executable)
FULL = "standard output: cannot be written (No space left on device)"


@pytest.mark.parametrize(
    ("redirection", "code", "output", "message"),
    [
        ("", 0, "a\nb\n", "warning: answered b"),
        ("2>&-", 0, "a\nb\n", None),
        ("2>/dev/full", 0, "a\nb\n", None),
        (">&-", 4, "", "echo: standard output: cannot be written (Bad file descriptor)"),
        (">/dev/full", 4, "", f"echo: {FULL}"),
        ("<&-", 2, "", "echo: standard input: cannot be read after line 0"),
        ("--output /dev/full", 4, "", "echo: /dev/full: cannot be written (No space left"),
        ("--output /dev/null >/dev/full", 4, "", f"echo: {FULL}"),
        ("--output /dev/null >&-", 4, "", "echo: standard output: cannot be written"),
        ("--output /dev/null 2>&-", 0, "summary\n", None),
        ("--help >/dev/full", 4, "", f"echo: {FULL}"),
        ("--help >/dev/null 2>&-", 0, "", None),
        ("--wrong 2>&-", 2, "", None),
        ("--wrong 2>/dev/full", 2, "", None),
        ("<&- >&- 2>&-", 2, "", None),
        (">&- 2>&-", 4, "", None),
        ("| head -1", 0, "a\n", None),
        ("2>&1 | head -1", 0, "a\n", None),
    ],
)
def test_every_state_of_a_stream(
    echo: Path, redirection: str, code: int, output: str, message: str | None
) -> None:
    result = shell(f"{PYTHON} {echo} {redirection}")
    errors = result.stderr.decode()
    assert (result.returncode, result.stdout.decode()) == (code, output)
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert "None" not in errors
    if message is not None:
        assert errors.strip().split("\n")[-1].startswith(message)


@pytest.mark.parametrize("options", ["--help", "--version", "--output /dev/null"])
def test_a_full_disk_without_a_buffer(echo: Path, options: str) -> None:
    result = shell(f"PYTHONUNBUFFERED=1 {PYTHON} {echo} {options} >/dev/full")
    assert (result.returncode, result.stderr.decode().split("\n")[-2]) == (4, f"echo: {FULL}")


def test_a_long_help_on_a_full_disk() -> None:
    result = shell(f"{PYTHON} -m nmt.cli.translate --help >/dev/full")
    assert (result.returncode, result.stderr.decode()) == (4, f"nmt-translate: {FULL}\n")


def test_a_closed_descriptor_is_never_taken_by_a_file(echo: Path, tmp_path: Path) -> None:
    """Without standard error the output file would be descriptor 2, and get the messages."""
    output = tmp_path / "output"
    assert shell(f"{PYTHON} {echo} --output {output} 2>&-").returncode == 0
    assert output.read_text() == "a\nb\n"


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        ("2>&-", 0, None),
        (">&-", 4, "standard output: cannot be written"),
        ("<&-", 2, "standard input: cannot be read"),
        ("--output /dev/full", 4, "/dev/full: cannot be written (No space left on device)"),
    ],
)
def test_translating(model: Path, redirection: str, code: int, message: str | None) -> None:
    text = "".join(line + "\n" for line in LINES)
    result = shell(f"{PYTHON} -m nmt.cli.translate --model {model} {redirection}", text)
    assert result.returncode == code
    assert b"Traceback" not in result.stderr
    if code == 0:
        assert result.stdout.count(b"\n") == len(LINES)
    if message is not None:
        assert message in result.stderr.decode().strip().split("\n")[-1]
