"""The kernels under sanitizers: any access out of bounds and any undefined arithmetic ends a test.

The builds are made once for given sources and kept in pytest's cache. Warnings are errors in them,
so a case forgotten in a switch, or an array of variable length, fails here.
"""

from pathlib import Path

import pytest
from support.sanitizers import MEMORY, WARNINGS, build, find_runtime, run_pytest

RUNTIME = find_runtime("libasan")
pytestmark = pytest.mark.skipif(RUNTIME is None, reason="there is no gcc with libasan here")

# Tests that limit memory or stack say nothing under a sanitizer, which needs much of both.
LEFT_OUT = "not refused_is_an_error and not take_the_stack"


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest) -> Path:
    return request.config.cache.mkdir("sanitized_kernels")


def run(kernels: Path, *arguments: str, timeout: float) -> None:
    assert RUNTIME is not None
    said = run_pytest(kernels, RUNTIME, *arguments, timeout=timeout)
    assert " passed" in said


@pytest.mark.timeout(900)  # a minute of computing, on a machine that may be busy
def test_quick_checks_under_sanitizers(directory: Path) -> None:
    """With the smaller instruction set only: compiling takes longer than the tests."""
    run(
        build(directory, [*MEMORY, *WARNINGS], ["x86_64_v3"]),
        "tests/unit/ops/test_border.py",
        "tests/behaviour/test_random_kernels.py",
        "-k",
        f"{LEFT_OUT} and not search and not many",
        timeout=800,
    )


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_all_kernels_under_sanitizers(directory: Path) -> None:
    run(
        build(directory, [*MEMORY, *WARNINGS]),
        "tests/unit/ops",
        "tests/unit/decoding/test_search.py",
        "tests/behaviour/test_engine.py",
        "tests/behaviour/test_model_options.py",
        "tests/behaviour/test_random_kernels.py",
        "-k",
        f"{LEFT_OUT} and not many",
        timeout=7200,
    )
