"""The compiled kernels for tests: every build that this machine can run."""

import ctypes

import pytest

from nmt.ops.native import library

NAMES = [path.name.partition(".")[0] for path in library.builds()]
ABSENT = "the kernels were not built: there was no C compiler when the package was installed"


def load(name: str) -> ctypes.CDLL:
    """One build."""
    (path,) = (path for path in library.builds() if path.name.startswith(f"{name}."))
    kernels = library.open_build(path)
    assert kernels is not None, "the build is older than the sources: build it again"
    return kernels


# For tests with an argument `build`.
every_build = pytest.mark.parametrize(
    "build", NAMES or [pytest.param("none", marks=pytest.mark.skip(reason=ABSENT))]
)
