"""scripts/environment.sh in a real shell: which environment is used, and how one is made."""

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


@pytest.mark.parametrize(
    ("script", "found"),
    [(None, "there is no {python} that runs"), ("echo 2.7", "{python} is Python 2.7")],
    ids=["none", "old"],
)
def test_an_interpreter_of_no_use_is_one_message(project, tmp_path, script, found):
    python = tmp_path / "python9"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)
    expected = f"expected Python 3.11 or newer, but {found.format(python=python)}; set PYTHON to"
    done = run(project, "softmax", PYTHON=str(python))
    assert done.returncode == 2
    assert done.stderr == f"{expected} the path of another\n"
    demo = ["bash", str(project / "scripts/demo.sh")]  # a script that stops at the first error
    done = subprocess.run(
        demo, env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, f"{expected} the path of another\n")


def set_up(project: Path, packages: Path, **settings: str) -> list[str]:
    """The messages of a set-up by pip that knows only some files, none of which is a package."""
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages)}
    pip |= {"NMT_REQUIRE_HASHES": "1", "PIP_EXTRA_INDEX_URL": ""}
    done = run(project, "softmax", **pip, **settings)
    assert done.returncode == 7, done.stderr  # nothing can be installed
    return done.stderr.splitlines()


@pytest.mark.skipif(
    sys.platform != "linux"
    or Path("/proc/driver/nvidia/version").exists()
    or shutil.which("nvidia-smi") is not None,
    reason="for Linux without an NVIDIA GPU",
)
def test_the_size_of_the_download_is_said_before_it_starts(project, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    start, size, warning, *_ = set_up(project, packages)
    assert start.startswith("Setting up .venv")
    assert size == "Up to 2.9 GB will be downloaded (torch with CUDA)"
    assert warning.startswith(
        "warning: this machine has no NVIDIA GPU, but pip knows of no build of torch"
    )
    assert "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" in warning

    (pinned,) = (
        line.removeprefix("torch==")
        for line in (project / "constraints.txt").read_text(encoding="utf-8").split()
        if line.startswith("torch==")
    )
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = f"torch-{pinned}+cpu-{python}-{python}-manylinux_2_28_x86_64.whl"
    (packages / name).write_bytes(b"")
    _, size, after, *_ = set_up(project, packages)
    assert size == "Up to 0.6 GB will be downloaded (torch without CUDA)"
    assert not after.startswith("warning")
    _, size, *rest = set_up(project, packages, NMT_TORCH="cuda")
    assert size == "Up to 2.9 GB will be downloaded (torch with CUDA)"
    assert f"No matching distribution found for torch==={pinned}" in "\n".join(rest)
