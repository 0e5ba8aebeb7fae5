"""Trains and translates with this toolkit and others in turn, and compares their speeds."""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driver import Clock
from environments import PEERS, make_environment
from results import markdown, parts_in_order
from task import SENTENCES, SHAPES, STEPS, decoding_directory

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Contender:
    """Something to measure: a driver with an option, in a toolkit's environment."""

    name: str
    driver: str
    option: str = ""


TRAINING = (
    Contender("nmt softmax", "nmt", "softmax"),
    Contender("nmt rela-g", "nmt", "rela-g"),
    Contender("nmt softmax bfloat16", "nmt", "softmax,bfloat16"),
    Contender("marian", "marian"),
    Contender("fairseq", "fairseq"),
    Contender("opennmt", "opennmt"),
    Contender("eole", "eole"),
    Contender("huggingface", "huggingface", "sdpa"),
)
# Programs for translation in C++ are compared at every size, toolkits on torch at one.
DECODING = (
    Contender("nmt softmax", "nmt", "softmax"),
    Contender("nmt softmax int8", "nmt", "softmax,int8"),
    Contender("ctranslate2", "ctranslate2", "float32"),
    Contender("ctranslate2 int8", "ctranslate2", "int8"),
    Contender("marian", "marian", "float32"),
    Contender("marian int8", "marian", "int8"),
)
DECODING_ON_TORCH = (
    Contender("nmt rela-g", "nmt", "rela-g"),
    Contender("nmt rela-g int8", "nmt", "rela-g,int8"),
    Contender("fairseq", "fairseq"),
    Contender("opennmt", "opennmt"),
    Contender("eole", "eole"),
    Contender("huggingface", "huggingface", "sdpa"),
)


@dataclass(frozen=True)
class Part:
    """One question: all its contenders are measured in one run."""

    kind: str  # train | decode
    size: str
    threads: int
    batch: int = 0  # sentences
    amount: int = 1  # updates, or batches, of a turn

    def contenders(self) -> tuple[Contender, ...]:
        """Who is measured."""
        if self.kind == "train":
            return TRAINING
        return DECODING + (DECODING_ON_TORCH if self.size == "middle" else ())


MATRIX_PRODUCTS = 5
MATRIX_OPERATIONS = 2 * 1024**3  # of nmt.bench.machine.MatrixProduct

# Batches of a turn, by the size of the model and of the batch: a turn should last half a second at
# least. All are even numbers, for those who work on two batches at once.
AMOUNTS = {
    ("small", 64): 8, ("middle", 64): 4, ("base", 64): 2,
    ("small", 1): 64, ("middle", 1): 24, ("base", 1): 8,
}  # fmt: skip
PARTS = {
    "train-middle-2": Part("train", "middle", 2, amount=2),
    "train-base-2": Part("train", "base", 2),
    "train-middle-1": Part("train", "middle", 1),
    "train-base-1": Part("train", "base", 1),
} | {
    f"decode-{size}-{batch}-{threads}": Part("decode", size, threads, batch, AMOUNTS[size, batch])
    for size in SHAPES
    for batch in (64, 1)
    for threads in (1, 2)
}
GROUPS = {
    "train": ["train-middle-2", "train-base-2"],
    "train-one-thread": ["train-middle-1", "train-base-1"],
    "decode": [name for name in PARTS if name.startswith("decode")],
}
DEFAULT = ["train", "decode"]


def build_parser() -> argparse.ArgumentParser:
    """The arguments of the comparison."""
    parser = argparse.ArgumentParser(
        prog="recipes/speed/run.sh",
        description="Compare the speed and memory of training and decoding with those of other "
        "toolkits: the same data, shapes and (where their layers allow it) weights, everyone in a "
        "process and an environment of its own, in turn, round after round. Tables go to standard "
        "output and to WORK/results.md, all numbers to WORK/results.json, after every round. A "
        "comparison that was cut goes on where it was: rounds that the same version has measured "
        "on the same machine are kept.",
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "runs" / "speed", metavar="DIR",
        help="environments, data and results (default: runs/speed)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, default=ROOT / "data" / "multi30k_en_de", metavar="DIR",
        help="train and val in .en and .de, perhaps compressed, to train on (default: "
        "data/multi30k_en_de)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", nargs="*", choices=sorted(PEERS), default=sorted(PEERS), metavar="NAME",
        help=f"toolkits to compare with: {', '.join(sorted(PEERS))} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--parts", nargs="+", choices=[*GROUPS, *PARTS], default=DEFAULT, metavar="PART",
        help=f"what to measure: {', '.join(GROUPS)}, or one of {', '.join(PARTS)} "
        f"(default: {' '.join(DEFAULT)})",
    )  # fmt: skip
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall",
        help="which time counts; cpu, that of the processors for the process, is for machines that "
        "have other work to do, and exact with one thread only (default: wall)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument(
        "--again", action="store_true", help="discard the rounds that were measured before"
    )
    parser.add_argument(
        "--prepare-only", action="store_true", help="make environments, data and models, and stop"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The whole comparison."""
    arguments = build_parser().parse_args(argv)
    task = arguments.work / "task"
    interpreters = {
        name: make_environment(name, arguments.work / "environments") for name in arguments.peers
    }
    interpreters["nmt"] = Path(sys.executable)
    names = [one for name in arguments.parts for one in GROUPS.get(name, [name])]
    prepare([PARTS[name] for name in names], task, arguments.data)
    if arguments.prepare_only:
        return 0
    path = arguments.work / "results.json"
    results: dict[str, Any] = {"parts": {}}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    for name in names:
        found = new_part(PARTS[name], arguments.clock)
        earlier = results["parts"].get(name)
        if not arguments.again and earlier is not None and is_same(earlier, found):
            found["rounds"] = earlier["rounds"]
        for part in measure(PARTS[name], found, interpreters, task, arguments.rounds):
            results["parts"][name] = part
            results["parts"] = parts_in_order(results["parts"], list(PARTS))
            save(results, arguments.work)
    print(markdown(results))
    return 0


def save(results: dict[str, Any], work: Path) -> None:
    """Write what there is so far."""
    text = json.dumps(results, indent=1)
    (work / "results.json").write_text(f"{text}\n", encoding="utf-8")
    (work / "results.md").write_text(markdown(results), encoding="utf-8")


def prepare(parts: Sequence[Part], task: Path, data: Path) -> None:
    """Data for training and models for decoding, unless they are there."""
    from make_models import write_decoding
    from make_task import write_training

    if any(part.kind == "train" for part in parts) and not (task / "train.npz").exists():
        write_training(task, data)
    for size in sorted({part.size for part in parts if part.kind == "decode"}):
        if not (decoding_directory(task, size) / "decode.npz").exists():
            write_decoding(task, size)


def new_part(part: Part, clock: str) -> dict[str, Any]:
    """A result without rounds: the measured parts, the settings and the machine."""
    return {
        "kind": part.kind,
        "size": part.size,
        "threads": part.threads,
        "batch": part.batch,
        "clock": clock,
        "version": version(),
        "machine": machine(part.threads),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rounds": [],
    }


def is_same(earlier: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether rounds of an earlier run belong to this one."""
    return all(earlier[key] == now[key] for key in now if key not in ("date", "rounds"))


def machine(threads: int) -> str:
    """The machine and the operating system."""
    import torch

    from nmt.bench.machine import describe_machine

    torch.set_num_threads(threads)
    return str(replace(describe_machine(torch.device("cpu")), load=None))


def version() -> str:
    """Which state of this toolkit is measured; `dirty` if it has changes that are not committed."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        found = ""
    return found or "unknown"


class Driver:
    """The process of a contender."""

    def __init__(self, contender: Contender, part: Part, interpreter: Path, task: Path) -> None:
        command = [
            str(interpreter), str(HERE / f"drive_{contender.driver}.py"), part.kind,
            "--task", str(task.resolve()), "--size", part.size, "--threads", str(part.threads),
            "--batch", str(part.batch), "--option", contender.option,
        ]  # fmt: skip
        # Threads that wait go to sleep soon, for everyone alike: see nmt/cli/console.py.
        environment = {
            **os.environ,
            "GOMP_SPINCOUNT": "10000",
            "OMP_NUM_THREADS": str(part.threads),
        }
        self.name = contender.name
        self.log = (task.parent / f"{contender.driver}.log").open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its answer to a request."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped; see {self.log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and those that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


@contextmanager
def drivers(part: Part, interpreters: dict[str, Path], task: Path) -> Iterator[list[Driver]]:
    """The processes of all contenders, ready."""
    with ExitStack() as stack:
        started = []
        for contender in part.contenders():
            if contender.driver in interpreters:
                driver = Driver(contender, part, interpreters[contender.driver], task)
                stack.callback(driver.close)
                driver.answer()
                started.append(driver)
        yield started


def measure(
    part: Part, found: dict[str, Any], interpreters: dict[str, Path], task: Path, rounds: int
) -> Iterator[dict[str, Any]]:
    """The part after each of the rounds that it lacks."""
    import torch

    from nmt.bench.machine import MatrixProduct

    missing = rounds - len(found["rounds"])
    if missing <= 0:
        return
    torch.set_num_threads(part.threads)
    product = MatrixProduct(torch.device("cpu"))
    matrix_rate(product, part, found["clock"])
    warm_up, request = requests_of(part)
    with drivers(part, interpreters, task) as started:
        for driver in started:  # what the first call takes is nobody's
            check(driver.name, driver.ask(warm_up))
        for _ in range(missing):
            number = len(found["rounds"])
            rate = matrix_rate(product, part, found["clock"])
            # Every other round the other way round: nobody always follows the same neighbour.
            measured = {
                driver.name: check(driver.name, driver.ask(request))
                for driver in (started if number % 2 == 0 else reversed(started))
            }
            in_order = {driver.name: measured[driver.name] for driver in started}
            found["rounds"].append({"matrix_rate": rate, "measured": in_order})
            title = f"{part.kind} {part.size}, batch {part.batch}, {part.threads} threads"
            print(f"{title}: round {number + 1} of {rounds}", file=sys.stderr)
            yield found


def check(name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with the number of its outputs instead of them, which all have the right length.

    Some toolkits score the end of an output, which is a step; others stop without.
    """
    outputs = answer.pop("outputs", None)
    if outputs is not None:
        lengths = {len(output) for output in outputs}
        if not lengths <= {STEPS - 1, STEPS}:
            raise SystemExit(f"{name}: expected outputs of {STEPS} tokens, got {sorted(lengths)}")
        answer["sentences"] = len(outputs)
    return answer


def matrix_rate(product: Callable[[], None], part: Part, clock: str) -> float:
    """Operations a second of a large matrix product, by the same clock as all else."""
    watch = Clock(os.getpid())
    for _ in range(MATRIX_PRODUCTS):
        product()
    found = watch.read()
    seconds = found["cpu_seconds"] / part.threads if clock == "cpu" else found["seconds"]
    return MATRIX_PRODUCTS * MATRIX_OPERATIONS / seconds


def requests_of(part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """The requests that warm up, and those that are measured."""
    if part.kind == "train":
        return {"updates": 1}, {"updates": part.amount}
    batches = [
        [number % SENTENCES for number in range(start, start + part.batch)]
        for start in range(0, part.amount * part.batch, part.batch)
    ]
    return {"batches": batches[:2]}, {"batches": batches}


if __name__ == "__main__":
    sys.exit(main())
