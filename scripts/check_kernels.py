"""Fails when there is a C compiler and the kernels were not built; warns when there is none.

The installation goes on when the kernels do not compile, because it has to work without a compiler;
tests of the kernels are then skipped. Where there is a compiler, that would hide an error.
"""

import sys

from nmt.doctor.installation import find_compiler
from nmt.ops.environment import BUILDS
from nmt.ops.native.library import build_path, builds, read_build


def problems() -> list[str]:
    """The problems of the builds, one line each."""
    found = [f"{name} was not built" for name in BUILDS if not build_path(name).exists()]
    for path in builds():
        opened = read_build(path)
        if isinstance(opened, str):
            found.append(f"{path.name}: {opened}")
    return found


def main() -> int:
    """The exit code."""
    if not BUILDS:
        print("warning: the kernels in C are for Linux on x86-64 and aarch64 only", file=sys.stderr)
        return 0
    found = problems()
    compiler = find_compiler()
    if found and compiler is None:
        print(
            "warning: there is no C compiler, so the kernels were not built and their tests will "
            "be skipped; install gcc and remove .venv/installed to build them",
            file=sys.stderr,
        )
        return 0
    for problem in found:
        print(f"kernels in C: {problem}", file=sys.stderr)
    if found:
        print(
            f"there is a C compiler ({compiler}); to see why the kernels were not built: "
            ".venv/bin/python setup.py build_ext --inplace --force",
            file=sys.stderr,
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
