"""The speed of training with several processes: nmt-bench train under torchrun."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from nmt.bench.synthetic import Shapes
from nmt.bench.timing import Spread
from nmt.errors import UserError

LONGEST_RUN = 1800.0  # seconds


def process_counts(most: int) -> list[int]:
    """1, 2, 4 ... and `most`."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    return [*powers, most]


def measure_processes(
    shapes: Shapes,
    kind: str,
    count: int,
    *,
    precision: str,
    updates: int,
    repeats: int,
    device: str,
) -> Spread:
    """Target tokens per second of `count` processes, which all have one batch in every update."""
    options = {
        "kinds": kind,
        "dim": shapes.dim,
        "heads": shapes.heads,
        "layers": shapes.layers,
        "feed-forward-dim": shapes.feed_forward_dim,
        "vocabulary": shapes.vocabulary,
        "length": shapes.length,
        "batch-tokens": shapes.batch_tokens,
        "dropout": shapes.dropout,
        "precision": precision,
        "accumulate": count,
        "updates": updates,
        "repeats": repeats,
        "device": device,
    }
    with tempfile.TemporaryDirectory(prefix="nmt-bench-") as directory:
        path = Path(directory) / "train.json"
        arguments = [f"--{name}={value}" for name, value in options.items()]
        run_module(["nmt.cli.bench", "train", *arguments, f"--json={path}"], count)
        document = json.loads(path.read_text(encoding="utf-8"))
    assert document["processes"] == count
    (row,) = document["kinds"]
    return Spread(**row["tokens_per_second"])


def run_module(module: list[str], count: int) -> None:
    """Run a module in `count` processes of this machine; its first error becomes ours."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command = [sys.executable, *(torchrun if count > 1 else []), "-m", *module]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, messages = process.communicate(timeout=LONGEST_RUN)
        except BaseException:
            process.terminate()  # by which torchrun ends its workers, too
            raise
    if process.returncode != 0:
        lines = [line.strip() for line in messages.split("\n") if line.strip()]
        reasons = [line for line in lines if "rror" in line] or lines[-1:] or ["no message"]
        raise UserError(
            f"processes of {module[0]}, {count}: ended with {process.returncode}: {reasons[0]}"
        )
