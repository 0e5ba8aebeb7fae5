"""What the drivers of all toolkits share: they wait for requests and answer with measurements.

A driver is a process of its own, in the environment of its toolkit. Requests and answers are lines
of JSON on standard input and output; whatever a toolkit prints goes to standard error.

A trainer has `update()`, which makes one whole update (batching, forward, backward, optimizer) and
returns its target tokens without padding but with the end of each sentence. A decoder has
`translate(numbers)`, which translates the sentences of those numbers as one batch and returns the
numbers of each output without start and end.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Trainer(Protocol):
    """A model in training."""

    def update(self) -> int: ...


class Decoder(Protocol):
    """A model that translates."""

    def translate(self, numbers: list[int]) -> list[list[int]]: ...


def serve(
    make_trainer: Callable[[argparse.Namespace], Trainer] | None,
    make_decoder: Callable[[argparse.Namespace], Decoder],
) -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["train", "decode"])
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--size", default="small")
    parser.add_argument("--threads", type=int, required=True)
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


def measure_training(trainer: Trainer, updates: int) -> dict[str, Any]:
    """The target tokens of some updates and the time they took."""
    clock = Clock()
    tokens = sum(trainer.update() for _ in range(updates))
    return {"tokens": tokens, **clock.read()}


def measure_decoding(decoder: Decoder, batches: list[list[int]]) -> dict[str, Any]:
    """The translations of some batches and the time they took."""
    clock = Clock()
    outputs = [output for batch in batches for output in decoder.translate(batch)]
    return {**clock.read(), "outputs": outputs}


class Clock:
    """Time since it was made: on the wall, and that of the processors for this process."""

    def __init__(self) -> None:
        self.wall, self.processors = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Both in seconds; the second is the sum over all threads."""
        return {
            "seconds": time.perf_counter() - self.wall,
            "cpu_seconds": time.process_time() - self.processors,
        }
