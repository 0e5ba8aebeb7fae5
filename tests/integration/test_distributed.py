"""Several processes train the same model as one, and end together."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.runs import newest, outcome, tiny_config, train_in_child, write_run

from nmt.training.result import read_result


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, with more forward passes an update than there will be processes."""
    directory = tmp_path_factory.mktemp("reference")
    assert train_in_child(write_run(directory, settings(directory))) == 0
    return directory


def settings(directory: Path, **train_settings: Any) -> dict[str, Any]:
    """A large epsilon: else Adam makes whole steps of gradients that are rounding errors of 0."""
    adam = {"epsilon": 1e-3}
    return tiny_config(directory, accumulate=3, log_every=1, adam=adam, **train_settings)


def start(directory: Path, *, processes: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    command += ["-m", "nmt.cli.train", "--config", str(directory / "config.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def fresh(reference: Path, directory: Path, config: dict[str, Any]) -> None:
    for name in ("data", "prepared"):
        shutil.copytree(reference / name, directory / name)
    write_run(directory, config)


def recorded(directory: Path, name: str) -> list[float]:
    records = outcome(directory / "run")["records"]
    return [record[name] for record in records if record["event"] == "train"]


def losses(directory: Path) -> list[float]:
    return recorded(directory, "loss")


def test_two_processes_make_the_updates_of_one(reference: Path, tmp_path: Path) -> None:
    """With dropout on: its masks belong to the batches, not to the processes."""
    fresh(reference, tmp_path, settings(tmp_path))
    process = start(tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert losses(tmp_path) == pytest.approx(losses(reference), rel=1e-5)
    norms = [recorded(directory, "gradient_norm")[0] for directory in (tmp_path, reference)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    ours = load_file(newest(tmp_path / "run") / "model.safetensors")
    theirs = load_file(newest(reference / "run") / "model.safetensors")
    # Sums of processes have other last bits, which decide about a ReLU now and then.
    off = [
        (ours[name] - tensor).abs() > 1e-5 + 1e-4 * tensor.abs() for name, tensor in theirs.items()
    ]
    assert torch.cat([x.flatten() for x in off]).float().mean() < 1e-2
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-3)


def test_world_size_may_change_at_resume(reference: Path, tmp_path: Path) -> None:
    fresh(reference, tmp_path, settings(tmp_path, max_updates=10))
    assert train_in_child(tmp_path / "config.yaml") == 0
    write_run(tmp_path, settings(tmp_path))
    process = start(tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert losses(tmp_path) == pytest.approx(losses(reference), rel=1e-5)


def children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return [int(line) for line in listed.stdout.split()]


def wait_for_checkpoint(directory: Path, process: subprocess.Popen[str]) -> list[int]:
    """The pids of the workers, once they are training."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if list((directory / "run" / "checkpoints").glob("step-*")):
            return children(process.pid)
        time.sleep(0.05)
    raise AssertionError("no checkpoint appeared")


@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_dies_all_end(reference: Path, tmp_path: Path, victim: int) -> None:
    fresh(reference, tmp_path, settings(tmp_path, max_updates=100_000))
    process = start(tmp_path)
    try:
        workers = wait_for_checkpoint(tmp_path, process)
        os.kill(workers[victim], signal.SIGKILL)
        begin = time.monotonic()
        process.communicate(timeout=30)
        assert process.returncode != 0
        assert time.monotonic() - begin < 15
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        process.kill()


def test_a_signal_to_one_stops_all_at_the_same_update(reference: Path, tmp_path: Path) -> None:
    fresh(reference, tmp_path, settings(tmp_path, max_updates=100_000))
    process = start(tmp_path)
    try:
        workers = wait_for_checkpoint(tmp_path, process)
        os.kill(workers[1], signal.SIGUSR1)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "stopped by a signal" in errors
    finally:
        process.kill()


def test_divergence_is_told_once_and_recorded(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """torchrun hides our exit code, so the run directory has to say what happened."""
    config = settings(tmp_path, learning_rate=1e30, max_updates=100)
    config["train"]["schedule"] = {"kind": "noam", "warmup": 10}
    fresh(reference, tmp_path, config)
    process = start(tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.count("nmt-train: diverged at update") == 1
    assert "exitcode  : 6" in errors
    result = read_result(tmp_path / "run")
    assert result["status"] == "diverged"
    assert "diverged at update" in result["reason"]
    assert "ERROR diverged at update" in (tmp_path / "run" / "train.log").read_text()
    # Begun again, by one process: it says how it ended, tries, and has its own exit code.
    assert train_in_child(tmp_path / "config.yaml") == 6
    assert "this run ended before: diverged" in capfd.readouterr().err
