"""The checks fail when kernels in C could have been built and were not."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.ops.native import library

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "scripts" / "check_kernels.py"
COMPILER = sys.executable  # any program that is there


def check(kernels: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NMT_KERNELS": str(kernels), "CC": compiler}
    return subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)


def test_missing_kernels_fail_where_there_is_a_compiler(tmp_path: Path) -> None:
    done = check(tmp_path, COMPILER)
    assert done.returncode == 1
    assert done.stderr.startswith("kernels in C: x86_64_v4 was not built\n")
    assert "setup.py build_ext" in done.stderr


def test_missing_kernels_are_a_warning_without_a_compiler(tmp_path: Path) -> None:
    done = check(tmp_path, str(tmp_path / "none"))
    assert done.returncode == 0
    assert done.stderr.startswith("warning: there is no C compiler")


def test_kernels_that_cannot_be_loaded_fail(tmp_path: Path) -> None:
    built = sorted((PROJECT / "nmt" / "ops" / "native").glob("*.so"))
    if not built:
        pytest.skip("the kernels were not built")
    for path in built:
        (tmp_path / path.name).write_bytes(path.read_bytes()[:10])
    done = check(tmp_path, COMPILER)
    assert done.returncode == 1
    assert "file too short" in done.stderr


@pytest.mark.skipif(
    shutil.which("gcc") is None or not library.BUILDS, reason="no kernels can be built here"
)
@pytest.mark.parametrize(
    ("compiler", "problem"),
    [
        ("gcc", None),
        ("gcc -D__builtin_shuffle=absent", "error: "),  # as clang
        ("gcc -nostdinc", "omp.h"),  # without the headers of OpenMP
    ],
)
def test_a_compiler_that_cannot_build_the_kernels_is_found_before(
    compiler: str, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("CC", compiler)
    found = runpy.run_path("setup.py")["kernels_problem"]()
    if problem is None:
        assert found is None
    else:
        assert problem in found
        assert found.endswith("take gcc 11 or newer (CC=gcc)")


def test_the_checks_of_the_project_include_this_one() -> None:
    for script, line in (
        ("scripts/test.sh", "python scripts/check_kernels.py"),
        (".ci/run", "bash scripts/test.sh"),
    ):
        assert line in (PROJECT / script).read_text(encoding="utf-8").split("\n")
