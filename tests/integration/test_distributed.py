"""Several processes train the same model as one, and end together."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.disks import before_call
from support.runs import (
    die_at_call,
    fresh,
    newest,
    outcome,
    tiny_config,
    train_in_child,
    train_in_children,
    write_corpus,
    write_run,
)

from nmt.training import run
from nmt.training.distributed import Processes
from nmt.training.result import read_result
from nmt.training.saving import Saver
from nmt.training.update import Updater
from nmt.training.validation import Validator


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, with more forward passes an update than there will be processes."""
    directory = tmp_path_factory.mktemp("reference")
    assert train_in_child(write_run(directory, settings(directory))) == 0
    return directory


def settings(directory: Path, **train_settings: Any) -> dict[str, Any]:
    """Without dropout, whose masks depend on how a batch is divided.

    A large epsilon: else Adam makes whole steps of gradients that are rounding errors of 0.
    """
    adam = {"epsilon": 1e-3}
    config = tiny_config(directory, accumulate=3, log_every=1, adam=adam, **train_settings)
    config["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
    return config


def start(directory: Path, *, options: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *options]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    command += ["-m", "nmt.cli.train", "--config", str(directory / "config.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def recorded(directory: Path, name: str) -> list[float]:
    records = outcome(directory / "run")["records"]
    return [record[name] for record in records if record["event"] == "train"]


def losses(directory: Path) -> list[float]:
    return recorded(directory, "loss")


def test_two_processes_make_the_updates_of_one(reference: Path, tmp_path: Path) -> None:
    """Three batches per update, of which one is divided."""
    fresh(reference, tmp_path, settings(tmp_path))
    process = start(tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Warning:" not in errors
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
    """Two processes, then three, then one; every update has the pairs it would have had."""
    fresh(reference, tmp_path, settings(tmp_path))
    for size, limit in ((2, 11), (3, 17), (1, 24)):
        config = write_run(tmp_path, settings(tmp_path, max_updates=limit))
        assert train_in_children(config, size) == [0] * size
    assert recorded(tmp_path, "tokens") == recorded(reference, "tokens")
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
        process.communicate(timeout=60)
        assert process.returncode != 0
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


# ---------------------------------------------------------------- several processes, forked


def test_two_processes_that_were_killed_go_on_to_the_same_bits(
    reference: Path, tmp_path: Path
) -> None:
    """With dropout, and with a batch in every update that is divided."""
    for name, number in (("whole", 0), ("cut", 13)):
        fresh(reference, tmp_path / name, tiny_config(tmp_path / name, accumulate=3, log_every=1))
        config = tmp_path / name / "config.yaml"
        if number:
            codes = train_in_children(config, 2, partial(kill_rank, 1, number))
            assert codes[1] == -signal.SIGKILL
            assert codes[0] not in (0, None)
        assert train_in_children(config, 2) == [0, 0]
    assert outcome(tmp_path / "cut" / "run") == outcome(tmp_path / "whole" / "run")


def kill_rank(victim: int, step: int, rank: int) -> None:
    if rank == victim:
        die_at_call(Updater, "step", step)


def test_weights_that_drift_apart_are_caught(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One bit of one weight, in one process, after update 7; the next save is that of 10."""
    fresh(reference, tmp_path, settings(tmp_path))
    assert train_in_children(tmp_path / "config.yaml", 2, partial(flip_weight, 8)) == [7, 7]
    assert "update 10: process 1 has other weights than process 0" in capfd.readouterr().err
    assert newest(tmp_path / "run").name == "step-00000005"
    assert read_result(tmp_path / "run")["status"] == "failed"


def test_weights_that_drift_apart_are_caught_between_saves(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = settings(tmp_path, max_updates=70, save_every=1000)
    config["validate"]["every"] = 1000
    fresh(reference, tmp_path, config)
    assert train_in_children(tmp_path / "config.yaml", 2, partial(flip_weight, 8)) == [7, 7]
    assert "update 50: process 1 has other weights" in capfd.readouterr().err


def flip_weight(step: int, rank: int) -> None:
    """Change the last bit of a weight of process 1 before one of its steps."""
    original = Updater.step
    calls = 0

    def step_(self: Updater, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == step and rank == 1:
            weight = next(iter(self.loss.parameters()))
            weight.data.view(-1).view(torch.int32)[0] ^= 1
        original(self, *arguments)

    Updater.step = step_  # type: ignore[method-assign]


def compare_with_one_process(directory: Path, pairs: int, size: int) -> None:
    """A corpus of this many pairs: the same tokens, losses and gradients in every update."""
    for name, processes in (("one", 1), ("several", size)):
        write_corpus(directory / name / "data", pairs=pairs)
        config = settings(directory / name, max_updates=12)
        assert train_in_children(write_run(directory / name, config), processes) == [0] * processes
    one, several = (outcome(directory / name / "run")["records"] for name in ("one", "several"))
    for name in ("tokens", "epoch"):
        assert [row.get(name) for row in several] == [row.get(name) for row in one]
    first = [next(row for row in rows if row["event"] == "train") for rows in (one, several)]
    assert first[1]["gradient_norm"] == pytest.approx(first[0]["gradient_norm"], rel=1e-6)
    losses = [[row["loss"] for row in rows if row["event"] == "train"] for rows in (one, several)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(("pairs", "size"), [(1, 2), (3, 4)])
def test_a_corpus_smaller_than_the_team(tmp_path: Path, pairs: int, size: int) -> None:
    compare_with_one_process(tmp_path, pairs, size)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [1, 2, 3, 7, 101])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_corpora_and_teams_of_all_sizes(tmp_path: Path, pairs: int, size: int) -> None:
    compare_with_one_process(tmp_path, pairs, size)


def short_of_memory(rank: int) -> None:
    """Process 1 runs out of memory in its seventh update."""

    def refuse() -> None:
        raise torch.OutOfMemoryError("not enough memory")

    if rank == 1:
        before_call(Updater, "backward", 13, refuse)


def test_one_process_without_memory_ends_all(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fresh(reference, tmp_path, settings(tmp_path, distributed_timeout=5.0))
    codes = train_in_children(tmp_path / "config.yaml", 2, short_of_memory)
    assert codes[1] == 2
    assert codes[0] not in (0, None)
    assert "not enough memory" in capfd.readouterr().err


def slow_stages(rank: int) -> None:
    """One process takes longer than the timeout to read the data, to validate and to save."""
    wait = partial(time.sleep, 3.0)
    if rank == 1:
        before_call(run, "prepare", 1, wait)
        before_call(Validator, "translations", 1, wait)
    else:
        before_call(Saver, "save", 1, wait)
        before_call(Updater, "backward", 9, wait)  # the compiler, say


@pytest.mark.clock
def test_a_slow_stage_is_no_dead_process(reference: Path, tmp_path: Path) -> None:
    fresh(reference, tmp_path, settings(tmp_path, distributed_timeout=2.0))
    assert train_in_children(tmp_path / "config.yaml", 2, slow_stages) == [0, 0]


def count_questions(directory: Path, rank: int) -> None:
    """Count the all-reduces about stopping: those of two numbers."""
    original = Processes.maxima
    counts = [0]

    def maxima(self: Processes, values: list[int]) -> list[int]:
        counts[0] += len(values) == 2
        (directory / f"questions-{rank}").write_text(str(counts[0]))
        return original(self, values)

    Processes.maxima = maxima  # type: ignore[method-assign]


def test_processes_do_not_ask_after_every_update_whether_to_stop(
    reference: Path, tmp_path: Path
) -> None:
    config = settings(tmp_path, max_updates=200, save_every=1000)
    config["validate"]["every"] = 1000
    fresh(reference, tmp_path, config)
    begin = time.monotonic()
    assert train_in_children(tmp_path / "config.yaml", 2, partial(count_questions, tmp_path)) == [
        0,
        0,
    ]
    seconds = time.monotonic() - begin
    questions = [int((tmp_path / f"questions-{rank}").read_text()) for rank in range(2)]
    assert questions[0] == questions[1]
    assert 1 <= questions[0] <= 2 * seconds + 10  # of 200 updates


# ---------------------------------------------------------------- torchrun


@pytest.mark.clock
def test_a_process_that_was_stopped_ends_the_run(reference: Path, tmp_path: Path) -> None:
    fresh(reference, tmp_path, settings(tmp_path, max_updates=100_000, distributed_timeout=3.0))
    process = start(tmp_path)
    workers: list[int] = []
    try:
        workers = wait_for_checkpoint(tmp_path, process)
        os.kill(workers[1], signal.SIGSTOP)
        begin = time.monotonic()
        _, errors = process.communicate(timeout=60)
        # the timeout, five seconds to end, and more for a machine with other work
        assert time.monotonic() - begin < 3 + 5 + 20
        assert process.returncode != 0
        assert "nmt-train: another process of this run has ended or does not answer" in errors
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        process.kill()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert read_result(tmp_path / "run")["status"] == "failed"


def restart_to_the_end(reference: Path, directory: Path, *, failures: int) -> None:
    """Kill a worker again and again, after a new checkpoint each time; torchrun begins anew."""
    for name in ("whole", "cut"):
        fresh(reference, directory / name, settings(directory / name, max_updates=60))
    assert train_in_children(directory / "whole" / "config.yaml", 2) == [0, 0]
    process = start(directory / "cut", options=[f"--max-restarts={failures}"])
    try:
        seen = 0
        for failure in range(failures):
            deadline = time.monotonic() + 90
            while (step := last_step(directory / "cut")) <= seen or len(children(process.pid)) < 2:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            seen = step
            os.kill(children(process.pid)[failure % 2], signal.SIGKILL)
            time.sleep(1)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    finally:
        process.kill()
    cut, whole = outcome(directory / "cut" / "run"), outcome(directory / "whole" / "run")
    # Sums of losses that are begun again are added up in another order over the processes.
    assert is_close(cut.pop("state"), whole.pop("state"))
    assert is_close(cut.pop("records"), whole.pop("records"))
    assert cut == whole


def is_close(found: Any, expected: Any) -> bool:
    """Equal but for the last bits of floats."""
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-9)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_close(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_close, found, expected))
    return bool(found == expected)


def last_step(directory: Path) -> int:
    steps = (directory / "run" / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in steps), default=0)


def test_torchrun_restarts_a_run_that_failed(reference: Path, tmp_path: Path) -> None:
    restart_to_the_end(reference, tmp_path, failures=1)


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_failed_three_times(reference: Path, tmp_path: Path) -> None:
    restart_to_the_end(reference, tmp_path, failures=3)


@pytest.mark.slow
def test_one_process_then_two_then_one_over_200_updates(tmp_path: Path) -> None:
    """The same pairs in every update, and losses within 1e-5."""
    for name, sizes in (("whole", [1]), ("changing", [1, 2, 1])):
        for part, size in enumerate(sizes, start=1):
            limit = 200 * part // len(sizes)
            config = write_run(tmp_path / name, settings(tmp_path / name, max_updates=limit))
            assert train_in_children(config, size) == [0] * size
    whole, changing = (tmp_path / name for name in ("whole", "changing"))
    assert recorded(changing, "tokens") == recorded(whole, "tokens")
    assert losses(changing) == pytest.approx(losses(whole), rel=1e-5)
