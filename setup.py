"""Builds the kernels in nmt/ops/native, once for each instruction set; the rest: pyproject.toml.

Where there is no C compiler for them, the package is installed without.
"""

from glob import glob

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=gnu11", "-fopenmp", "-fno-math-errno", "-Werror=vla"]
INSTRUCTIONS = {
    "x86_64_v4": ["-march=x86-64-v4", "-mavx512vnni"],
    "x86_64_v3": ["-march=x86-64-v3"],
}

if __name__ == "__main__":  # tests read the flags for builds of their own
    setup(
        ext_modules=[
            Extension(
                f"nmt.ops.native.{name}",
                sorted(glob("nmt/ops/native/*.c")),
                depends=glob("nmt/ops/native/*.h"),
                extra_compile_args=[*FLAGS, *flags],
                extra_link_args=["-fopenmp"],
                optional=True,
            )
            for name, flags in INSTRUCTIONS.items()
        ]
    )
