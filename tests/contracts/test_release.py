"""The version is stated once, in pyproject.toml; the files of a release agree with it."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]
VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_the_newest_section_of_the_changelog_is_of_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (PROJECT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0].split()[0] == VERSION
    assert len(headings) == len(set(headings))


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text("utf-8"))
    assert {
        "cff-version",
        "message",
        "title",
        "authors",
    } <= citation.keys()
    assert (citation["version"], citation["license"]) == (VERSION, "MIT")


def test_no_code_states_the_version_again() -> None:
    stated = re.compile(rf"""["']{re.escape(VERSION)}["']""")
    files = [PROJECT / "setup.py", *(PROJECT / "nmt").rglob("*.py")]
    assert [path for path in files if stated.search(path.read_text("utf-8"))] == []


def test_source_that_is_not_installed_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "nmt").mkdir()
    shutil.copy(PROJECT / "nmt" / "__init__.py", tmp_path / "nmt")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import nmt; print(nmt.__version__)"
    command = [sys.executable, "-I", "-S", "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "unknown\n"
