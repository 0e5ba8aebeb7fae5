"""Tiny training runs for tests: a corpus to write, a config, and processes that can be killed."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from nmt.cli import train

TIMES = ("seconds", "tokens_per_second", "time")


def write_corpus(directory: Path, *, pairs: int = 240, seed: int = 5) -> None:
    """Words and their mirror images: something that a model can learn."""
    generator = random.Random(seed)
    words = ["ab", "cde", "fgh", "ij", "klm", "no", "pqr", "st", "uvw", "xyz"]
    directory.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", pairs), ("validation", 12)):
        chosen = [generator.choices(words, k=generator.randint(1, 9)) for _ in range(count)]
        source = "".join(" ".join(line) + "\n" for line in chosen)
        target = "".join(" ".join(reversed(line)) + "\n" for line in chosen)
        (directory / f"{name}.src").write_text(source, encoding="utf-8")
        (directory / f"{name}.tgt").write_text(target, encoding="utf-8")


def tiny_config(directory: Path, **train_settings: Any) -> dict[str, Any]:
    """A run of a second or two, with dropout, accumulation and several epochs."""
    return {
        "run_dir": str(directory / "run"),
        "data": {
            "source_language": "xx",
            "target_language": "yy",
            "train": {"source": "data/train.src", "target": "data/train.tgt"},
            "validation": {"source": "data/validation.src", "target": "data/validation.tgt"},
            "prepared_dir": "prepared",
            "subword": {"kind": "bpe", "merges": 20},
            "workers": 1,
        },
        "model": {
            "dim": 16,
            "heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "feed_forward_dim": 32,
            "attention": {"cross": "rela-g"},
        },
        "train": {
            "max_updates": 24,
            "batch_tokens": 120,
            "accumulate": 2,
            "learning_rate": 1e-3,
            "schedule": {"kind": "inverse_sqrt", "warmup": 10},
            "threads": 1,
            "save_every": 5,
            "keep_last": 3,
            "log_every": 4,
            **train_settings,
        },
        "validate": {"every": 6, "beam": 1, "metric": "loss"},
    }


def write_run(directory: Path, config: dict[str, Any] | None = None) -> Path:
    """Corpus and config in a directory; the path of the config."""
    if not (directory / "data").exists():
        write_corpus(directory / "data")
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config or tiny_config(directory)), encoding="utf-8")
    return path


def fresh(reference: Path, directory: Path, config: dict[str, Any] | None = None) -> Path:
    """The config of a new run in a directory, on the prepared data of another run."""
    for name in ("data", "prepared"):
        shutil.copytree(reference / name, directory / name)
    return write_run(directory, config)


def train_in_child(config: Path, sabotage: Callable[[], None] | None = None) -> int:
    """Train in a process of its own, which `sabotage` may prepare to die; its exit code."""
    process = multiprocessing.get_context("fork").Process(target=child, args=(config, sabotage))
    process.start()
    process.join(240)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("the run hangs")
    return process.exitcode


def child(config: Path, sabotage: Callable[[], None] | None) -> None:
    """The body of the child process."""
    if sabotage is not None:
        sabotage()
    os._exit(train.main(["--config", str(config)]))


def die_at_call(owner: Any, name: str, count: int, *, number: int = signal.SIGKILL) -> None:
    """Make the `count`-th call of a method send a signal to this process before it begins."""
    original = getattr(owner, name)
    calls = 0

    def wrapper(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    setattr(owner, name, wrapper)


def newest(run_dir: Path) -> Path:
    """The checkpoint of the highest step."""
    return max((run_dir / "checkpoints").glob("step-*"))


def outcome(run_dir: Path) -> dict[str, Any]:
    """All of a run that must not depend on interruptions: bytes, state and records."""
    checkpoint = newest(run_dir)
    state = json.loads((checkpoint / "state.json").read_bytes())
    lines = (run_dir / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    records = [json.loads(line) for line in lines]
    return {
        "checkpoints": sorted(path.name for path in (run_dir / "checkpoints").iterdir()),
        "model": (checkpoint / "model.safetensors").read_bytes(),
        "optimizer": (checkpoint / "optimizer.safetensors").read_bytes(),
        "best": (run_dir / "best" / "model.safetensors").read_bytes(),
        "state": state["training"],
        "records": [
            {key: value for key, value in record.items() if key not in TIMES} for record in records
        ],
    }


def train_in_children(
    config: Path, size: int, sabotage: Callable[[int], None] | None = None
) -> list[int | None]:
    """Train as torchrun would with `size` processes, forked; their exit codes by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=ranked_child, args=(config, rank, size, port, sabotage))
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 240
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
    hanging = [worker for worker in workers if worker.exitcode is None]
    for worker in hanging:
        worker.kill()
    assert not hanging, "the run hangs"
    return [worker.exitcode for worker in workers]


def ranked_child(
    config: Path, rank: int, size: int, port: int, sabotage: Callable[[int], None] | None
) -> None:
    """The body of one of several processes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if sabotage is not None:
        sabotage(rank)
    os._exit(train.main(["--config", str(config)]))
