"""The packed model of a translator: the engine in C and numpy, without torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

from nmt.checkpoint.packed import is_packed
from nmt.config.limits import MAX_PROCESSES
from nmt.config.search_options import DecodeConfig, SearchOptions
from nmt.data.codec import Codec
from nmt.decoding.alignment import Attention
from nmt.decoding.batching import length_batches, length_multiple
from nmt.decoding.engine import Engine
from nmt.decoding.engine_search import search_by_engine, search_refusal
from nmt.decoding.packed_directory import read_packed
from nmt.decoding.search_record import Hypothesis
from nmt.decoding.translation import (
    SYMBOLS,
    Details,
    PairScore,
    Precision,
    Sentence,
    Translation,
)
from nmt.errors import IntegrityError, UserError
from nmt.ops.environment import requested_backend
from nmt.ops.native import library


class PackedModels:
    """One packed model that translates on the CPU."""

    device_type = "cpu"

    def __init__(self, engine: Engine, codec: Codec, path: Path, *, threads: int) -> None:
        self.engine = engine
        self.codecs = [codec]
        self.path = path
        self.threads = threads

    def check(self, options: SearchOptions, details: Details) -> None:
        """Raise for what only the model that was packed can compute."""
        if options.sampling is not None:
            self.refuse("sampling")
        if reason := search_refusal(self.engine, options):
            raise UserError(f"{self.path}: a packed model searches in C: {reason}")
        if details.alignment is not None:
            self.refuse("word alignments")
        if details.attention:
            self.refuse("attention weights")

    def refuse(self, what: str) -> NoReturn:
        """Raise for something that a packed model has not."""
        raise UserError(
            f"{self.path}: a packed model searches for translations and has no {what}; use the "
            "model that it was exported from, which needs torch"
        )

    def computing(self) -> AbstractContextManager[None]:
        """Nothing has to be prepared."""
        return nullcontext()

    def batches(self, sentences: Sequence[Sentence], options: SearchOptions) -> Iterator[list[int]]:
        """Positions of sentences of similar length, by tokens."""
        lengths = [sentence.length for sentence in sentences]
        multiple = length_multiple(options)
        yield from length_batches(lengths, batch_tokens=options.batch_tokens, multiple=multiple)

    def halve(self, size: int) -> None:
        """Nothing is kept that could be given back."""

    def search(self, batch: Sequence[Sentence], options: SearchOptions) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        return search_by_engine(
            self.engine,
            [sentence.sources[0] for sentence in batch],
            options,
            SYMBOLS,
            max_lengths=[sentence.output_limit(options) for sentence in batch],
            prefixes=[sentence.prefix for sentence in batch],
            threads=library.usable_threads(self.threads),
        )

    def blank_attention(self, types: Sequence[str]) -> Attention:  # noqa: ARG002
        """There is none."""
        self.refuse("attention weights")

    def describe(
        self,
        plain: Sequence[Translation],  # noqa: ARG002
        sentences: Sequence[Sentence],  # noqa: ARG002
        options: SearchOptions,
        details: Details,
    ) -> list[Translation]:
        """There are no details."""
        self.check(options, details)
        raise AssertionError("expected details that are refused")

    def score(
        self,
        sentences: Sequence[Sentence],  # noqa: ARG002
        targets: Sequence[Sequence[int]],  # noqa: ARG002
        *,
        batch_tokens: int,  # noqa: ARG002
        attention: Sequence[str],  # noqa: ARG002
    ) -> list[PairScore]:
        """There are no scores of given translations."""
        self.refuse("scores of given translations")


def load_packed(
    paths: Sequence[Path], *, device: str, precision: Precision, int8: bool, threads: int | None
) -> tuple[PackedModels, DecodeConfig, int]:
    """The model of a packed directory, its search options, and the longest source."""
    path = next(path for path in paths if is_packed(path))
    if len(paths) > 1:
        raise UserError(
            f"{path}: a packed model translates by itself; for an ensemble give the models that "
            "were not packed"
        )
    if device not in ("auto", "cpu") or precision == "bfloat16":
        wish = f"device {device}" if precision != "bfloat16" else "bfloat16"
        raise UserError(
            f"{path}: a packed model computes on the CPU, got {wish}; use the model that it was "
            "exported from"
        )
    if (backend := requested_backend()) not in ("auto", "native"):
        raise UserError(
            f"NMT_BACKEND={backend}: a packed model runs by the kernels in C only: {path}"
        )
    kernels = library.load()
    if kernels is None:
        raise UserError(
            f"{path}: a packed model needs the kernels in C, and they cannot be used here: install "
            "the wheel for manylinux (Linux on x86-64 with AVX2), or gcc and then nmt again"
        )
    found = read_packed(path)
    if int8 and not found.model.settings.int8:
        raise UserError(
            f"{path}: was packed in float32; for 8 bits, export it with `nmt-export --format "
            "packed --int8`"
        )
    try:
        engine = Engine(kernels, found.model)
    except ValueError as error:
        raise IntegrityError(f"{path}: the engine in C refuses the model ({error})") from error
    models = PackedModels(engine, found.codec, path, threads=threads or default_threads())
    return models, found.config.decode, found.config.max_source_length


def default_threads() -> int:
    """OMP_NUM_THREADS, or the cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and len(given) < 10 and int(given) > 0:
        return min(int(given), MAX_PROCESSES)
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, MAX_PROCESSES)
