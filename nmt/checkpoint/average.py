"""The mean of several checkpoints of a run, which translates better than each of them."""

import functools
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.model_directory import (
    CONFIG_FILE,
    STATE,
    WEIGHTS_FILE,
    ModelMismatchError,
    is_codec_file,
    read_config,
)
from nmt.checkpoint.store import STEP_NAME
from nmt.config.differences import differences
from nmt.errors import DivergedError
from nmt.storage.arrays import check_specs
from nmt.storage.directories import Writer, bytes_writer, json_writer
from nmt.storage.manifest import SealedDirectory
from nmt.storage.tensors import open_tensors, tensors_writer

logger = logging.getLogger(__name__)

AVERAGE_OF = "average_of"  # the keys in state.json
VALIDATION_SCORE = "validation_score"

# The score of weights on the validation set of the run.
Measure = Callable[[Mapping[str, Tensor]], float]


def average_checkpoints(
    paths: Sequence[Path], *, measure: Measure | None = None
) -> dict[str, Writer]:
    """The files of a model directory with the mean weights; the order of paths does not matter.

    The inputs are verified while their weights are read: when the files are written or, if they
    are measured, before. They must have one configuration of the model and one codec.
    """
    inputs = open_inputs(paths)
    newest = max(inputs, key=lambda item: (step_of(item) or 0, item.digest))
    for other in inputs:
        check_same_model(newest, other)
    weights = functools.cache(functools.partial(mean_weights, inputs))
    state = average_state(inputs, newest)
    if measure is not None:
        state[VALIDATION_SCORE] = measure(weights())
    codec = {
        name: functools.partial(copy_file, newest, name)
        for name in newest.entries
        if is_codec_file(name)
    }
    return {
        CONFIG_FILE: bytes_writer(newest.read_bytes(CONFIG_FILE)),
        **codec,
        STATE: json_writer(state),
        WEIGHTS_FILE: lambda path: tensors_writer(weights())(path),
    }


def open_inputs(paths: Sequence[Path]) -> list[SealedDirectory]:
    """The directories to average, in an order that does not depend on that of the paths."""
    assert paths, "nothing to average"
    # Sums of float64 might depend on the order in their last bit, so the order is fixed.
    return sorted((SealedDirectory(path) for path in paths), key=lambda item: item.digest)


def copy_file(directory: SealedDirectory, name: str, path: Path) -> None:
    """Write the verified content of a file."""
    with directory.open(name) as original:
        shutil.copyfile(original, path)


def step_of(directory: SealedDirectory) -> int | None:
    """The update after which a model was saved, as far as it is known."""
    match = STEP_NAME.fullmatch(directory.path.resolve().name)
    if match:
        return int(match[1])
    if STATE in directory.entries:
        step = directory.read_json(STATE).get("step")
        return step if isinstance(step, int) else None
    return None


def average_state(inputs: Sequence[SealedDirectory], newest: SealedDirectory) -> dict[str, Any]:
    """The content of state.json: the averaged directories, with their steps and digests."""
    rows = [
        {"path": str(item.path.resolve()), "step": step_of(item), "digest": item.digest}
        for item in inputs
    ]
    rows.sort(key=lambda row: (row["step"] or 0, row["path"]))
    facts = newest.read_json(STATE) if STATE in newest.entries else {}
    return {
        "step": step_of(newest) or 0,
        "alignment_head": facts.get("alignment_head"),
        "data_fingerprint": facts.get("data_fingerprint"),
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


def mean_weights(inputs: Sequence[SealedDirectory]) -> dict[str, Tensor]:
    """The mean of all weights; every input is verified before it is read."""
    with ExitStack() as stack:
        paths = [stack.enter_context(item.open(WEIGHTS_FILE)) for item in inputs]
        files = [stack.enter_context(open_tensors(path)) for path in paths]
        for file in files:
            check_specs(file.specs, files[0].specs, file.name)
        return {
            name: mean(((file.name, file.tensor(name)) for file in files), name)
            for name in files[0].specs
        }


def mean(parts: Iterable[tuple[str, Tensor]], name: str) -> Tensor:
    """The mean of the tensors called `name` of several files, each given with the file's name.

    It has their dtype, and integers must agree. One part at a time is in memory.
    """
    total: Tensor | None = None
    for count, (file, part) in enumerate(parts, start=1):  # noqa: B007 (the last count is used)
        if not torch.isfinite(part).all():
            raise DivergedError(f"{file}: {name} holds NaN or infinite numbers")
        if total is None:
            total = part.to(torch.float64) if part.dtype.is_floating_point else part
        elif part.dtype.is_floating_point:
            total = total + part
        elif not torch.equal(total, part):
            raise ModelMismatchError(f"tensor {name} holds integers that differ: it has no mean")
    assert total is not None, "nothing to average"
    return (total / count).to(part.dtype) if part.dtype.is_floating_point else total
