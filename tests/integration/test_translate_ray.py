"""nmt-translate on a Ray cluster: the same lines in the same order, also if workers are killed."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from translation_models import make_directory, random_lines, trained_model

from nmt.cli.translate import main

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed (pip install 'nmt[ray]'); 500 MB of disk",
)
LINES = random_lines(1500, seed=9, longest=8)
AGENTS = ("ray::Dashboard", "ray::RuntimeEnv")  # which see after a minute that their node is gone
WORKER = "ray::MapWorker(Map(BlockWorker)).submit"  # while a block is translated


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model") / "best", *trained_model())


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster of one node."""

    address: str
    raylet: int  # process id

    def workers(self) -> list[int]:
        """The processes that are translating a block."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.raylet and (path / "cmdline").read_text().startswith(WORKER):
                    found.append(int(path.name))
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2})
    (raylet,) = nodes.head_node.all_processes["raylet"]
    yield Cluster(nodes.address, raylet.process.pid)
    nodes.shutdown()


class Killer(threading.Thread):
    """Kills up to `most` processes that are translating."""

    def __init__(self, cluster: Cluster, most: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.most = most
        self.killed: set[int] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while len(self.killed) < self.most and not self.ended.wait(0.002):
            for worker in self.cluster.workers()[: self.most - len(self.killed)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    self.killed.add(worker)

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def write_source(path: Path) -> Path:
    """LINES with a line that is not UTF-8, a blank one and one that is too long."""
    raw = [line.encode() for line in LINES]
    raw[700] = b"the \xff cat"
    raw[701] = b""
    raw[1400] = b"the old cat " * 100
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


@needs_ray
def test_killed_workers_lose_nothing(
    model: Path, tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source")
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("".join("THE\n" if n % 7 == 0 else "\n" for n in range(len(LINES))))
    arguments = ["--model", str(model), "--input", str(source), "--prefix", str(prefixes)]
    arguments += ["--nbest", "2", "--on-bad-line", "skip"]
    found = {}
    for name, more in (("plain", []), ("ray", ["--ray", cluster.address])):
        files = [tmp_path / f"{name}.{part}" for part in ("text", "links")]
        outputs = ["--output", str(files[0]), "--alignments", str(files[1])]
        with Killer(cluster, most=1) as killer:
            assert main([*arguments, *outputs, *more]) == 0
        messages = [x for x in capsys.readouterr().err.splitlines() if str(source) in x]
        found[name] = [file.read_bytes() for file in files] + [messages]
    assert len(killer.killed) == 1
    assert found["ray"] == found["plain"]
    assert any("source:701: invalid UTF-8" in message for message in messages)
    assert any("source:1401: too long" in message for message in messages)


@needs_ray
def test_an_error_in_the_middle(
    model: Path, tmp_path: Path, cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Standard output gets the lines before a bad one, and nothing else."""
    source = write_source(tmp_path / "source")
    found = []
    for more in ([], ["--ray", cluster.address]):
        assert main(["--model", str(model), "--input", str(source), *more]) == 2
        output = capfdbinary.readouterr()
        found.append((output.out, output.err.splitlines()[-1]))
    assert found[0] == found[1]
    assert found[0][0].count(b"\n") == 700


@needs_ray
@pytest.mark.slow
def test_a_damaged_model(
    model: Path, tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source")
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model.iterdir():
        data = bytearray(path.read_bytes())
        if path.name == "model.safetensors":
            data[-5] ^= 1
        (broken / path.name).write_bytes(data)
    arguments = ["--model", str(broken), "--input", str(source), "--ray", cluster.address]
    assert main(arguments) == 7
    assert "model.safetensors" in capsys.readouterr().err.splitlines()[-1]


@needs_ray
@pytest.mark.slow
def test_lines_that_end_every_worker_are_given_up(
    model: Path, tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source")
    output = tmp_path / "output"
    arguments = ["--model", str(model), "--input", str(source), "--output", str(output)]
    with Killer(cluster, most=1000):
        assert main([*arguments, "--workers", "1", "--ray", cluster.address]) == 2
    assert "a Ray worker ended unexpectedly" in capsys.readouterr().err.splitlines()[-1]
    assert not output.exists()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_local_cluster(
    model: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    source = tmp_path / "source"
    source.write_text("".join(line + "\n" for line in LINES * 40))
    command = [sys.executable, "-m", "nmt.cli.translate", "--model", str(model), "--ray", "local"]
    with subprocess.Popen(
        [*command, "--input", str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        children = {
            child: name
            for child, name in descendants(process.pid).items()
            if not name.startswith(AGENTS)
        }
        assert any("raylet" in name for name in children.values())
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in messages
    wait_for(lambda: not [child for child in children if Path(f"/proc/{child}").exists()])


def descendants(root: int) -> dict[int, str]:
    """The process ids and names below a process."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            parents[int(path.name)] = int(rest.split()[1])
            names[int(path.name)] = name
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: names[child] for child in found - {root}}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--ray reads blocks of a file: give --input FILE"),
        (["--input", "x", "--buffer", "3"], "--ray: leave out --buffer"),
        (["--input", "x", "--score-only", "y"], "--ray: leave out --score-only"),
        (["--input", "x", "--device", "cuda:1"], "--device cuda:1: Ray assigns the GPUs"),
        (["--input", "x", "--device", "cpu,cpu"], "--device cpu,cpu: Ray assigns the GPUs"),
        (["--input", "missing"], "missing: cannot be read"),
    ],
)
def test_options_that_ray_does_not_take(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(model), "--ray", "local", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"nmt-translate: {message}")


def test_an_address_of_another_form(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model", str(model), "--input", "x", "--ray", "ray://host:10001"])
    assert "expected local, auto or HOST:PORT, got 'ray://host:10001'" in capsys.readouterr().err


def test_without_the_package(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("ray", "ray.data"):  # an earlier test may have imported them
        monkeypatch.setitem(sys.modules, name, None)
    source = write_source(tmp_path / "source")
    assert main(["--model", str(model), "--input", str(source), "--ray", "local"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nmt-translate: --ray: the package ray is needed")
    assert line.endswith("install it with: pip install 'nmt[ray]'")


@needs_ray
def test_nobody_at_the_address(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source")
    assert main(["--model", str(model), "--input", str(source), "--ray", "127.0.0.1:9"]) == 2
    assert "--ray 127.0.0.1:9: no Ray cluster answers there" in capsys.readouterr().err
