"""The code that the drivers of all toolkits share: they answer requests with measurements.

A driver is a process of its own, in the environment of its toolkit. Requests and answers are lines
of JSON on standard input and output; whatever a toolkit prints goes to standard error.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")  # a second, of the times in /proc


class Trainer:
    """A model in training, in this process unless it says otherwise."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def update(self) -> int:
        """Make one whole update: batching, forward, backward, optimizer.

        Returns its target tokens without padding but with the end of each sentence.
        """
        raise NotImplementedError

    def resume(self) -> None:
        """Get ready for updates."""

    def pause(self) -> None:
        """Take no time of the processors until `resume`."""

    def close(self) -> None:
        """End what was started."""


class Decoder(Protocol):
    """A model that translates."""

    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Translate batches of sentences, which are given by their numbers.

        Returns the ids of each output without start and end.
        """


def serve(
    make_trainer: Callable[[argparse.Namespace], Trainer] | None,
    make_decoder: Callable[[argparse.Namespace], Decoder],
) -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["train", "decode"])
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--size", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--option", default="")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if arguments.work == "train":
        assert make_trainer is not None
        trainer = make_trainer(arguments)
    else:
        decoder = make_decoder(arguments)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if arguments.work == "train":
            answer = measure_training(trainer, request["updates"])
        else:
            answer = measure_decoding(decoder, request["batches"])
        print(json.dumps(answer), file=answers, flush=True)
    if arguments.work == "train":
        trainer.close()


def measure_training(trainer: Trainer, updates: int) -> dict[str, Any]:
    """The target tokens of some updates, the time they took, and the peak memory so far."""
    trainer.resume()
    clock = Clock(trainer.pid)
    tokens = sum(trainer.update() for _ in range(updates))
    answer = {"tokens": tokens, **clock.read(), "memory": peak_memory(trainer.pid)}
    trainer.pause()
    return answer


def measure_decoding(decoder: Decoder, batches: list[list[int]]) -> dict[str, Any]:
    """The translations of some batches, the time they took, and the peak memory so far."""
    clock = Clock(os.getpid())
    outputs = decoder.translate(batches)
    return {**clock.read(), "memory": peak_memory(os.getpid()), "outputs": outputs}


class Clock:
    """Time since it was made: on the wall, and that of the processors for a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.wall, self.processors = time.perf_counter(), processor_seconds(pid)

    def read(self) -> dict[str, float]:
        """Both in seconds; the second is the sum over all threads."""
        return {
            "seconds": time.perf_counter() - self.wall,
            "cpu_seconds": processor_seconds(self.pid) - self.processors,
        }


def processor_seconds(pid: int) -> float:
    """The time that the processors have worked for all threads of a process."""
    if pid == os.getpid():
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / CLOCK_TICKS  # utime and stime


def peak_memory(pid: int) -> int:
    """The most memory in bytes that a process has had resident."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").split("\n"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux says VmHWM of every process")
