"""Builds of the kernels of our own: with sanitizers, or with vectors of another width."""

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "nmt" / "ops" / "native"
WARNINGS = ("-Wall", "-Wextra", "-Wvla", "-Wswitch-enum", "-Werror")
MEMORY = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def find_runtime(name: str) -> Path | None:
    """The compiler's runtime library of a sanitizer, if there is one."""
    if shutil.which("gcc") is None:
        return None
    asked = ["gcc", f"-print-file-name={name}.so"]
    path = Path(subprocess.run(asked, capture_output=True, text=True).stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


def build(directory: Path, extra: Sequence[str], names: Sequence[str] = ()) -> Path:
    """Builds (all, or those of these names) with more flags; a directory for `NMT_KERNELS`.

    It is made once for given sources.
    """
    setup = runpy.run_path(str(ROOT / "setup.py"))
    wanted = {
        name: flags for name, flags in setup["INSTRUCTIONS"].items() if not names or name in names
    }
    files = sorted(SOURCES.glob("*.[ch]"))
    content = (
        b"".join(path.read_bytes() for path in files)
        + repr((setup["FLAGS"], wanted, extra)).encode()
    )
    made = directory / hashlib.sha256(content).hexdigest()[:16]
    if made.is_dir():
        return made
    partial = directory / f"{made.name}.{os.getpid()}"
    partial.mkdir(parents=True)

    def compile_one(item: tuple[str, list[str]]) -> None:
        name, flags = item
        command = ["gcc", *setup["FLAGS"], *flags, *extra, "-fPIC", "-shared", "-lm"]
        sources = [str(path) for path in files if path.suffix == ".c"]
        output = ["-o", str(partial / f"{name}.so")]
        done = subprocess.run([*command, *sources, *output], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, wanted.items()))
    partial.rename(made)
    return made


def run_pytest(kernels: Path, runtime: Path | None, *arguments: str, timeout: float) -> str:
    """The output of pytest with these kernels in a process of its own, in which all tests pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
        env=os.environ
        | {
            "NMT_KERNELS": str(kernels),
            "LD_PRELOAD": "" if runtime is None else str(runtime),
            # Python and torch keep what they have; an allocation that fails is for torch to report.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",
        },
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout,
    )
    assert done.returncode == 0, (
        f"exit {done.returncode}: {done.stdout[-3000:]}{done.stderr[-6000:]}"
    )
    return done.stdout
