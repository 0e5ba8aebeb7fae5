"""Builds the kernels in nmt/ops/native, once for each instruction set; the rest: pyproject.toml.

The kernels are called through ctypes, so one wheel serves all versions of Python. Where they cannot
be compiled, the package is built without them, as a wheel for any platform, and one line says so.
NMT_BUILD_KERNELS=1 makes that an error; NMT_BUILD_KERNELS=0 builds without kernels.
"""

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FLAGS = ["-O3", "-std=gnu11", "-fopenmp", "-fno-math-errno", "-Werror=vla"]
INSTRUCTIONS_BY_MACHINE = {
    "x86_64": {
        "x86_64_v4": ["-march=x86-64-v4", "-mavx512vnni"],
        "x86_64_v3": ["-march=x86-64-v3"],
    },
    "aarch64": {
        "aarch64_dotprod": ["-march=armv8.2-a+dotprod"],
        "aarch64": ["-march=armv8-a"],
    },
}
INSTRUCTIONS = INSTRUCTIONS_BY_MACHINE.get(platform.machine(), {})
KERNELS = "nmt/ops/native"


def kernels_problem() -> str | None:
    """Why the kernels cannot be built here, or None."""
    if platform.system() != "Linux" or not INSTRUCTIONS:
        return "they are for Linux on x86-64 and aarch64"
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    with tempfile.TemporaryDirectory() as directory:
        for flags in INSTRUCTIONS.values():
            output = os.path.join(directory, "trial.so")
            trial = ["-shared", "-fPIC", f"-I{KERNELS}", "-x", "c", "-", "-o", output]
            try:
                done = subprocess.run(
                    [*command, *FLAGS, *flags, *trial],
                    input='#include <omp.h>\n#include "products.h"\n',
                    capture_output=True,
                    text=True,
                )
            except OSError:
                return f"there is no C compiler {command[0]}; install gcc"
            if done.returncode != 0:
                errors = (line for line in done.stderr.splitlines() if "error" in line)
                reason = next(errors, f"exit {done.returncode}")
                return f"{command[0]} {flags[0]} fails ({reason}); take gcc 11 or newer (CC=gcc)"
    return None


def decide() -> str | None:
    """Why the package is built without kernels; None: it is built with them."""
    wish = os.environ.get("NMT_BUILD_KERNELS", "")
    if wish not in ("", "0", "1"):
        sys.exit(f"NMT_BUILD_KERNELS: expected 0 or 1, got {wish!r}")
    problem = "NMT_BUILD_KERNELS=0" if wish == "0" else kernels_problem()
    if wish == "1" and problem is not None:
        sys.exit(f"NMT_BUILD_KERNELS=1, but the kernels in C cannot be built: {problem}")
    return problem


class Kernels(build_ext):
    """Builds that are named without the version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def run(self) -> None:
        super().run()
        if self.inplace:  # builds of earlier versions were named after the version of Python
            for path in Path(KERNELS).glob("*.cpython-*.so"):
                path.unlink()


def recipe_files() -> list[Path]:
    """What nmt-recipe needs of the recipes, and the configs of their variants."""
    found: list[Path] = []
    for recipe in sorted(Path("recipes").glob("*/recipe.toml")):
        folder = recipe.parent
        found += [*folder.glob("*.toml"), *folder.glob("paper.tsv")]
        found += Path("configs", folder.name).glob("*.yaml")
    return found


class Package(build_py):
    """The package with the recipes, which a clone has beside the package."""

    def run(self) -> None:
        super().run()
        if without_kernels is not None:
            print(f"nmt is built without its kernels in C: {without_kernels}", file=sys.stderr)
        if not self.editable_mode:
            for path in recipe_files():
                target = Path(self.build_lib, "nmt", "builtin", path)
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))


class Wheel(bdist_wheel):
    """One wheel for all versions of Python: of this platform with kernels, of any without."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":  # tests read the flags for builds of their own
    without_kernels = decide()
    setup(
        cmdclass={"build_ext": Kernels, "build_py": Package, "bdist_wheel": Wheel},
        ext_modules=[
            Extension(
                f"{KERNELS}/{name}".replace("/", "."),
                sorted(glob(f"{KERNELS}/*.c")),
                depends=glob(f"{KERNELS}/*.h"),
                extra_compile_args=[*FLAGS, *flags],
                extra_link_args=["-fopenmp"],
            )
            for name, flags in INSTRUCTIONS.items()
            if without_kernels is None
        ],
    )
