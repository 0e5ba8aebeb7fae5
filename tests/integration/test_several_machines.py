"""torchrun on two machines, each of them a network namespace with a host name of its own."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.runs import tiny_config, write_run

from nmt.config.loading import load_config
from nmt.data.batching import BatchStream
from nmt.data.prepare import prepare

# Else a machine that joins a run waits for ever for an address that is published in the first
# round only (torch 2.13).
ELASTIC = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
FIRST = "10.77.0.1"
RENDEZVOUS = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclass
class Machine:
    """A network namespace, joined to the other machine by a virtual cable."""

    name: str
    address: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ip(self, *arguments: str) -> None:
        run("ip", "netns", "exec", self.name, "ip", *arguments)

    def torchrun(self, config: Path, log: Path, *, hosts: Path) -> subprocess.Popen[bytes]:
        """One process of at most two, which torchrun starts again when it fails."""
        is_host = int(self.address == FIRST)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2"]
        torchrun += ["--nproc-per-node=1", "--max-restarts=5", "--rdzv-backend=c10d"]
        torchrun += [
            "--rdzv-id=1",
            f"--rdzv-endpoint={FIRST}:29400",
            f"--rdzv-conf={RENDEZVOUS},is_host={is_host}",
        ]
        torchrun += ["-m", "nmt.cli.train", "--config", str(config)]
        setup = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'
        inside = ["bash", "-c", setup, self.name, str(hosts), *torchrun]
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "unshare", "--uts", "--mount", *inside],
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1", **ELASTIC},
            )
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def lose(self) -> None:
        """Cut the cable, then the power."""
        self.ip("link", "set", "cable", "down")
        self.kill()

    def kill(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait(timeout=30)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs the commands ip and unshare")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    both = [Machine(f"nmt-{os.getpid()}-{side}", f"10.77.0.{side}") for side in (1, 2)]
    try:
        try:
            for machine in both:
                run("ip", "netns", "add", machine.name)
            one, other = ("cable", "netns", both[0].name), ("name", "cable", "netns", both[1].name)
            run("ip", "link", "add", *one, "type", "veth", "peer", *other)
            run("unshare", "--uts", "true")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted: {error.stderr.decode().strip()}")
        for machine in both:
            machine.ip("address", "add", f"{machine.address}/24", "dev", "cable")
            machine.ip("link", "set", "lo", "up")
            machine.ip("link", "set", "cable", "up")
        yield both
    finally:
        for machine in both:
            machine.kill()
            subprocess.run(["ip", "netns", "delete", machine.name], capture_output=True)


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)


def write_hosts(path: Path, names: str) -> Path:
    path.write_text(f"127.0.0.1 localhost\n{names}")
    return path


def test_a_name_that_leads_nowhere_is_told_with_the_interface(
    machines: list[Machine], tmp_path: Path
) -> None:
    """As on many a Linux: each machine knows the address of the other, but not its own."""
    config = write_run(tmp_path)
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    for machine, other, log in zip(machines, machines[::-1], logs, strict=True):
        names = f"127.0.1.1 {machine.name}\n{other.address} {other.name}\n"
        machine.torchrun(config, log, hosts=write_hosts(log.with_suffix(".hosts"), names))
    told = "has the loopback address 127.0.1.1, where other machines cannot reach it; set GLOO_S"
    for log in logs:
        wait_for(lambda log=log: told in log.read_text(), f"the line in {log.name}")
        assert "here one of: cable\n" in log.read_text()
        assert "Traceback" not in log.read_text().split(told)[0]


@pytest.mark.slow
def test_a_machine_is_lost_and_another_joins(machines: list[Machine], tmp_path: Path) -> None:
    """Two machines, then one, then two again; no update is lost or made twice."""
    values = tiny_config(
        tmp_path, max_updates=1_000_000, distributed_timeout=5.0, accumulate=3, log_every=1
    )
    values["validate"]["every"] = 1_000_000
    config = write_run(tmp_path, values)
    first, second = machines
    log = tmp_path / "first.log"
    names = "".join(f"{machine.address} {machine.name}\n" for machine in machines)
    hosts = write_hosts(tmp_path / "hosts", names)

    def stage(start: str) -> int:
        """The number of updates logged since the last `start`."""
        text = log.read_text()
        return text.rpartition(start)[2].count("update ") if start in text else 0

    main = first.torchrun(config, log, hosts=hosts)
    second.torchrun(config, tmp_path / "second.log", hosts=hosts)
    wait_for(lambda: stage("2 processes share each update") > 50, "training on two machines")
    second.lose()
    assert "gave no sign of life" not in log.read_text()
    wait_for(lambda: "gave no sign of life" in log.read_text(), "the notice of a lost machine")
    wait_for(lambda: stage("going on from update") > 50, "training on one machine")
    assert log.read_text().count("2 processes share each update") == 1

    second.ip("link", "set", "cable", "up")
    second.torchrun(config, tmp_path / "again.log", hosts=hosts)
    joined = lambda: log.read_text().count("2 processes share each update") == 2  # noqa: E731
    wait_for(lambda: joined() and stage("2 processes share each update") > 50, "the joining")
    trainer = next(pid for pid in first.pids() if is_trainer(pid))
    os.kill(trainer, signal.SIGUSR1)
    assert main.wait(timeout=60) == 0
    check_updates(config, tmp_path / "run")


def is_trainer(pid: int) -> bool:
    """Whether a process is one that torchrun has started."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"nmt.cli.train" in arguments and b"torch.distributed.run" not in arguments


def check_updates(config_file: Path, run_dir: Path) -> None:
    """Every update is there once, with the tokens that it has for any number of processes."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["event"] == "train"]
    assert [record["update"] for record in records] == list(range(1, len(records) + 1))
    config = load_config(config_file)
    stream = BatchStream(
        prepare(config).train,
        batch_tokens=config.train.batch_tokens,
        seed=config.seed,
        accumulate=config.train.accumulate,
    )
    updates = itertools.islice(stream.updates(), len(records))
    assert [record["tokens"] for record in records] == [update.tokens for update in updates]
