"""Measures nmt-serve under load from another process, and compares each answer with nmt-translate.

    python scripts/measure_serving.py --model DIR --input FILE [--requests 1000] [--connections 50]
        [--lines 1] [--rounds 3] [--speed] [--kills 0]

Each round sends the lines of the file, 1 to --lines of them per request, to a server at a free port
of 127.0.0.1. It prints how many requests had which status, how many answers are not those of
nmt-translate, the times of the requests, elapsed time and CPU time, and the memory of the server.
With --speed, nmt-translate translates the same lines after each round. With --kills, workers are
killed under load, one at a time.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LANGUAGES = {"source": "auto", "target": ""}


@dataclass
class Tally:
    """The answers to the requests of a round."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    elapsed: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {key}" for key, count in self.statuses.items())
        ordered = sorted(self.seconds)
        half, most = (ordered[int(share * len(ordered))] for share in (0.5, 0.99))
        return (
            f"{counts}, {self.wrong} wrong; half within {half:.3f} s, 99 % within {most:.3f} s; "
            f"{self.elapsed:.2f} s"
        )


@dataclass(frozen=True)
class Text:
    """The text of a request and its translation by the command."""

    source: str
    expected: str


def processes(parent: int) -> list[int]:
    """The ids of a server and of its workers."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
    return [parent, *map(int, children.split())]


def cpu_seconds(parent: int) -> float:
    """The CPU time of a server, of its workers, and of those that have ended."""
    total = 0
    for number in processes(parent):
        with contextlib.suppress(OSError):
            after_name = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2]
            times = after_name.split()[11:15]  # user and system time, and those of ended children
            total += sum(map(int, times if number == parent else times[:2]))
    return total / TICKS


def megabytes(parent: int) -> list[float]:
    """The resident memory of a server and of its workers."""
    pages = [
        int(Path(f"/proc/{number}/statm").read_text(encoding="utf-8").split()[1])
        for number in processes(parent)
    ]
    return [round(count * PAGE_BYTES / 1e6, 1) for count in pages]


@contextlib.contextmanager
def serving(model: str, log: Path, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """A server at a free port: its process id and its port."""
    command = [sys.executable, "-m", "nmt.cli.serve", "--model", model, "--port", "0", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        while not (found := re.search(r"serving at http://[^:]*:(\d+)", log.read_text())):
            if process.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.1)
        yield process.pid, int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def translate(model: str, source: Path, options: Sequence[str]) -> tuple[list[str], float, float]:
    """The lines that nmt-translate writes, its CPU time and its elapsed time."""
    output = source.with_suffix(".translated")
    command = [sys.executable, "-m", "nmt.cli.translate", "--model", model]
    before, start = os.times(), time.monotonic()
    subprocess.run(
        [*command, "--input", source, "--output", output, *options],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return output.read_text().split("\n")[:-1], used, time.monotonic() - start


async def ask(port: int, texts: Iterator[Text], tally: Tally) -> None:
    """Send requests on one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for text in texts:
        body = json.dumps({"q": text.source, **LANGUAGES}).encode()
        start = time.monotonic()
        writer.write(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        answer = json.loads(await reader.readexactly(int(length[1])))
        tally.seconds.append(time.monotonic() - start)
        status = head.split(b" ", 2)[1].decode()
        tally.statuses[f"with status {status}"] += 1
        tally.wrong += status == "200" and answer["translatedText"] != text.expected
    writer.close()


async def loaded_workers(port: int) -> int:
    """The number of workers that are ready to translate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    found = re.search(rb"^nmt_workers (\d+)", await reader.read(), re.M)
    writer.close()
    return int(found[1]) if found else 0


async def kill_workers(server: int, port: int, count: int) -> None:
    """Kill a worker, wait until it has been replaced, and do so again."""
    workers = len(processes(server)) - 1
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.1, 0.5))
        while await loaded_workers(port) < workers:
            await asyncio.sleep(0.05)
        os.kill(random.choice(processes(server)[1:]), signal.SIGKILL)
        await asyncio.sleep(0.3)


async def load(
    server: int, port: int, texts: Sequence[Text], *, connections: int, kills: int
) -> Tally:
    """Send all texts; with `kills`, go on until that many workers were killed."""
    tally = Tally()
    killing = asyncio.create_task(kill_workers(server, port, kills))

    def feed() -> Iterator[Text]:
        yield from texts
        while not killing.done():
            yield from texts[: len(texts) // 10 + 1]

    feeding = feed()
    start = time.monotonic()
    results = await asyncio.gather(
        *(ask(port, feeding, tally) for _ in range(connections)), return_exceptions=True
    )
    tally.elapsed = time.monotonic() - start
    tally.statuses["lost connections"] = sum(
        isinstance(result, BaseException) for result in results
    )
    await killing
    return tally


def cut(lines: Sequence[str], translations: Sequence[str], count: int, longest: int) -> list[Text]:
    """Texts of 1 to `longest` lines, always the same."""
    sizes, texts, place = random.Random(1), [], 0
    while len(texts) < count:
        size = sizes.randint(1, longest)
        chosen = [number % len(lines) for number in range(place, place + size)]
        place += size
        parts = ("\n".join(side[number] for number in chosen) for side in (lines, translations))
        texts.append(Text(*parts))
    return texts


def main() -> None:
    """Start a server, and compare it with the command in each round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--model", required=True, help="model or run directory")
    add("--input", type=Path, required=True, help="text, one sentence per line")
    add("--requests", type=int, default=1000)
    add("--connections", type=int, default=50)
    add("--lines", type=int, default=1, help="most lines of a request")
    add("--rounds", type=int, default=3)
    add("--workers", default="2")
    add("--kills", type=int, default=0, help="workers to kill in each round")
    add("--speed", action="store_true", help="measure nmt-translate in each round, too")
    given = parser.parse_args()
    options = ["--workers", given.workers]
    lines = given.input.read_text(encoding="utf-8").split("\n")[:-1]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        one, every = directory / "one", directory / "every"
        one.write_text(f"{lines[0]}\n", encoding="utf-8")
        every.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        translations, _, _ = translate(given.model, every, options)
        texts = cut(lines, translations, given.requests, given.lines)
        every.write_text("".join(f"{text.source}\n" for text in texts), encoding="utf-8")
        with serving(given.model, directory / "log", options) as (server, port):
            print(f"before: {megabytes(server)} MB of server and workers", flush=True)
            for number in range(1, given.rounds + 1):
                used = cpu_seconds(server)
                tally = asyncio.run(
                    load(server, port, texts, connections=given.connections, kills=given.kills)
                )
                used = cpu_seconds(server) - used
                print(
                    f"round {number}: {tally}, {used:.2f} s of CPU; {megabytes(server)} MB",
                    flush=True,
                )
                if given.speed:
                    _, start_cpu, start = translate(given.model, one, options)
                    _, cpu, elapsed = translate(given.model, every, options)
                    cpu, elapsed = cpu - start_cpu, elapsed - start
                    print(
                        f"    nmt-translate without its start: {elapsed:.2f} s, {cpu:.2f} s of "
                        f"CPU; the server has {cpu / used:.2f} of its speed by CPU time",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
