"""Smoke tests: an update with every attention kind and a translation, compared with the reference.

A model of a few thousand weights is trained and translates on random data, in a temporary
directory. Losses, gradients and probabilities have to be those of the reference implementations.
"""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from nmt.bench.kinds import all_kinds, with_attention
from nmt.bench.synthetic import Shapes, synthetic_codec, synthetic_config, synthetic_lines
from nmt.bench.training import Task, TrainingModel, synthetic_task
from nmt.checkpoint.model_directory import model_files, model_for
from nmt.config.config import ParallelFiles, TrainingCorpus
from nmt.decoding.translator import Translator
from nmt.ops.backend import force_backend
from nmt.storage.directories import write_directory
from nmt.training.state import SUM_NAMES

SMOKE_SHAPES = Shapes(
    dim=16,
    heads=2,
    layers=1,
    feed_forward_dim=32,
    vocabulary=40,
    length=4,
    batch_tokens=60,
    dropout=0.0,  # implementations draw different dropout masks
    attention_dropout=0.0,
)
SMOKE_SENTENCES = 4
KIND = "rela-g"  # of the model that translates
SMOKE_TOLERANCE = 0.01  # relative; correct implementations differ by far less


class SmokeTestError(Exception):
    """Something was computed, but not what the reference computes."""


@dataclass(frozen=True)
class SmokeTest:
    """How one smoke test went."""

    name: str
    device: str
    seconds: float
    problem: str | None


def run_smoke_tests(device: str) -> list[SmokeTest]:
    """An update per attention kind, and a translation."""
    place = torch.device(device)
    tests = [
        attempt(f"update with {kind}", device, lambda kind=kind: try_update(kind, place))  # type: ignore[misc]
        for kind in all_kinds()
    ]
    return [*tests, attempt("translation", device, lambda: try_translation(device))]


def attempt(name: str, device: str, test: Callable[[], None]) -> SmokeTest:
    """Run a test and note how it went."""
    start = time.monotonic()
    problem = None
    try:
        test()
    except Exception as error:  # whatever it is, it would stop a user, and is to be reported
        problem = str(error) or type(error).__name__
    return SmokeTest(name, device, time.monotonic() - start, problem)


def try_update(kind: str, device: torch.device) -> None:
    """One update; its loss and gradients have to be those of the reference."""
    task = one_update()
    computed = update_sums(task, kind, device)
    with force_backend("reference"):
        expected = update_sums(task, kind, device)
    for name in ("loss", "gradient_norm"):
        check_close(name.replace("_", " "), computed[name], expected[name])


@cache
def one_update() -> Task:
    """The batches that all kinds are tested with."""
    return synthetic_task(SMOKE_SHAPES, 1, precision="float32")


def update_sums(task: Task, kind: str, device: torch.device) -> dict[str, float]:
    """The sums of one update by their names."""
    model = TrainingModel(task, kind, device)
    result = model.updater.run(task.updates[0], model.state)
    if result.bad.item():
        raise SmokeTestError("the gradients are not finite")
    return dict(zip(SUM_NAMES, result.sums.tolist(), strict=True))


def try_translation(device: str) -> None:
    """Save a model, load it and translate; the reference has to agree on the probabilities."""
    with tempfile.TemporaryDirectory(prefix="nmt-doctor-") as directory:
        path = Path(directory) / "model"
        write_random_model(path)
        lines = synthetic_lines(SMOKE_SHAPES, SMOKE_SENTENCES)
        found = Translator.load(path, device=device).translate(lines)
        with force_backend("reference"):
            texts = [translation.text for translation in found]
            expected = Translator.load(path, device=device).score_pairs(lines, texts)
    for translation, score in zip(found, expected, strict=True):
        check_close("log probability", translation.log_probability, score.log_probability)


def write_random_model(path: Path) -> None:
    """A model directory with random weights; its config names files that need not exist."""
    config = synthetic_config(SMOKE_SHAPES)
    names = [path.parent / name for name in ("source", "target", "source.2", "target.2")]
    train = TrainingCorpus((names[0],), (names[1],))
    validation = ParallelFiles((names[2],), (names[3],))
    config = replace(
        config,
        run_dir=path.parent / "run",
        data=replace(config.data, train=(train,), validation=(validation,)),
        model=with_attention(config.model, KIND),
    )
    codec = synthetic_codec(config, SMOKE_SHAPES)
    torch.manual_seed(1)
    model = model_for(config.model, codec)
    write_directory(path, model_files(config, codec, model.state_dict()))


def check_close(name: str, computed: float, expected: float) -> None:
    """Raise for a number that is not the reference's."""
    if not math.isclose(computed, expected, rel_tol=SMOKE_TOLERANCE):
        raise SmokeTestError(f"{name} {computed:.6g}, but the reference computes {expected:.6g}")
