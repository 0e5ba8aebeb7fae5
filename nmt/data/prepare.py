"""From raw text to a directory of prepared data: codec, encoded corpora and a manifest.

Nothing is done when the directory is up to date; else a whole new one takes its place.
"""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from nmt.config.config import Config, DataConfig, ParallelFiles
from nmt.config.loading import resolved_prepared_dir
from nmt.data import prepared_directory
from nmt.data.codec import Codec, TokenizerSpec
from nmt.data.corpus import (
    SIDES,
    CorpusWriter,
    EncodedCorpus,
    Side,
    new_file,
    token_type,
)
from nmt.data.encoding import (
    LengthLimits,
    available_cores,
    count_both_sides,
    encode_pairs,
)
from nmt.data.prepared_directory import read_about
from nmt.data.text import Pair, ReadStatistics, read_pairs
from nmt.errors import DataError, IntegrityError, StorageError
from nmt.progress import progress_bar
from nmt.storage.directories import replaced_directory
from nmt.storage.lock import locked_to_write
from nmt.storage.manifest import MANIFEST, PREPARED_DATA, SealedDirectory

logger = logging.getLogger(__name__)

BYTES_IN_SILENCE = 3_000_000_000  # about two seconds of hashing
CORPUS_FILES = ("train.", "validation.")
VERSIONED = ("nmt", "numpy", "sentencepiece", "subword-nmt", "sacremoses")


@dataclass(frozen=True)
class Prepared:
    """Prepared data, opened."""

    directory: Path
    codec: Codec
    train: EncodedCorpus
    validation: EncodedCorpus
    fingerprint: str  # SHA-256 over codec, tokens and validation text: what a run depends on
    sealed: SealedDirectory

    @property
    def about(self) -> dict[str, Any]:
        """What the manifest says of the data: corpora, vocabulary sizes, inputs and settings."""
        return self.sealed.about

    def verify(self) -> None:
        """Read everything; IntegrityError names the first file that is not as it was written."""
        total = sum(entry.size for entry in self.sealed.entries.values())
        if total > BYTES_IN_SILENCE:
            logger.info("verifying %s: %.1f GB", self.directory, total / 1e9)
        bar = progress_bar(total=total, unit="B", description="verifying data")
        with bar, prepared_directory.advised(self.directory):
            self.sealed.verify(advance=bar.update)
            for corpus in (self.train, self.validation):
                corpus.check_content()

    @property
    def validation_source(self) -> Path:
        """Raw text of the validation pairs, line i belongs to pair i."""
        return self.directory / validation_text_name("source")

    @property
    def validation_target(self) -> Path:
        """Raw text of the validation pairs, line i belongs to pair i."""
        return self.directory / validation_text_name("target")


def prepare(config: Config, *, verify: bool = False, repair: bool = True) -> Prepared:
    """Prepare the data of a config unless that has been done, and open it.

    With `verify` data that has been prepared is read as a whole. Where damage is found it is
    prepared again, or without `repair` raised as an IntegrityError.
    """
    directory = resolved_prepared_dir(config)
    with locked_to_write(directory) as writable:
        settings = settings_that_matter(config)
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
        build(config, directory, settings, inputs)
        return open_prepared(directory)


def open_prepared(directory: Path) -> Prepared:
    """Open a prepared directory; the codec is verified by its hashes, of other files the sizes.

    IntegrityError names a file that is not whole.
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
    manifest = read_about(directory)
    if manifest.about.get("format") != PREPARED_DATA:
        return "it was prepared by another version"
    if changes := prepared_directory.changed_settings(manifest.about.get("settings", {}), settings):
        return f"changed settings ({changes})"
    if changed := prepared_directory.changed_input(manifest.about.get("inputs", []), inputs):
        return f"changed input ({changed})"
    if writable:
        prepared_directory.record_inputs(directory, manifest, inputs)
    return None


def build(
    config: Config, directory: Path, settings: dict[str, Any], inputs: list[dict[str, Any]]
) -> None:
    """Make a prepared directory under another name and put it in its place."""
    about: dict[str, Any] = {}
    with replaced_directory(directory, about) as temporary:
        about |= {
            "format": PREPARED_DATA,
            "settings": settings,
            "inputs": prepared_directory.hash_inputs(inputs),
            **write_data(config, temporary),
            "versions": {name: version(name) for name in VERSIONED},
        }
        if prepared_directory.describe_inputs(input_roles(config.data)) != inputs:
            raise DataError("an input file changed while it was read; run again when it is at rest")


def write_data(config: Config, directory: Path) -> dict[str, Any]:
    """Write codec and corpora; return what the manifest has to say of them."""
    data = config.data
    workers = data.workers or available_cores()
    # Both sets are read once before anything long begins: a mistake in them shows up early.
    count_pairs(data, data.validation, "reading validation text")
    total = count_pairs(data, data.train, "reading training text")
    codec = learn_codec(config, total, workers=workers)
    codec.save(directory)
    train = encode_training(data, directory, codec, total=total, workers=workers)
    validation = encode_validation(data, directory, codec)
    sizes = {"source": len(codec.source.vocabulary), "target": len(codec.target.vocabulary)}
    return {"corpora": {"train": train, "validation": validation}, "vocabulary": sizes}


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
) -> dict[str, Any]:
    """Write the training corpus; return what the manifest says of it."""
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
    left_out_sorted = dict(sorted(left_out.items()))
    return {**writer.describe(), "read": statistics.read, "left_out": left_out_sorted}


def encode_validation(data: DataConfig, directory: Path, codec: Codec) -> dict[str, Any]:
    """Write the validation corpus and its raw text; pairs of any length are kept."""
    statistics = ReadStatistics()
    with contextlib.ExitStack() as stack:
        text = {
            side: stack.enter_context(new_file(directory / validation_text_name(side)))
            for side in SIDES
        }
        writer = stack.enter_context(CorpusWriter(directory, "validation", token_types(codec)))
        pairs = keep_text(read(data, data.validation, statistics), text)
        for chunk in encode_pairs(pairs, directory, LengthLimits(empty=True), workers=1):
            writer.append(chunk.tokens, chunk.lengths)
    left_out = dict(sorted(statistics.skipped.items()))
    return {**writer.describe(), "read": statistics.read, "left_out": left_out}


def keep_text(pairs: Iterable[Pair], files: Mapping[Side, BinaryIO]) -> Iterator[Pair]:
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
