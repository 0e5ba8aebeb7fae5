"""A worker process: loads the models and answers the messages of the server until they end.

It ignores the signals of a terminal and of a service manager, which go to all processes: the server
decides when a worker ends, by closing its standard input.
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nmt.analysis.analyze import describe_attention
from nmt.checkpoint.model_directory import LoadedModel, read_config
from nmt.checkpoint.selection import find_model
from nmt.config.search_options import SearchOptions
from nmt.decoding.alignment import AlignmentHead, recommended_head
from nmt.decoding.torch_models import TorchModels
from nmt.decoding.translation import Line, Precision, Translation
from nmt.decoding.translator import Translator
from nmt.errors import DivergedError, UserError
from nmt.serving.attention import attention_of_pair
from nmt.serving.messages import Message, ServedModel, WorkerPlan, encode_message, read_message
from nmt.storage.manifest import MANIFEST, SealedDirectory


@dataclass(frozen=True)
class WorkerModel:
    """A model that is ready to translate and to be looked into."""

    facts: ServedModel
    translator: Translator
    options: SearchOptions
    loaded: LoadedModel
    alignment: AlignmentHead


def load(name: str, directory: str, plan: WorkerPlan) -> WorkerModel:
    """The model of a model or run directory."""
    path = find_model(Path(directory))
    version = read_version(path)
    translator = Translator.load(
        path,
        device=plan.device,
        precision=cast(Precision, plan.precision),
        int8=plan.int8,
        threads=plan.threads,
    )
    config = read_config(SealedDirectory(path))
    if read_version(path) != version:
        return load(name, directory, plan)  # it was replaced meanwhile
    assert isinstance(translator.models, TorchModels)
    member = translator.models.members[0]
    loaded = LoadedModel(config, member.codec, member.model, path)
    facts = ServedModel(
        name=name,
        path=str(path),
        source=config.data.source_language,
        target=config.data.target_language,
        version=version,
        beam=plan.search.get("beam", config.decode.beam),
        attention=describe_attention(loaded),
        layers={
            "encoder_self": config.model.encoder_layers,
            "decoder_self": config.model.decoder_layers,
            "cross": config.model.decoder_layers,
        },
        heads=config.model.heads,
    )
    options = dataclasses.replace(
        SearchOptions.of(config.decode), fill_memory="batch_tokens" not in plan.search,
        **plan.search,
    )  # fmt: skip
    return WorkerModel(facts, translator, options, loaded, recommended_head(path))


def read_version(path: Path) -> str:
    """The hash of the manifest, which has the hashes of all files of a model."""
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


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
    return {
        "answers": [
            attention_of_pair(
                model.loaded,
                model.translator,
                model.options,
                model.alignment,
                name=model.facts.name,
                source=item["source"],
                target=item["target"],
            )
            for item in message["items"]
        ]
    }


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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
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
    device = next(iter(models.values())).translator.models.device_type
    facts = [dataclasses.asdict(model.facts) for model in models.values()]
    send({"models": facts, "device": device})
    while (message := read_message(sys.stdin.buffer)) is not None:
        send(answer(models, message))


if __name__ == "__main__":
    main()
