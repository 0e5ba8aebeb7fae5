"""The checks fail when kernels in C could have been built and were not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_checks_of_the_project_include_this_one() -> None:
    for script, line in (
        ("scripts/test.sh", "python scripts/check_kernels.py"),
        (".ci/run", "bash scripts/test.sh"),
    ):
        assert line in (PROJECT / script).read_text(encoding="utf-8").split("\n")
