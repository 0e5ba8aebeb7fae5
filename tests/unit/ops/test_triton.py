"""The kernels in Triton: their numbers in the interpreter, and their builds for real GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

pytest.importorskip("triton", reason="Triton is not installed (pip install 'nmt[gpu-proofs]')")


@pytest.mark.timeout(1200)  # two minutes where nothing else runs
def test_numbers_in_the_interpreter() -> None:
    """The interpreter is chosen before Triton is imported, so in a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(TESTS / "interpreted")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
