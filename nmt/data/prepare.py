"""Preparing raw text: a directory with the codec, the encoded corpora and a manifest.

A directory that is up to date is opened; any other one is replaced as a whole, unless a run was
trained on it.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from nmt.config.config import Config, DataConfig, ParallelFiles, resolved_prepared_dir
from nmt.data import prepared_directory
from nmt.data.codec import Codec, tokenizer_specs
from nmt.data.corpus import CorpusWriter, EncodedCorpus, new_file
from nmt.data.encoding import (
    EncodedChunk,
    LengthLimits,
    available_cores,
    count_both_sides,
    encode_pairs,
    token_types,
)
from nmt.data.encoding_choice import choose_encoding, with_recorded_choices, with_settings
from nmt.data.prepared_directory import begun_runs, has_begun, read_about, record_use, runs_with
from nmt.data.reading import (
    TRAIN,
    VALIDATION,
    count_pairs,
    evenly,
    input_roles,
    read_tagged,
    train_roles,
    validation_roles,
)
from nmt.data.text import SIDES, Pair, ReadStatistics, Side
from nmt.errors import ConfigError, DataError, IntegrityError, StorageError
from nmt.progress import progress_bar
from nmt.storage.directories import replaced_directory
from nmt.storage.lock import locked_to_write
from nmt.storage.manifest import MANIFEST, PREPARED_DATA, FileEntry, SealedDirectory

logger = logging.getLogger(__name__)

QUIET_BYTES = 3_000_000_000  # verified without a message, in about two seconds
CORPUS_FILES = (f"{TRAIN}.", f"{VALIDATION}.")
CODEC_SETTING = "codec of train.start_from"  # has the digest of a codec that was not learned
VERSIONED = ("nmt", "numpy", "sentencepiece", "subword-nmt", "sacremoses")


@dataclass(frozen=True)
class StartCodec:
    """The codec of the model that a run starts from, which encodes the data of the run."""

    codec: Codec
    digest: str  # of its files in the directory of that model
    is_extended: bool = False  # whether it has the pieces of `data.extend_vocabulary` already


@dataclass(frozen=True)
class ValidationSet:
    """An encoded validation corpus and its raw text; line i belongs to pair i.

    The text is in memory: another run may prepare the same directory again.
    """

    corpus: EncodedCorpus
    text: dict[Side, list[str]]


@dataclass(frozen=True)
class Prepared:
    """An open directory of prepared data."""

    directory: Path
    codec: Codec
    train: EncodedCorpus  # of all corpora, in the order of the config
    validations: dict[str, ValidationSet]  # by role
    fingerprint: str  # SHA-256 of codec, tokens and validation text: all that a run depends on
    sealed: SealedDirectory

    @property
    def about(self) -> dict[str, Any]:
        """The manifest's description: corpora, vocabulary sizes, inputs and settings."""
        return self.sealed.about

    @property
    def validation(self) -> EncodedCorpus:
        """The first validation corpus."""
        return self.validations[VALIDATION].corpus

    @property
    def sizes(self) -> list[int]:
        """The number of pairs of each training corpus."""
        description = self.about["corpora"][TRAIN]
        return [part["pairs"] for part in description.get("parts", [description])]

    def verify(self) -> None:
        """Read all files; raises IntegrityError for the first one that has changed."""
        total = sum(entry.size for entry in self.sealed.entries.values())
        if total > QUIET_BYTES:
            logger.info("verifying %s: %.1f GB", self.directory, total / 1e9)
        bar = progress_bar(total=total, unit="B", description="verifying data")
        with bar, prepared_directory.advised(self.directory):
            self.sealed.verify(advance=bar.update)
            for corpus in (self.train, *(each.corpus for each in self.validations.values())):
                corpus.check_content()

    def validation_text(self, side: Side) -> list[str]:
        """The raw text of the first validation corpus; line i belongs to pair i."""
        return self.validations[VALIDATION].text[side]


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
    Other data that a run was trained on raises ConfigError.
    """
    assert (start is None) == (config.train.start_from is None)
    directory = resolved_prepared_dir(config)
    with locked_to_write(directory) as writable:
        settings = settings_that_matter(config, start)
        inputs = prepared_directory.describe_inputs(input_roles(config.data))
        reason = out_of_date(directory, settings, inputs)
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
                if writable:
                    record_use(directory, config.run_dir, inputs)
                return prepared
        elif (directory / MANIFEST).exists():
            check_unused(config, directory, reason)
        if not writable:
            raise StorageError(f"{directory}: {reason}, and nothing can be written there")
        prepared_directory.check_replaceable(directory)
        logger.info("preparing %s: %s", directory, reason)
        build(config, directory, inputs, start)
        return open_prepared(directory)


def check_unused(config: Config, directory: Path, reason: str) -> None:
    """Reject a change of the data that this run, or another one that shares it, was trained on."""
    if has_begun(config.run_dir):
        raise ConfigError(
            f"{config.run_dir} was trained on other data: {reason}; go on with the same data, "
            "or choose another run_dir"
        )
    if others := begun_runs(directory):
        raise ConfigError(
            f"{directory}: {reason}, but {others[0]} was trained on the data that is there; "
            "choose another data.prepared_dir"
        )


def open_prepared(directory: Path) -> Prepared:
    """Open a prepared directory; raises IntegrityError for a damaged file.

    Of the codec and the validation text the hashes are verified, of the corpora only the sizes.
    """
    if read_about(directory).about.get("format") != PREPARED_DATA:
        raise DataError(f"{directory}: prepared by another version; run nmt-prepare again")
    with prepared_directory.advised(directory):
        sealed = SealedDirectory(directory, exact=False)
        sealed.verify([name for name in sealed.entries if not name.startswith(CORPUS_FILES)])
        return Prepared(
            directory=directory,
            codec=Codec.load(directory),
            train=EncodedCorpus(sealed, TRAIN),
            validations={
                role: ValidationSet(EncodedCorpus(sealed, role), read_validation(sealed, role))
                for role in sealed.about["corpora"]
                if role != TRAIN
            },
            fingerprint=prepared_directory.fingerprint(sealed.entries),
            sealed=sealed,
        )


def settings_that_matter(config: Config, start: StartCodec | None = None) -> dict[str, Any]:
    """The settings that the prepared data depends on, as they are read back from JSON."""
    data = config.data
    subword = asdict(data.subword)
    del subword["reserved"], subword["dropout"]
    if data.reserved:  # data that was prepared before there were such symbols has no such entry
        subword["reserved"] = data.reserved
    # Of dropout the vocabularies of BPE depend on the sides that have it, and nothing else.
    dropped = [side for side in SIDES if getattr(data.subword.dropout, side)]
    if dropped and data.subword.kind == "bpe":
        subword["dropout"] = dropped
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
        settings[CODEC_SETTING] = start.digest
        if data.extend_vocabulary is not None:
            settings["data.extend_vocabulary"] = data.extend_vocabulary
    corpora: dict[str, ParallelFiles] = {**train_roles(data), **validation_roles(data)}
    if tags := {role: corpus.tag for role, corpus in corpora.items() if corpus.tag is not None}:
        settings["tags"] = tags
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def with_prepared_choices(config: Config, prepared: Prepared) -> Config:
    """The config with the tokenizers and subwords that the data was prepared with."""
    return replace(config, data=with_settings(config.data, prepared.about["settings"]))


def shared_vocabulary(config: Config) -> bool:
    """Whether both sides need the same ids for the same pieces, to share an embedding."""
    return config.model.tie_embeddings == "all"


def out_of_date(
    directory: Path,
    settings: dict[str, Any],
    inputs: list[dict[str, Any]],
) -> str | None:
    """The reason why a directory has to be prepared again, or None."""
    if not (directory / MANIFEST).exists():
        return "there is no prepared data yet"
    manifest = read_about(directory)
    if manifest.about.get("format") != PREPARED_DATA:
        return "it was prepared by another version"
    recorded = manifest.about.get("settings", {})
    if CODEC_SETTING in settings:  # data whose codec was learned serves a run that starts with it
        recorded = {CODEC_SETTING: codec_digest(manifest.files), **recorded}
    settings = with_recorded_choices(settings, recorded)
    if changes := prepared_directory.changed_settings(recorded, settings):
        return f"changed settings ({changes})"
    if changed := prepared_directory.changed_input(manifest.about.get("inputs", []), inputs):
        return f"changed input ({changed})"
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
    total = sum(count_pairs(config.data, config.data.train, "reading training text"))
    config = replace(config, data=choose_encoding(config.data, pairs=total))
    with replaced_directory(directory, about) as temporary:
        about |= {
            "format": PREPARED_DATA,
            "settings": settings_that_matter(config, start),
            "inputs": [
                {**entry, "sha256": prepared_directory.input_sha256(entry)} for entry in inputs
            ],
            "runs": runs_with(directory, config.run_dir),
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
    codec = make_codec(config, total, start, workers=workers)
    if unknown := sorted(set(data.reserved) - set(codec.reserved)):
        raise ConfigError(
            f"{unknown[0]} is no reserved symbol of the model in train.start_from; add it to its "
            "vocabulary with data.extend_vocabulary, or leave out this tag or symbol"
        )
    codec.save(directory)
    train = encode_training(data, directory, codec, total=total, workers=workers)
    validations = {
        role: encode_validation(data, corpus, directory, role, codec)
        for role, corpus in validation_roles(data).items()
    }
    sizes = {"source": len(codec.source.vocabulary), "target": len(codec.target.vocabulary)}
    return {"corpora": {TRAIN: train, **validations}, "vocabulary": sizes}


def make_codec(config: Config, total: int, start: StartCodec | None, *, workers: int) -> Codec:
    """The codec of the start, extended if that is asked for, or one that is learned."""
    most = config.data.extend_vocabulary
    if start is None:
        counts = count_words(config.data, total, workers=workers)
        return Codec.from_counts(config.data, counts, shared_vocabulary=shared_vocabulary(config))
    if most is None or start.is_extended:
        return start.codec
    counts = count_words(config.data, total, workers=workers)
    codec = start.codec.extended(counts, most=most, symbols=config.data.reserved)
    for side in SIDES:
        before, after = (len(getattr(it, side).vocabulary) for it in (start.codec, codec))
        logger.info("%s vocabulary: %d new pieces after %d", side, after - before, before)
    return codec


def count_words(data: DataConfig, total: int, *, workers: int) -> Mapping[Side, Counter[str]]:
    """The words of the training text, or of an even sample of it, on each side."""
    sample = min(data.subword.sample_pairs or total, total)
    pairs: Iterator[Pair] = chain.from_iterable(
        read_tagged(data, corpus, ReadStatistics()) for corpus in data.train
    )
    if sample < total:
        logger.info("subwords are learned from %d of %d pairs", sample, total)
        pairs = evenly(pairs, sample, total)
    specs = tokenizer_specs(data)
    with progress_bar(total=sample, unit="pair", description="counting words") as bar:
        return count_both_sides(pairs, specs, workers=workers, advance=bar.update)


def encode_training(
    data: DataConfig, directory: Path, codec: Codec, *, total: int, workers: int
) -> dict[str, Any]:
    """Write the training corpora one after another; returns their description for the manifest."""
    limits = LengthLimits(longest=data.max_length, ratio=data.max_ratio)
    parts = []
    with (
        progress_bar(total=total, unit="pair", description="encoding training text") as bar,
        CorpusWriter(directory, TRAIN, token_types(codec)) as writer,
    ):
        for corpus in data.train:
            statistics = ReadStatistics()
            pairs = read_tagged(data, corpus, statistics)
            chunks = encode_pairs(pairs, directory, limits, workers=workers)
            part = write_chunks(writer, chunks, statistics, advance=bar.update)
            if part["pairs"] == 0:
                counts = part["left_out"].items()
                reasons = ", ".join(f"{reason}: {count}" for reason, count in counts)
                which = f" of {corpus.name}" if len(data.train) > 1 else ""
                raise DataError(
                    f"no training pair{which} is left ({reasons}); see data.max_length, max_ratio"
                )
            parts.append({**part, "name": corpus.name})
    whole = {**writer.describe(), "read": parts[0]["read"], "left_out": parts[0]["left_out"]}
    if len(parts) > 1:
        left_out = sum((Counter(part["left_out"]) for part in parts), Counter[str]())
        whole["read"] = sum(part["read"] for part in parts)
        whole["left_out"] = dict(sorted(left_out.items()))
        whole["parts"] = parts
    return whole


def encode_validation(
    data: DataConfig, corpus: ParallelFiles, directory: Path, role: str, codec: Codec
) -> dict[str, Any]:
    """Write a validation corpus and its raw text; pairs of any length are kept."""
    statistics = ReadStatistics()
    with (
        new_file(directory / text_file(role, "source")) as source,
        new_file(directory / text_file(role, "target")) as target,
        CorpusWriter(directory, role, token_types(codec)) as writer,
    ):
        pairs = keep_text(read_tagged(data, corpus, statistics), source, target)
        chunks = encode_pairs(pairs, directory, LengthLimits(empty=True), workers=1)
        return write_chunks(writer, chunks, statistics)


def write_chunks(
    writer: CorpusWriter,
    chunks: Iterable[EncodedChunk],
    statistics: ReadStatistics,
    advance: Callable[[int], object] = lambda _pairs: None,
) -> dict[str, Any]:
    """Append the encoded chunks of a corpus; returns its description for the manifest."""
    before = writer.describe()
    left_out: Counter[str] = Counter()
    for chunk in chunks:
        writer.append(chunk.tokens, chunk.lengths)
        left_out += chunk.left_out
        advance(chunk.read)
    left_out += statistics.skipped
    after = writer.describe()
    sides: dict[str, Any] = {
        side: {**after[side], "tokens": after[side]["tokens"] - before[side]["tokens"]}
        for side in SIDES
    }
    counts = {"read": statistics.read, "left_out": dict(sorted(left_out.items()))}
    return {"pairs": after["pairs"] - before["pairs"], **sides, **counts}


def keep_text(pairs: Iterable[Pair], source: BinaryIO, target: BinaryIO) -> Iterator[Pair]:
    """The same pairs, while the text of each side is written to a file."""
    for pair in pairs:
        source.write(f"{pair.source}\n".encode())
        target.write(f"{pair.target}\n".encode())
        yield pair


def text_file(role: str, side: Side) -> str:
    """The name of the file with the raw text of a side of a validation corpus."""
    return f"{role}.{side}.txt"


def read_validation(sealed: SealedDirectory, role: str) -> dict[Side, list[str]]:
    """The raw text of a validation corpus, as `keep_text` has written it."""
    text: dict[Side, list[str]] = {}
    for side in SIDES:
        with sealed.open(text_file(role, side)) as path:
            text[side] = path.read_bytes().decode().removesuffix("\n").split("\n")
    return text
