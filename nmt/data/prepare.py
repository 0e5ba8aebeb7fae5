"""From raw text to a directory of prepared data: codec, encoded corpora and a manifest.

Nothing is done when the directory is up to date; else a whole new one takes its place.
"""

import contextlib
import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nmt.config.config import Config, DataConfig, ParallelFiles
from nmt.config.loading import resolved_prepared_dir
from nmt.data import prepared_directory
from nmt.data.codec import Codec, TokenizerSpec
from nmt.data.corpus import (
    MANIFEST,
    SIDES,
    CorpusWriter,
    EncodedCorpus,
    HashedFile,
    Side,
    file_sha256,
    read_manifest,
    token_type,
)
from nmt.data.encoding import (
    LengthLimits,
    available_cores,
    count_both_sides,
    encode_pairs,
)
from nmt.data.text import Pair, ReadStatistics, read_pairs
from nmt.errors import DataError, StorageError
from nmt.progress import progress_bar

logger = logging.getLogger(__name__)

VERSIONED = ("nmt", "numpy", "sentencepiece", "subword-nmt", "sacremoses")


@dataclass(frozen=True)
class Prepared:
    """Prepared data, opened."""

    directory: Path
    codec: Codec
    train: EncodedCorpus
    validation: EncodedCorpus
    fingerprint: str  # SHA-256 over codec, tokens and validation text: what a run depends on
    manifest: dict[str, Any]

    @property
    def validation_source(self) -> Path:
        """Raw text of the validation pairs, line i belongs to pair i."""
        return self.directory / validation_text_name("source")

    @property
    def validation_target(self) -> Path:
        """Raw text of the validation pairs, line i belongs to pair i."""
        return self.directory / validation_text_name("target")


def prepare(config: Config) -> Prepared:
    """Prepare the data of a config unless that has been done, and open it."""
    directory = resolved_prepared_dir(config)
    with prepared_directory.locked(directory) as writable:
        if writable:
            prepared_directory.clean_up(directory)
        settings = settings_that_matter(config)
        inputs = prepared_directory.describe_inputs(input_roles(config.data))
        reason = out_of_date(directory, settings, inputs, writable=writable)
        if reason is None:
            try:
                prepared = open_prepared(directory)
            except DataError as error:
                reason = f"it is damaged ({error})"
            else:
                logger.info("%s is up to date: %d pairs", directory, len(prepared.train))
                return prepared
        if not writable:
            raise StorageError(f"{directory}: {reason}, and nothing can be written there")
        prepared_directory.check_replaceable(directory)
        logger.info("preparing %s: %s", directory, reason)
        build(config, directory, settings, inputs)
        return open_prepared(directory)


def open_prepared(directory: Path) -> Prepared:
    """Open a prepared directory; sizes are checked, DataError names a file that is not whole."""
    manifest = read_manifest(directory)
    if manifest.get("format") != prepared_directory.FORMAT:
        raise DataError(f"{directory}: prepared by another version; run nmt-prepare again")
    prepared_directory.check_sizes(directory, manifest)
    return Prepared(
        directory=directory,
        codec=Codec.load(directory),
        train=EncodedCorpus(directory, "train", manifest),
        validation=EncodedCorpus(directory, "validation", manifest),
        fingerprint=fingerprint(manifest["files"]),
        manifest=manifest,
    )


def fingerprint(files: Mapping[str, Mapping[str, Any]]) -> str:
    """One digest over the names and digests of all files."""
    lines = [f"{name} {entry['sha256']}\n" for name, entry in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def settings_that_matter(config: Config) -> dict[str, Any]:
    """The settings on which the prepared data depends, as JSON would give them back."""
    data = config.data
    settings = {
        "data.source_language": data.source_language,
        "data.target_language": data.target_language,
        "data.tokenizer": asdict(data.tokenizer),
        "data.subword": asdict(data.subword),
        "data.max_length": data.max_length,
        "data.max_ratio": data.max_ratio,
        "data.on_bad_line": data.on_bad_line,
        "data.max_line_bytes": data.max_line_bytes,
        "shared vocabulary": shared_vocabulary(config),
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def shared_vocabulary(config: Config) -> bool:
    """Whether both sides need the same numbers for the same pieces: they share an embedding."""
    return config.model.tie_embeddings == "all"


def input_roles(data: DataConfig) -> dict[str, tuple[Path, ...]]:
    """All input files by what they are for."""
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
    """Why a directory is not what would be prepared now, None when it is.

    Where it may be written, inputs with other times or places but the same bytes are noted there.
    """
    if not (directory / MANIFEST).exists():
        return "no data has been prepared"
    manifest = read_manifest(directory)
    if manifest.get("format") != prepared_directory.FORMAT:
        return "it was prepared by another version"
    if changes := prepared_directory.changed_settings(manifest.get("settings", {}), settings):
        return f"changed settings ({changes})"
    if changed := prepared_directory.changed_input(manifest.get("inputs", []), inputs):
        return f"changed input ({changed})"
    if writable:
        prepared_directory.record_inputs(directory, manifest, inputs)
    return None


def build(
    config: Config, directory: Path, settings: dict[str, Any], inputs: list[dict[str, Any]]
) -> None:
    """Make a prepared directory under another name and put it in its place."""
    hashed = prepared_directory.hash_inputs(inputs)
    partial = prepared_directory.beside(directory, "partial")
    try:
        partial.mkdir()
        manifest = {
            "format": prepared_directory.FORMAT,
            "settings": settings,
            "inputs": hashed,
            **write_data(config, partial),
            "versions": {name: version(name) for name in VERSIONED},
        }
        if prepared_directory.describe_inputs(input_roles(config.data)) != inputs:
            raise DataError("an input file changed while it was read; run again when it is at rest")
        prepared_directory.write_manifest(partial, manifest)
        prepared_directory.replace(directory, partial)
    except OSError as error:
        raise StorageError(f"{partial}: cannot be written ({error.strerror})") from error
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def write_data(config: Config, directory: Path) -> dict[str, Any]:
    """Write everything but the manifest; return what it has to say of the result."""
    data = config.data
    workers = data.workers or available_cores()
    # Both sets are read once before anything long begins: a mistake in them shows up early.
    count_pairs(data, data.validation, "reading validation text")
    total = count_pairs(data, data.train, "reading training text")
    codec = learn_codec(config, total, workers=workers)
    codec.save(directory)
    codec_files = {name: sync_and_describe(directory / name) for name in codec.files()}
    train, train_files = encode_training(data, directory, codec, total=total, workers=workers)
    validation, validation_files = encode_validation(data, directory, codec)
    files = {**codec_files, **train_files, **validation_files}
    sizes = {"source": len(codec.source.vocabulary), "target": len(codec.target.vocabulary)}
    return {
        "corpora": {"train": train, "validation": validation},
        "vocabulary": sizes,
        "files": files,
        "fingerprint": fingerprint(files),
    }


def read(data: DataConfig, files: ParallelFiles, statistics: ReadStatistics) -> Iterator[Pair]:
    """The pairs of a set, by the rules of the config."""
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
    specs: dict[Side, TokenizerSpec] = {
        "source": TokenizerSpec(data.tokenizer.source, data.source_language),
        "target": TokenizerSpec(data.tokenizer.target, data.target_language),
    }
    with progress_bar(total=sample, unit="pair", description="counting words") as bar:
        counts = count_both_sides(pairs, specs, workers=workers, advance=bar.update)
    return Codec.from_counts(
        data, counts["source"], counts["target"], shared_vocabulary=shared_vocabulary(config)
    )


def evenly(pairs: Iterable[Pair], sample: int, total: int) -> Iterator[Pair]:
    """`sample` of `total` pairs, spread evenly: corpora are often several texts in a row."""
    for index, pair in enumerate(pairs):
        if index * sample // total != (index + 1) * sample // total:
            yield pair


def encode_training(
    data: DataConfig, directory: Path, codec: Codec, *, total: int, workers: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the training corpus; return what the manifest says of it, and of its files."""
    limits = LengthLimits(longest=data.max_length, ratio=data.max_ratio)
    statistics = ReadStatistics()
    left_out: Counter[str] = Counter()
    bar = progress_bar(total=total, unit="pair", description="encoding training text")
    with bar, CorpusWriter(directory, "train", token_types(codec)) as writer:
        pairs = read(data, data.train, statistics)
        for chunk in encode_pairs(pairs, directory, limits, workers=workers):
            writer.append(chunk.tokens, chunk.lengths)
            left_out += chunk.left_out
            bar.update(chunk.read)
        left_out += statistics.skipped
        if writer.pairs == 0:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in left_out.items())
            raise DataError(f"no training pair is left ({reasons}); see data.max_length, max_ratio")
        description, files = writer.finish()
    return {
        **description,
        "read": statistics.read,
        "left_out": dict(sorted(left_out.items())),
    }, files


def encode_validation(
    data: DataConfig, directory: Path, codec: Codec
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the validation corpus and its raw text; pairs of any length are kept."""
    statistics = ReadStatistics()
    with contextlib.ExitStack() as stack:
        text: dict[Side, HashedFile] = {}
        for side in SIDES:
            text[side] = HashedFile(directory / validation_text_name(side))
            stack.callback(text[side].close)
        writer = stack.enter_context(CorpusWriter(directory, "validation", token_types(codec)))
        pairs = keep_text(read(data, data.validation, statistics), text)
        for chunk in encode_pairs(pairs, directory, LengthLimits(empty=True), workers=1):
            writer.append(chunk.tokens, chunk.lengths)
        description, files = writer.finish()
        files |= {validation_text_name(side): text[side].finish() for side in SIDES}
    left_out = dict(sorted(statistics.skipped.items()))
    return {**description, "read": statistics.read, "left_out": left_out}, files


def keep_text(pairs: Iterable[Pair], files: Mapping[Side, HashedFile]) -> Iterator[Pair]:
    """The same pairs, written to a text file for each side on their way."""
    for pair in pairs:
        files["source"].write(f"{pair.source}\n".encode())
        files["target"].write(f"{pair.target}\n".encode())
        yield pair


def validation_text_name(side: Side) -> str:
    """File name of the raw validation text of one side."""
    return f"validation.{side}.txt"


def token_types(codec: Codec) -> dict[Side, str]:
    """The integer type of each side."""
    return {
        "source": token_type(len(codec.source.vocabulary)),
        "target": token_type(len(codec.target.vocabulary)),
    }


def sync_and_describe(path: Path) -> dict[str, Any]:
    """Force a file to disk and return its manifest entry."""
    prepared_directory.sync(path)
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}
