"""Trains and translates with this toolkit and others in turn, and compares their speeds."""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import Clock
from environments import PEERS, make_environment
from results import markdown
from task import DecodingData

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SMALL_MODEL = ("model.dim=256", "model.heads=4", "model.encoder_layers=3", "model.decoder_layers=3",
               "model.feed_forward_dim=1024")  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """Something to measure: a driver with an option, in a toolkit's environment."""

    name: str
    driver: str
    option: str = ""


TRAINING = (
    Contender("nmt softmax", "nmt", "softmax"),
    Contender("nmt rela-g", "nmt", "rela-g"),
    Contender("fairseq", "fairseq"),
    Contender("opennmt", "opennmt"),
    Contender("marian", "marian", "sdpa"),
)
DECODING = (
    Contender("nmt softmax", "nmt", "softmax"),
    Contender("nmt rela-g", "nmt", "rela-g"),
    Contender("nmt softmax int8", "nmt", "softmax,int8"),
    Contender("nmt rela-g int8", "nmt", "rela-g,int8"),
    Contender("fairseq", "fairseq"),
    Contender("opennmt", "opennmt"),
    Contender("marian", "marian", "sdpa"),
    Contender("ctranslate2 float32", "ctranslate2", "float32"),
    Contender("ctranslate2 int8", "ctranslate2", "int8"),
)


@dataclass(frozen=True)
class Part:
    """One question: all its contenders are measured in one run."""

    title: str
    kind: str  # train | decode
    threads: int
    size: str = "small"
    batch: int = 0
    share: int = 1  # of the test set one batch in so many is translated


MATRIX_PRODUCTS = 5
MATRIX_OPERATIONS = 2 * 1024**3  # of nmt.bench.machine.MatrixProduct

PARTS = {
    "train-small": Part("Training, 256 wide, 3+3 layers, 2 threads", "train", 2),
    "train-base": Part("Training, Transformer-base, 2 threads", "train", 2, size="base"),
    "train-small-1": Part("Training, 256 wide, 3+3 layers, 1 thread", "train", 1),
    "train-base-1": Part("Training, Transformer-base, 1 thread", "train", 1, size="base"),
    "decode-64-2": Part("Decoding, batch 64, 2 threads", "decode", 2, batch=64, share=4),
    "decode-64-1": Part("Decoding, batch 64, 1 thread", "decode", 1, batch=64, share=4),
    "decode-1-2": Part("Decoding, batch 1, 2 threads", "decode", 2, batch=1, share=40),
    "decode-1-1": Part("Decoding, batch 1, 1 thread", "decode", 1, batch=1, share=40),
}


def build_parser() -> argparse.ArgumentParser:
    """The arguments of the comparison."""
    parser = argparse.ArgumentParser(
        prog="recipes/speed/run.sh",
        description="Compare the speed of training and decoding with that of other toolkits: the "
        "same data, shapes and (where their layers allow it) weights, everyone in a process and "
        "an environment of its own, in turn, round after round. Tables go to standard output, all "
        "numbers to WORK/results.json, the tables also to WORK/results.md, after every round. A "
        "part that is measured again replaces what there is of it.",
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "runs" / "speed", metavar="DIR",
        help="environments, data and results (default: runs/speed)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, default=ROOT / "data" / "multi30k_en_de", metavar="DIR",
        help="train, val and test_2016_flickr in .en and .de, perhaps compressed (default: "
        "data/multi30k_en_de)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", nargs="*", choices=sorted(PEERS), default=sorted(PEERS), metavar="NAME",
        help=f"toolkits to compare with: {', '.join(sorted(PEERS))} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART",
        help=f"what to measure: {', '.join(PARTS)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall",
        help="which time counts; cpu, that of the processors for the process, is for machines that "
        "have other work to do, and exact with one thread only (default: wall)",
    )  # fmt: skip
    parser.add_argument(
        "--softmax", type=Path, metavar="DIR",
        help="a trained model with softmax attention and tied embeddings to decode with (default: "
        "train one, about an hour on two cores)",
    )  # fmt: skip
    parser.add_argument(
        "--rela-g", type=Path, metavar="DIR",
        help="the same with ReLA-g attention (default: train one)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the rounds that were measured before, and add to them",
    )
    parser.add_argument(
        "--updates", type=int, default=3, metavar="N",
        help="of training in a turn; Transformer-base has one (default: 3)",
    )  # fmt: skip
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
    prepare(arguments, task)
    if arguments.prepare_only:
        return 0
    path = arguments.work / "results.json"
    results: dict[str, Any] = {"parts": {}}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    results["machine"] = machine()
    for name in arguments.parts:
        earlier = results["parts"].get(name) if arguments.add else None
        for part in measure(PARTS[name], interpreters, task, arguments, earlier):
            results["parts"][name] = part
            save(results, arguments.work)
    print(markdown(results))
    return 0


def save(results: dict[str, Any], work: Path) -> None:
    """Write what there is so far."""
    parts = results["parts"]
    results["parts"] = {name: parts[name] for name in PARTS if name in parts}
    text = json.dumps(results, indent=1)
    (work / "results.json").write_text(f"{text}\n", encoding="utf-8")
    (work / "results.md").write_text(markdown(results), encoding="utf-8")


def prepare(arguments: argparse.Namespace, task: Path) -> None:
    """Data for training and models for decoding, unless they are there."""
    from make_task import find_text, read_lines, write_decoding, write_training

    if not (task / "train.npz").exists():
        write_training(task, arguments.data)
    decoding = any(PARTS[name].kind == "decode" for name in arguments.parts)
    if not decoding or (task / "task.json").exists():
        return
    models = {
        "softmax": arguments.softmax or train("softmax", task),
        "rela-g": arguments.rela_g or train("rela-g", task),
    }
    lines = read_lines(find_text(arguments.data, "test_2016_flickr.en"))
    write_decoding(task, lines, models)


def train(kind: str, task: Path) -> Path:
    """A trained model of the small size; a training that was cut goes on."""
    run = task / f"run-{kind}"
    command = [sys.executable, "-m", "nmt.cli.train", "--config", str(task / "config.yaml")]
    settings = (
        f"run_dir={run.resolve()}",
        f"model.attention={kind}",
        *SMALL_MODEL,
        "model.dropout=0.3",
        "train.max_updates=2000",
        "train.schedule.warmup=400",
        "train.save_every=500",
    )
    subprocess.run([*command, *settings], check=True, stdout=sys.stderr)
    return run


def machine() -> str:
    """What it ran on."""
    import torch

    from nmt.bench.machine import describe_machine

    return str(describe_machine(torch.device("cpu")))


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
            "--option", contender.option,
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
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What it answers to a request."""
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
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.log.close()


@contextmanager
def drivers(part: Part, interpreters: dict[str, Path], task: Path) -> Iterator[list[Driver]]:
    """The processes of all contenders, ready."""
    contenders = TRAINING if part.kind == "train" else DECODING
    with ExitStack() as stack:
        started = []
        for contender in contenders:
            if contender.driver in interpreters:
                driver = Driver(contender, part, interpreters[contender.driver], task)
                stack.callback(driver.close)
                started.append(driver)
        for driver in started:
            driver.answer()
        yield started


def measure(
    part: Part,
    interpreters: dict[str, Path],
    task: Path,
    arguments: argparse.Namespace,
    earlier: dict[str, Any] | None,
) -> Iterator[dict[str, Any]]:
    """The part after each of its rounds, which come after those of an earlier run."""
    import torch

    from nmt.bench.machine import MatrixProduct

    torch.set_num_threads(part.threads)
    product = MatrixProduct(torch.device("cpu"))
    matrix_rate(product, part, arguments.clock)
    sentences = len(DecodingData(task).sentences) if part.kind == "decode" else 0
    requests = requests_of(part, sentences, arguments.updates)
    found: dict[str, Any] = {
        "title": part.title,
        "kind": part.kind,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "threads": part.threads,
        "clock": arguments.clock,
        "version": version(),
        "rounds": [] if earlier is None else earlier["rounds"],
    }
    outputs: dict[str, Any] = {}
    with drivers(part, interpreters, task) as started:
        for driver in started:  # what the first call takes is nobody's
            driver.ask(requests[0])
        for number in range(arguments.rounds):
            measured = {}
            rate = matrix_rate(product, part, arguments.clock)
            # Every other round the other way round: nobody always follows the same neighbour.
            for driver in started if number % 2 == 0 else reversed(started):
                answer = driver.ask(requests[1])
                outputs[driver.name] = answer.pop("outputs", None)
                if part.kind == "decode":
                    answer["sentences"] = len(outputs[driver.name])
                measured[driver.name] = answer
            order = [driver.name for driver in started]
            one = {"matrix_rate": rate, "measured": {name: measured[name] for name in order}}
            found["rounds"].append(one)
            if part.kind == "decode":
                found["agreement"] = agreement(outputs)
            print(f"{part.title}: round {number + 1} of {arguments.rounds}", file=sys.stderr)
            yield found


def matrix_rate(product: Callable[[], None], part: Part, clock: str) -> float:
    """Operations a second of a large matrix product, by the same clock as all else."""
    watch = Clock()
    for _ in range(MATRIX_PRODUCTS):
        product()
    found = watch.read()
    seconds = found["cpu_seconds"] / part.threads if clock == "cpu" else found["seconds"]
    return MATRIX_PRODUCTS * MATRIX_OPERATIONS / seconds


def requests_of(part: Part, sentences: int, updates: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What warms up, and what is measured."""
    if part.kind == "train":
        return {"updates": 1}, {"updates": 1 if part.size == "base" else updates}
    starts = range(0, sentences - part.batch + 1, part.batch)
    chosen = list(starts)[part.share // 2 :: part.share]
    batches = [list(range(start, start + part.batch)) for start in chosen]
    return {"batches": batches[-1:]}, {"batches": batches}


def agreement(outputs: dict[str, list[list[int]]]) -> dict[str, float | None]:
    """The share of translations that are ours; none for what has other weights."""
    ours = outputs.get("nmt softmax")
    if ours is None:
        return {}
    return {
        name: None
        if name.startswith(("opennmt", "nmt rela-g"))
        else sum(a == b for a, b in zip(found, ours, strict=True)) / len(ours)
        for name, found in outputs.items()
    }


if __name__ == "__main__":
    sys.exit(main())
