"""The mean of several checkpoints of a run, which translates better than each of them."""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.model_directory import CONFIG, MODEL, STATE, is_codec_file, read_config
from nmt.checkpoint.store import STEP_NAME
from nmt.errors import DivergedError
from nmt.storage.directories import Writer, bytes_writer, json_writer
from nmt.storage.hashing import ByteSink, HashingReader
from nmt.storage.manifest import SealedDirectory
from nmt.storage.tensors import (
    ModelMismatchError,
    TensorSpec,
    bytes_of,
    check_specs,
    encode_header,
    read_header,
    read_one,
)

logger = logging.getLogger(__name__)

CHUNK = 1 << 20  # numbers (or bytes) at a time, so that memory does not grow with the model
AVERAGE_OF = "average_of"


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Writer]:
    """The files of a model directory with the mean weights; the order of paths does not matter.

    The inputs are verified while the files are written. They must have one configuration of the
    model and one codec.
    """
    assert paths, "nothing to average"
    # Sums of float64 might depend on the order in their last bit, so the order is fixed.
    inputs = sorted((SealedDirectory(path) for path in paths), key=lambda item: item.digest)
    newest = max(inputs, key=lambda item: (step_of(item) or 0, item.digest))
    for other in inputs:
        check_same_model(newest, other)
    codec = {
        name: functools.partial(copy_file, newest, name)
        for name in newest.entries
        if is_codec_file(name)
    }
    return {
        CONFIG: bytes_writer(newest.read_bytes(CONFIG)),
        **codec,
        STATE: json_writer(describe(inputs)),
        MODEL: lambda sink: write_mean(inputs, sink),
    }


def copy_file(directory: SealedDirectory, name: str, sink: ByteSink) -> None:
    """Write the verified content of a file."""
    with directory.open(name) as reader:
        while reader.remaining:
            sink.write(reader.read(min(CHUNK, reader.remaining)))


def step_of(directory: SealedDirectory) -> int | None:
    """The update after which a model was saved, as far as it is known."""
    match = STEP_NAME.fullmatch(directory.path.resolve().name)
    if match:
        return int(match[1])
    if STATE in directory.entries:
        step = directory.read_json(STATE).get("step")
        return step if isinstance(step, int) else None
    return None


def describe(inputs: Sequence[SealedDirectory]) -> dict[str, Any]:
    """What state.json says: which directories went in, and what was in them."""
    rows = [
        {"path": str(item.path.resolve()), "step": step_of(item), "digest": item.digest}
        for item in inputs
    ]
    rows.sort(key=lambda row: (row["step"] or 0, row["path"]))
    newest = max(inputs, key=lambda item: (step_of(item) or 0, str(item.path)))
    facts = newest.read_json(STATE) if STATE in newest.entries else {}
    return {
        "step": max((row["step"] or 0 for row in rows), default=0),
        "alignment_head": facts.get("alignment_head"),
        AVERAGE_OF: rows,
    }


def check_same_model(one: SealedDirectory, other: SealedDirectory) -> None:
    """Raise a ModelMismatchError that names what differs in configuration or codec."""
    before, after = read_config(one), read_config(other)
    rows = differences(before.model, after.model, "model")
    for name in sorted(filter(is_codec_file, one.entries | other.entries)):
        if one.entries.get(name) != other.entries.get(name):
            rows.append(f"{name} is another file")
    if rows:
        raise ModelMismatchError(
            f"{other.path} is another model than {one.path}: {'; '.join(rows[:5])}"
        )
    if before.seed != after.seed:
        logger.warning(
            "%s was trained with seed %d, %s with seed %d; the mean of unrelated models is useless",
            other.path,
            after.seed,
            one.path,
            before.seed,
        )


def differences(before: Any, after: Any, key: str) -> list[str]:
    """`key: before -> after` for each value in which two configurations differ."""
    if before == after:
        return []
    if not dataclasses.is_dataclass(before) or type(before) is not type(after):
        return [f"{key}: {before} -> {after}"]
    return [
        row
        for item in dataclasses.fields(before)
        for row in differences(
            getattr(before, item.name), getattr(after, item.name), f"{key}.{item.name}"
        )
    ]


def write_mean(inputs: Sequence[SealedDirectory], sink: ByteSink) -> None:
    """Write model.safetensors with the mean of all; a damaged input raises at its end at latest."""
    with ExitStack() as stack:
        readers = [stack.enter_context(item.open(MODEL)) for item in inputs]
        headers = [read_header(reader) for reader in readers]
        for reader, header in zip(readers, headers, strict=True):
            check_specs(header, headers[0], reader.name)
            if list(header) != list(headers[0]):
                raise ModelMismatchError(f"{reader.name}: its tensors are in another order")
        sink.write(encode_header(headers[0]))
        for name, spec in headers[0].items():
            count = spec.num_bytes // spec.dtype.itemsize
            for start in range(0, count, CHUNK):
                size = min(CHUNK, count - start)
                chunk = TensorSpec(spec.dtype, (size,))
                sink.write(
                    bytes_of(mean([read_one(item, chunk) for item in readers], name, readers))
                )


def mean(parts: Sequence[Tensor], name: str, readers: Sequence[HashingReader]) -> Tensor:
    """The mean of equally long vectors in their own dtype; integers must agree."""
    if not parts[0].dtype.is_floating_point:
        if any(not torch.equal(part, parts[0]) for part in parts):
            raise ModelMismatchError(f"tensor {name} holds integers that differ: it has no mean")
        return parts[0]
    for part, reader in zip(parts, readers, strict=True):
        if not torch.isfinite(part).all():
            raise DivergedError(f"{reader.name}: {name} holds NaN or infinite numbers")
    total = parts[0].to(torch.float64)
    for part in parts[1:]:
        total += part
    return (total / len(parts)).to(parts[0].dtype)
