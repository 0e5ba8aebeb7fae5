"""scripts/environment.sh in a real shell: which environment a recipe runs in."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
RECIPE = "recipes/multi30k_en_de"
MADE_FROM = ("pyproject.toml", "setup.py", "constraints.txt", "requirements.lock")
PLAIN = f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone without an environment of its own."""
    root = tmp_path / "project"
    for name in ("scripts", "nmt", "configs/multi30k_en_de", RECIPE):
        shutil.copytree(PROJECT / name, root / name)
    for name in MADE_FROM:
        shutil.copy(PROJECT / name, root / name)
    return root


def make_environment(root: Path, project: Path | None) -> Path:
    """A virtual environment; with a project it has all packages and imports nmt from there."""
    venv.create(root, symlinks=True)
    if project is not None:
        (packages,) = root.glob("lib/python*/site-packages")
        others = [path for path in sys.path if path.endswith("-packages")]
        (packages / "others.pth").write_text("\n".join([str(project), *others]), encoding="utf-8")
    return root


def run(
    project: Path, *arguments: str, active: Path | None = None, **settings: str
) -> "subprocess.CompletedProcess[str]":
    names = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON", "PYTHONPATH", "NMT_ENVIRONMENT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PATH"] = PLAIN
    if active is not None:
        environment |= {"PATH": f"{active / 'bin'}:{PLAIN}", "VIRTUAL_ENV": str(active)}
    line = ["bash", str(project / RECIPE / "run.sh"), *arguments]
    return subprocess.run(
        line, env={**environment, **settings}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("option", ["--list", "--help"])
def test_nothing_is_set_up_for_a_list(project, option):
    done = run(project, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rela-g" in done.stdout
    assert not (project / ".venv").exists()


def test_an_active_environment_with_nmt_is_used(project, tmp_path):
    active = make_environment(tmp_path / "active", project)
    done = run(project, "no-such-variant", active=active)
    assert done.returncode == 2
    used, message = done.stderr.splitlines()
    assert used == f"Using the active environment {active} (nmt is in {project / 'nmt'})"
    assert "got 'no-such-variant'" in message
    assert not (project / ".venv").exists()


def test_one_without_nmt_is_an_error_when_it_is_asked_for(project, tmp_path):
    active = make_environment(tmp_path / "active", None)
    done = run(project, "no-such-variant", active=active, NMT_ENVIRONMENT="active")
    assert done.returncode == 2
    assert "nmt or torch cannot be imported in the active environment; install" in done.stderr
    assert not (project / ".venv").exists()
    done = run(project, "no-such-variant", NMT_ENVIRONMENT="conda")
    assert done.returncode == 2
    assert "expected auto, active or project, got conda" in done.stderr


def test_another_environment_is_not_used_in_silence(project, tmp_path):
    active = make_environment(tmp_path / "active", None)
    # A linked .venv is taken as it is, so that nothing is installed here.
    (project / ".venv").symlink_to(make_environment(tmp_path / "other", project))
    done = run(project, "no-such-variant", active=active)
    note, message = done.stderr.splitlines()
    assert note.startswith(f"The active environment {active} has no nmt with torch; using")
    assert "got 'no-such-variant'" in message
    assert len(run(project, "no-such-variant").stderr.splitlines()) == 1  # nothing is active
    both = make_environment(tmp_path / "both", project)
    done = run(project, "no-such-variant", active=both, NMT_ENVIRONMENT="project")
    assert len(done.stderr.splitlines()) == 1  # as it was told


def test_the_projects_own_environment_may_be_active(project, tmp_path):
    own = make_environment(tmp_path / "own", project)
    (project / ".venv").symlink_to(own)
    done = run(project, "no-such-variant", active=project / ".venv")
    assert len(done.stderr.splitlines()) == 1
    done = run(project, "no-such-variant", active=own, NMT_ENVIRONMENT="active")
    assert done.stderr.startswith(f"Using the active environment {own} ")
