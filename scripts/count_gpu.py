"""Writes nmt/bench/counts.tsv: what updates and decoding steps ask of a GPU, on fake tensors.

Run it after a change that launches other kernels or moves other bytes; it takes some minutes and
needs g++, but no GPU.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "nmt" / "bench" / "counts.tsv"


def main() -> None:
    command = [sys.executable, str(ROOT / "tests" / "fake_cuda" / "run.py"), "table"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    TABLE.write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
