"""scripts/train.slurm in a real shell with a real torchrun; only SLURM's own commands are stubs."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import newest, outcome, tiny_config, write_run

from nmt.training.result import read_result

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.slurm"

# Like SLURM's: srun stays there as the parent of what it runs, with all of it in its arguments.
STUBS = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\n"$@"\n',
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$STUB_LOG"; fi\n',
}


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a job with two processes on one node."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, body in STUBS.items():
        (commands / name).write_text("#!/usr/bin/env bash\n" + body)
        (commands / name).chmod(0o755)
    (commands / "torchrun").write_text(
        f'#!/usr/bin/env bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    )
    (commands / "torchrun").chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(port),
        "STUB_LOG": str(tmp_path / "scontrol.log"),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
    }


def start(config: Path, environment: dict[str, str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(SCRIPT), str(config), *more],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_job_whose_time_is_up_saves_is_queued_again_and_finishes(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    config = write_run(tmp_path, tiny_config(tmp_path, max_updates=100_000))
    requeued = Path(cluster["STUB_LOG"])
    job = start(config, cluster)
    other_job = ["bash", "-c", "exec -a 'python -u -m nmt.cli.train' sleep 600"]
    bystander = subprocess.Popen(other_job)
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "run").glob("checkpoints/step-*")):
            assert time.monotonic() < deadline, "no checkpoint appeared"
            assert job.poll() is None
            time.sleep(0.05)
        job.send_signal(signal.SIGUSR1)
        _, errors = job.communicate(timeout=120)
        assert job.returncode == 0, errors
        assert bystander.poll() is None
    finally:
        bystander.kill()
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert "stopped by a signal at update" in errors
    assert requeued.read_text() == f"requeue {cluster['SLURM_JOB_ID']}\n"
    assert read_result(tmp_path / "run")["status"] == "stopped"
    stopped_at = outcome(tmp_path / "run")["state"]["update"]

    again = start(config, cluster, f"train.max_updates={stopped_at + 5}")
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert f"going on from update {stopped_at}" in errors
    assert read_result(tmp_path / "run")["status"] == "finished"
    assert newest(tmp_path / "run").name.endswith(str(stopped_at + 5))
    assert requeued.read_text().count("requeue") == 1  # a run that is done is not queued again


def test_a_job_whose_time_is_up_before_it_has_begun_is_queued_again(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    """While its processes are started and import torch; there is nothing to save."""
    job = start(write_run(tmp_path), cluster)
    try:
        while not workers_of(cluster["SLURM_JOB_ID"]):
            assert job.poll() is None
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        _, errors = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, errors
    assert "Traceback" not in errors
    assert Path(cluster["STUB_LOG"]).read_text() == f"requeue {cluster['SLURM_JOB_ID']}\n"


def workers_of(job: str) -> list[str]:
    launchers = pgrep("-f", f"rdzv-id={job} ")
    return pgrep("-P", ",".join(launchers)) if launchers else []


def pgrep(*options: str) -> list[str]:
    return subprocess.run(["pgrep", *options], capture_output=True, text=True).stdout.split()


def test_a_job_that_fails_is_not_queued_again(tmp_path: Path, cluster: dict[str, str]) -> None:
    job = start(tmp_path / "missing.yaml", cluster)
    _, errors = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "missing.yaml" in errors
    assert not Path(cluster["STUB_LOG"]).exists()


def test_without_a_config_it_says_how_to_use_it(cluster: dict[str, str]) -> None:
    done = subprocess.run(["bash", str(SCRIPT)], env=cluster, capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage" in done.stderr
