"""Preparing raw text: a directory with the codec, the encoded corpora and a manifest.

A directory that is up to date is opened; any other one is replaced as a whole.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from nmt.config.config import Config, DataConfig, ParallelFiles, resolved_prepared_dir
from nmt.data import prepared_directory
from nmt.data.codec import Codec, tokenizer_specs
from nmt.data.corpus import CorpusName, CorpusWriter, EncodedCorpus, new_file
from nmt.data.encoding import (
    EncodedChunk,
    LengthLimits,
    available_cores,
    count_both_sides,
    encode_pairs,
    token_types,
)
from nmt.data.encoding_choice import choose_encoding, with_recorded_choices, with_settings
from nmt.data.prepared_directory import read_about
from nmt.data.text import Pair, ReadStatistics, Side, read_pairs
from nmt.errors import DataError, IntegrityError, StorageError
from nmt.progress import progress_bar
from nmt.storage.directories import replaced_directory
from nmt.storage.lock import locked_to_write
from nmt.storage.manifest import MANIFEST, PREPARED_DATA, FileEntry, SealedDirectory

logger = logging.getLogger(__name__)

QUIET_BYTES = 3_000_000_000  # verified without a message, in about two seconds
CORPUS_FILES = ("train.", "validation.")
CODEC = "codec of train.start_from"  # the setting with the digest of a codec that was not learned
VERSIONED = ("nmt", "numpy", "sentencepiece", "subword-nmt", "sacremoses")


@dataclass(frozen=True)
class StartCodec:
    """The codec of the model that a run starts from, which encodes the data of the run."""

    codec: Codec
    digest: str  # of its files in the directory of that model


@dataclass(frozen=True)
class Prepared:
    """An open directory of prepared data."""

    directory: Path
    codec: Codec
    train: EncodedCorpus
    validation: EncodedCorpus
    fingerprint: str  # SHA-256 of codec, tokens and validation text: all that a run depends on
    sealed: SealedDirectory

    @property
    def about(self) -> dict[str, Any]:
        """The manifest's description: corpora, vocabulary sizes, inputs and settings."""
        return self.sealed.about

    def verify(self) -> None:
        """Read all files; raises IntegrityError for the first one that has changed."""
        total = sum(entry.size for entry in self.sealed.entries.values())
        if total > QUIET_BYTES:
            logger.info("verifying %s: %.1f GB", self.directory, total / 1e9)
        bar = progress_bar(total=total, unit="B", description="verifying data")
        with bar, prepared_directory.advised(self.directory):
            self.sealed.verify(advance=bar.update)
            for corpus in (self.train, self.validation):
                corpus.check_content()

    def validation_text(self, side: Side) -> Path:
        """The file of the raw validation text of a side; line i belongs to pair i."""
        return validation_text(self.directory, side)


def prepare(
    config: Config,
    *,
    start: StartCodec | None = None,
    verify: bool = False,
    repair: bool = True,
) -> Prepared:
    """Prepare the data of a config unless that has been done, and open it.

    The codec is that of the `start`, or is learned. With `verify`, data that has been prepared is
    read completely. Damaged data is prepared again, or raises IntegrityError without `repair`.
    """
    assert (start is None) == (config.train.start_from is None)
    directory = resolved_prepared_dir(config)
    with locked_to_write(directory) as writable:
        settings = settings_that_matter(config, start)
        inputs = prepared_directory.describe_inputs(input_roles(config.data))
        reason = out_of_date(directory, settings, inputs, writable=writable)
        if reason is None:
            try:
                prepared = open_prepared(directory)
                if verify:
                    prepared.verify()
            except IntegrityError as error:
                if not repair or not writable:
                    raise
                reason = "it is damaged"
                logger.warning("%s; the data is prepared again", error)
            else:
                logger.info("%s is up to date: %d pairs", directory, len(prepared.train))
                return prepared
        if not writable:
            raise StorageError(f"{directory}: {reason}, and nothing can be written there")
        prepared_directory.check_replaceable(directory)
        logger.info("preparing %s: %s", directory, reason)
        build(config, directory, inputs, start)
        return open_prepared(directory)


def open_prepared(directory: Path) -> Prepared:
    """Open a prepared directory; raises IntegrityError for a damaged file.

    Of the codec the hashes are verified, of the corpora only the sizes.
    """
    if read_about(directory).about.get("format") != PREPARED_DATA:
        raise DataError(f"{directory}: prepared by another version; run nmt-prepare again")
    with prepared_directory.advised(directory):
        sealed = SealedDirectory(directory, exact=False)
        sealed.verify([name for name in sealed.entries if not name.startswith(CORPUS_FILES)])
        return Prepared(
            directory=directory,
            codec=Codec.load(directory),
            train=EncodedCorpus(sealed, "train"),
            validation=EncodedCorpus(sealed, "validation"),
            fingerprint=prepared_directory.fingerprint(sealed.entries),
            sealed=sealed,
        )


def settings_that_matter(config: Config, start: StartCodec | None = None) -> dict[str, Any]:
    """The settings that the prepared data depends on, as they are read back from JSON."""
    data = config.data
    subword = asdict(data.subword)
    if not data.subword.reserved:  # data that was prepared before there were such symbols
        del subword["reserved"]
    settings = {
        "data.source_language": data.source_language,
        "data.target_language": data.target_language,
        "data.tokenizer": asdict(data.tokenizer),
        "data.subword": subword,
        "data.max_length": data.max_length,
        "data.max_ratio": data.max_ratio,
        "data.on_bad_line": data.on_bad_line,
        "data.max_line_bytes": data.max_line_bytes,
        "shared vocabulary": shared_vocabulary(config),
    }
    if start is not None:
        settings[CODEC] = start.digest
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def with_prepared_choices(config: Config, prepared: Prepared) -> Config:
    """The config with the tokenizers and subwords that the data was prepared with."""
    return replace(config, data=with_settings(config.data, prepared.about["settings"]))


def shared_vocabulary(config: Config) -> bool:
    """Whether both sides need the same ids for the same pieces, to share an embedding."""
    return config.model.tie_embeddings == "all"


def input_roles(data: DataConfig) -> dict[str, tuple[Path, ...]]:
    """All input files by role."""
    return {
        "train.source": data.train.source,
        "train.target": data.train.target,
        "validation.source": data.validation.source,
        "validation.target": data.validation.target,
    }


def out_of_date(
    directory: Path,
    settings: dict[str, Any],
    inputs: list[dict[str, Any]],
    *,
    writable: bool = False,
) -> str | None:
    """The reason why a directory has to be prepared again, or None.

    If it is writable, the new times and paths of inputs with the same bytes are recorded.
    """
    if not (directory / MANIFEST).exists():
        return "no data has been prepared"
    manifest = read_about(directory)
    if manifest.about.get("format") != PREPARED_DATA:
        return "it was prepared by another version"
    recorded = manifest.about.get("settings", {})
    if CODEC in settings:  # data whose codec was learned serves a run that starts with that codec
        recorded = {CODEC: codec_digest(manifest.files), **recorded}
    settings = with_recorded_choices(settings, recorded)
    if changes := prepared_directory.changed_settings(recorded, settings):
        return f"changed settings ({changes})"
    if changed := prepared_directory.changed_input(manifest.about.get("inputs", []), inputs):
        return f"changed input ({changed})"
    if writable:
        prepared_directory.record_inputs(directory, manifest, inputs)
    return None


def codec_digest(files: Mapping[str, FileEntry]) -> str:
    """The digest of the codec in prepared data with these files."""
    codec = {name: item for name, item in files.items() if not name.startswith(CORPUS_FILES)}
    return prepared_directory.fingerprint(codec)


def build(
    config: Config,
    directory: Path,
    inputs: list[dict[str, Any]],
    start: StartCodec | None = None,
) -> None:
    """Make a new prepared directory and put it in place of the old one."""
    about: dict[str, Any] = {}
    # Both sets are read once before the long steps begin, so that errors in them show up early.
    count_pairs(config.data, config.data.validation, "reading validation text")
    total = count_pairs(config.data, config.data.train, "reading training text")
    config = replace(config, data=choose_encoding(config.data, pairs=total))
    with replaced_directory(directory, about) as temporary:
        about |= {
            "format": PREPARED_DATA,
            "settings": settings_that_matter(config, start),
            "inputs": [
                {**entry, "sha256": prepared_directory.input_sha256(entry)} for entry in inputs
            ],
            **write_data(config, temporary, total, start),
            "versions": {name: version(name) for name in VERSIONED},
        }
        if prepared_directory.describe_inputs(input_roles(config.data)) != inputs:
            raise DataError(
                "an input file changed while it was read; run again when it no longer changes"
            )


def write_data(
    config: Config, directory: Path, total: int, start: StartCodec | None
) -> dict[str, Any]:
    """Write the codec and the corpora; returns their description for the manifest."""
    data = config.data
    workers = data.workers or available_cores()
    codec = start.codec if start is not None else learn_codec(config, total, workers=workers)
    codec.save(directory)
    train = encode_training(data, directory, codec, total=total, workers=workers)
    validation = encode_validation(data, directory, codec)
    sizes = {"source": len(codec.source.vocabulary), "target": len(codec.target.vocabulary)}
    return {"corpora": {"train": train, "validation": validation}, "vocabulary": sizes}


def read(data: DataConfig, files: ParallelFiles, statistics: ReadStatistics) -> Iterator[Pair]:
    """The pairs of a set, read as the config says."""
    return read_pairs(
        files.source,
        files.target,
        on_bad_line=data.on_bad_line,
        max_bytes=data.max_line_bytes,
        statistics=statistics,
    )


def count_pairs(data: DataConfig, files: ParallelFiles, description: str) -> int:
    """The number of usable pairs, at least one."""
    count = 0
    with progress_bar(total=None, unit="pair", description=description) as bar:
        for count, _ in enumerate(read(data, files, ReadStatistics()), start=1):
            if count % 10_000 == 0:
                bar.update(10_000)
    return count


def learn_codec(config: Config, total: int, *, workers: int) -> Codec:
    """Learn subwords and vocabularies from the training text, or from an even sample of it."""
    data = config.data
    sample = min(data.subword.sample_pairs or total, total)
    pairs = read(data, data.train, ReadStatistics())
    if sample < total:
        logger.info("subwords are learned from %d of %d pairs", sample, total)
        pairs = evenly(pairs, sample, total)
    specs = tokenizer_specs(data)
    with progress_bar(total=sample, unit="pair", description="counting words") as bar:
        counts = count_both_sides(pairs, specs, workers=workers, advance=bar.update)
    return Codec.from_counts(data, counts, shared_vocabulary=shared_vocabulary(config))


def evenly(pairs: Iterable[Pair], sample: int, total: int) -> Iterator[Pair]:
    """`sample` of `total` pairs, spread evenly: corpora are often several texts in a row."""
    for index, pair in enumerate(pairs):
        if index * sample // total != (index + 1) * sample // total:
            yield pair


def encode_training(
    data: DataConfig, directory: Path, codec: Codec, *, total: int, workers: int
) -> dict[str, Any]:
    """Write the training corpus; returns its description for the manifest."""
    limits = LengthLimits(longest=data.max_length, ratio=data.max_ratio)
    statistics = ReadStatistics()
    pairs = read(data, data.train, statistics)
    with progress_bar(total=total, unit="pair", description="encoding training text") as bar:
        chunks = encode_pairs(pairs, directory, limits, workers=workers)
        corpus = write_corpus(directory, "train", codec, chunks, statistics, advance=bar.update)
    if corpus["pairs"] == 0:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in corpus["left_out"].items())
        raise DataError(f"no training pair is left ({reasons}); see data.max_length, max_ratio")
    return corpus


def encode_validation(data: DataConfig, directory: Path, codec: Codec) -> dict[str, Any]:
    """Write the validation corpus and its raw text; pairs of any length are kept."""
    statistics = ReadStatistics()
    with (
        new_file(validation_text(directory, "source")) as source,
        new_file(validation_text(directory, "target")) as target,
    ):
        pairs = keep_text(read(data, data.validation, statistics), source, target)
        chunks = encode_pairs(pairs, directory, LengthLimits(empty=True), workers=1)
        return write_corpus(directory, "validation", codec, chunks, statistics)


def write_corpus(
    directory: Path,
    name: CorpusName,
    codec: Codec,
    chunks: Iterable[EncodedChunk],
    statistics: ReadStatistics,
    advance: Callable[[int], object] = lambda _pairs: None,
) -> dict[str, Any]:
    """Write encoded chunks; returns the description of the corpus for the manifest."""
    left_out: Counter[str] = Counter()
    with CorpusWriter(directory, name, token_types(codec)) as writer:
        for chunk in chunks:
            writer.append(chunk.tokens, chunk.lengths)
            left_out += chunk.left_out
            advance(chunk.read)
    left_out += statistics.skipped
    counts = {"read": statistics.read, "left_out": dict(sorted(left_out.items()))}
    return {**writer.describe(), **counts}


def keep_text(pairs: Iterable[Pair], source: BinaryIO, target: BinaryIO) -> Iterator[Pair]:
    """The same pairs, while the text of each side is written to a file."""
    for pair in pairs:
        source.write(f"{pair.source}\n".encode())
        target.write(f"{pair.target}\n".encode())
        yield pair


def validation_text(directory: Path, side: Side) -> Path:
    """The file of the raw validation text of a side."""
    return directory / f"validation.{side}.txt"
