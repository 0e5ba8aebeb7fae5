"""The kernels with vectors of four floats and no instructions of a named processor.

This is the C that NEON runs, but for two instructions; here it runs on x86-64.
`scripts/test_aarch64.sh` runs the build for aarch64 itself, in an emulator.
"""

import platform
import shutil

import pytest
from support.sanitizers import WARNINGS, build, run_pytest

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None,
    reason="needs gcc on x86-64",
)


@pytest.mark.timeout(900)  # half a minute of computing, on a machine that may be busy
def test_vectors_of_four_floats_give_right_results(request: pytest.FixtureRequest) -> None:
    directory = request.config.cache.mkdir("narrow_kernels")
    said = run_pytest(
        build(directory, ["-O1", "-DLANES=4", *WARNINGS], ["x86_64_v3"]),
        None,
        "tests/unit/ops/test_border.py",
        "tests/behaviour/test_random_kernels.py",
        "-k",
        "not search and not many",
        timeout=800,
    )
    assert " passed" in said
