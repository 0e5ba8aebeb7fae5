"""A worker process: loads the models and answers the messages of the server until they end.

It ignores the signals of a terminal and of a service manager, which go to all processes: the server
decides when a worker ends, by closing its standard input.
"""

import contextlib
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.checkpoint.packed import is_packed
from nmt.data.encoding import available_cores
from nmt.decoding.translation import Line, Translation
from nmt.errors import DivergedError, UserError, missing_package
from nmt.serving.messages import Message, WorkerPlan, encode_message, read_message
from nmt.serving.worker_model import WorkerModel, load_packed_model


def load(name: str, directory: str, plan: WorkerPlan) -> WorkerModel:
    """The model of a model or run directory; a packed one is loaded without torch."""
    path = Path(directory)
    if is_packed(path):
        return load_packed_model(name, path, plan)
    try:
        from nmt.serving.torch_model import load_torch_model
    except ModuleNotFoundError as error:
        raise missing_package(error) from error

    return load_torch_model(name, path, plan)


def translate(model: WorkerModel, message: Message) -> Message:
    """The translations of some lines."""
    options = dataclasses.replace(model.options, nbest=message["nbest"])
    lines = [Line(number, text) for number, text in enumerate(message["items"])]
    found = dict(model.translator.translate_lines(lines, options))
    return {"answers": [describe_translation(found[number]) for number in range(len(lines))]}


def describe_translation(translation: Translation) -> dict[str, Any]:
    """A translation as plain values; `nbest` has all that were asked for."""
    if translation.failure is not None:
        return {"failure": str(translation.failure)}
    return {
        "num_dropped": translation.num_dropped,
        "nbest": [
            {"text": one.text, "score": one.score, "log_probability": one.log_probability}
            for one in translation.nbest or (translation,)
        ],
    }


def attend(model: WorkerModel, message: Message) -> Message:
    """The attention of sentence pairs, or of sentences and their translations."""
    found = [model.attend(item["source"], item["target"]) for item in message["items"]]
    return {"answers": found}


TASKS = {"translate": translate, "attention": attend}


def answer(models: Mapping[str, WorkerModel], message: Message) -> Message:
    """The answer to a message of the server."""
    try:
        return TASKS[message["task"]](models[message["model"]], message)
    except UserError as error:
        status = 500 if isinstance(error, DivergedError) else 400
        return {"answers": [{"failure": str(error), "status": status}] * len(message["items"])}


def main() -> None:
    """Load the models of the first message, then answer the others until the server is gone."""
    with contextlib.suppress(BrokenPipeError):
        work()


def work() -> None:
    """Answer all messages on standard input."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not come between messages

    def send(message: Message) -> None:
        output.write(encode_message(message))
        output.flush()

    first = read_message(sys.stdin.buffer)
    if first is None:
        return
    plan = WorkerPlan(**first)
    try:
        models = {name: load(name, path, plan) for name, path in plan.models.items()}
    except UserError as error:
        send({"error": str(error), "kind": type(error).__name__})
        return
    on_cpu = next(iter(models.values())).translator.models.device_type == "cpu"
    facts = [dataclasses.asdict(model.facts) for model in models.values()]
    send({"models": facts, "advised": available_cores() if on_cpu else 1})
    while (message := read_message(sys.stdin.buffer)) is not None:
        send(answer(models, message))


if __name__ == "__main__":
    main()
