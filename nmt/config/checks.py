"""Combinations of settings that cannot work, found before any data is opened.

Each check yields findings about one section or about the whole config, and reads no files.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.config.config import (
    SUBWORD_OPTIONS,
    AttentionConfig,
    Config,
    DataConfig,
    ModelConfig,
    ParallelFiles,
    TrainConfig,
    TrainingCorpus,
    ValidateConfig,
    resolved_prepared_dir,
)
from nmt.config.limits import LANGUAGE_CODE, MAX_SYMBOL_LENGTH
from nmt.languages import CHINESE, base_language

NUM_CONTROL_SYMBOLS = 4
HIGHEST_RATE = 0.1
CORPUS_NAME = re.compile("[A-Za-z0-9_-]{1,60}")
RUN_FOLDERS = ("checkpoints", "best", "average", "tensorboard")


@dataclass(frozen=True)
class Finding:
    """A problem, and the dotted keys it is about, the most likely cause first."""

    message: str
    keys: tuple[str, ...]


def check(sections: Mapping[str, Any]) -> Iterator[Finding]:
    """All findings about the sections that could be read; the empty name is the whole config."""
    for name, section_check in CHECKS.items():
        if name in sections:
            yield from section_check(sections[name])


def check_data(data: DataConfig) -> Iterator[Finding]:
    """Files that cannot be a parallel corpus, and settings that would leave no pair."""
    yield from check_corpora(data.train, "data.train")
    yield from check_corpora(data.validation, "data.validation")
    for path in sorted(set(all_files(data.train)) & set(all_files(data.validation))):
        yield Finding(
            f"{path} is also a file of data.train; validation needs text that is not trained on",
            ("data.validation", "data.train"),
        )
    yield from check_languages(data)
    size = data.subword.vocabulary_size
    if "vocabulary_size" in SUBWORD_OPTIONS[data.subword.kind] and 0 < size <= NUM_CONTROL_SYMBOLS:
        yield Finding(
            f"expected more than the {NUM_CONTROL_SYMBOLS} control symbols, got {size}",
            ("data.subword.vocabulary_size",),
        )
    yield from check_reserved(data.subword.reserved, "data.subword.reserved")
    if 0.0 < data.max_ratio < 1.0:
        yield Finding(
            f"expected 0 (any ratio) or at least 1, got {data.max_ratio:g}; it is the longer side "
            "divided by the shorter, so every pair would be left out",
            ("data.max_ratio",),
        )


def check_corpora(corpora: Sequence[ParallelFiles], key: str) -> Iterator[Finding]:
    """Files that do not match, ambiguous names, impossible tags, and empty windows."""
    names = [corpus.name for corpus in corpora]
    for index, corpus in enumerate(corpora):
        own = key if len(corpora) == 1 else f"{key}[{index}]"
        yield from check_parallel(corpus, own)
        if corpus.name is None:
            if len(corpora) > 1:
                yield Finding("a corpus of a list needs a name", (f"{own}.name", own))
        elif not CORPUS_NAME.fullmatch(corpus.name):
            message = f"expected letters, digits, - and _, got {corpus.name[:60]!r}"
            yield Finding(message, (f"{own}.name",))
        elif corpus.name in names[:index]:
            message = f"another corpus of {key} has the name {corpus.name}, too; choose another"
            yield Finding(message, (f"{own}.name",))
        if corpus.tag is not None:
            yield from check_reserved((corpus.tag,), f"{own}.tag")
        if isinstance(corpus, TrainingCorpus) and corpus.until_update is not None:
            after = corpus.from_update or 0
            if after >= corpus.until_update:
                yield Finding(
                    f"expected more than from_update {after}, got {corpus.until_update}; no "
                    "update would use the corpus",
                    (f"{own}.until_update",),
                )


def check_windows(config: Config) -> Iterator[Finding]:
    """Updates without a corpus to train on."""
    corpora, done = config.data.train, 0
    while done < config.train.max_updates:
        ends = [
            math.inf if corpus.until_update is None else corpus.until_update
            for corpus in corpora
            if (corpus.from_update or 0) <= done
        ]
        if max(ends, default=0) <= done:
            yield Finding(
                f"no corpus is used in update {done + 1}; train.max_updates is "
                f"{config.train.max_updates}: see from_update and until_update",
                ("data.train",),
            )
            return
        done = int(min(max(ends), config.train.max_updates))


def check_reserved(symbols: tuple[str, ...], key: str) -> Iterator[Finding]:
    """Symbols that a line of text cannot contain as one word, and symbols given twice."""
    for symbol in symbols:
        if not symbol or not symbol.isprintable() or any(map(str.isspace, symbol)):
            message = f"expected a symbol without spaces such as <num>, got {symbol[:60]!r}"
            yield Finding(message, (key,))
        elif len(symbol) > MAX_SYMBOL_LENGTH:
            message = f"expected at most {MAX_SYMBOL_LENGTH} characters, got {symbol[:60]!r}..."
            yield Finding(message, (key,))
        elif symbols.count(symbol) > 1:
            yield Finding(f"{symbol} is given twice; remove one", (key,))


def all_files(corpora: Sequence[ParallelFiles]) -> list[Path]:
    """The files of both sides of all corpora."""
    return [path for corpus in corpora for path in corpus.source + corpus.target]


def check_parallel(files: ParallelFiles, key: str) -> Iterator[Finding]:
    """Two sides that do not match each other."""
    keys = (f"{key}.target", f"{key}.source", key)
    if len(files.source) != len(files.target):
        yield Finding(
            f"{len(files.source)} files in {key}.source, but {len(files.target)} in {key}.target; "
            "each source file needs its translation",
            keys,
        )
    for path in sorted(set(files.source) & set(files.target)):
        yield Finding(f"{path} is both in {key}.source and in {key}.target", keys)


def check_languages(data: DataConfig) -> Iterator[Finding]:
    """Invalid language codes, and a tokenizer for another language."""
    for side in ("source", "target"):
        language = getattr(data, f"{side}_language")
        key = f"data.{side}_language"
        if not LANGUAGE_CODE.fullmatch(language):
            yield Finding(f"expected a language code such as en or pt-BR, got {language!r}", (key,))
        elif getattr(data.tokenizer, side) == "jieba" and not may_be_chinese(language):
            yield Finding(
                f"jieba splits Chinese, but {key} is {language!r}; use moses or none, or say zh",
                (f"data.tokenizer.{side}", "data.tokenizer", key),
            )


def may_be_chinese(code: str) -> bool:
    """Whether jieba may split a language; earlier versions chose it for all that begin with zh."""
    return base_language(code) in CHINESE or code.startswith("zh")


def check_model(model: ModelConfig) -> Iterator[Finding]:
    """Sizes that do not fit together, and attention that cannot be built."""
    if model.dim % model.heads:
        yield Finding(
            f"model.dim {model.dim} is not a multiple of model.heads {model.heads}",
            ("model.heads", "model.dim"),
        )
    if model.dim % 2:
        message = "the position encoding needs pairs of sine and cosine"
        yield Finding(f"expected an even number, got {model.dim}; {message}", ("model.dim",))
    for type_name, layers in (
        ("encoder_self", "encoder_layers"),
        ("decoder_self", "decoder_layers"),
        ("cross", "decoder_layers"),
    ):
        sublayer = getattr(model.attention, type_name)
        key = f"model.attention.{type_name}"
        yield from check_attention(sublayer, key)
        num_layers = getattr(model, layers)
        for layer, exception in sublayer.layers.items():
            yield from check_attention(exception, f"{key}.layers.{layer}")
            if not 0 <= layer < num_layers:
                yield Finding(
                    f"there is no layer {layer}: model.{layers} is {num_layers}, and layers are "
                    f"counted from 0 to {num_layers - 1}",
                    (f"{key}.layers.{layer}",),
                )


def check_attention(attention: AttentionConfig, key: str) -> Iterator[Finding]:
    """Missing required options, and options that exclude each other."""
    for name, option in attention.row.options.items():
        if option.required is not None and name not in attention.given:
            yield Finding(f"{attention.kind} needs {name}: {option.required}", (f"{key}.kind", key))
    if attention.given.get("norm") == "none" and "gain_init" in attention.given:
        message = f"there is no gain without a norm ({key}.norm is none); leave it out"
        yield Finding(message, (f"{key}.gain_init",))


def check_train(train: TrainConfig) -> Iterator[Finding]:
    """Schedules that never reach their learning rate, and precision that the device lacks."""
    schedule = train.schedule
    if schedule.warmup > train.max_updates:
        yield Finding(
            f"train.schedule.warmup {schedule.warmup} is more than train.max_updates "
            f"{train.max_updates}; the learning rate would never reach its peak",
            ("train.schedule.warmup", "train.schedule", "train.max_updates"),
        )
    if schedule.kind == "noam" and schedule.warmup == 0:
        message = "noam divides by the warm-up; give it at least 1 update"
        yield Finding(message, ("train.schedule.warmup",))
    if schedule.kind != "noam" and train.learning_rate > HIGHEST_RATE:
        yield Finding(
            f"with train.schedule.kind {schedule.kind} this is the rate itself, and "
            f"{train.learning_rate:g} is more than {HIGHEST_RATE:g}; 3e-4 is a usual value",
            ("train.learning_rate", "train.schedule.kind"),
        )
    if train.precision == "float16" and train.device == "cpu":
        message = "float16 needs a GPU, but train.device is cpu; use bfloat16 or float32"
        yield Finding(message, ("train.precision", "train.device"))


def check_validate(validate: ValidateConfig) -> Iterator[Finding]:
    """Settings of decoding without decoding."""
    if validate.beam > 0:
        return
    if validate.metric in ("bleu", "chrf"):
        yield Finding(
            f"validate.metric {validate.metric} needs translations, but validate.beam is 0; "
            "use a beam of at least 1, or the metric loss or perplexity",
            ("validate.metric", "validate.beam"),
        )
    if validate.sentences > 0:
        message = "it limits decoding, but validate.beam 0 leaves decoding out"
        yield Finding(message, ("validate.sentences", "validate.beam"))


def check_whole(config: Config) -> Iterator[Finding]:
    """Problems that concern more than one section."""
    subword = config.data.subword
    if config.model.tie_embeddings == "all" and not subword.joint:
        yield Finding(
            "all needs one vocabulary for both sides, but data.subword.joint is false; "
            "use target, or joint subwords",
            ("model.tie_embeddings", "data.subword.joint"),
        )
    if "vocabulary_size" in SUBWORD_OPTIONS[subword.kind]:
        for key, beam in (("decode", config.decode.beam), ("validate", config.validate.beam)):
            if 0 < subword.vocabulary_size < beam:
                yield Finding(
                    f"{beam} is more than data.subword.vocabulary_size {subword.vocabulary_size}",
                    (f"{key}.beam",),
                )
    names = [corpus.name for corpus in config.data.validation]
    if config.validate.corpus is not None and config.validate.corpus not in names:
        known = ", ".join(name for name in names if name is not None) or "none has one"
        yield Finding(
            f"expected the name of a corpus of data.validation ({known}), got "
            f"{config.validate.corpus!r}",
            ("validate.corpus",),
        )
    yield from check_windows(config)
    if config.data.extend_vocabulary is not None and config.train.start_from is None:
        message = "there is no vocabulary to extend without train.start_from; leave it out"
        yield Finding(message, ("data.extend_vocabulary",))
    yield from check_folders(config)


def check_folders(config: Config) -> Iterator[Finding]:
    """Folders whose content would overwrite the text or each other."""
    run_dir, prepared_dir = config.run_dir, resolved_prepared_dir(config)
    own_directory = "prepared data needs its own directory"
    if run_dir == Path(run_dir.anchor):
        yield Finding("the root of the file system cannot be a run directory", ("run_dir",))
    if run_dir.is_relative_to(prepared_dir):
        yield Finding(f"run_dir is the same or inside it; {own_directory}", ("data.prepared_dir",))
    for folder in RUN_FOLDERS:
        if prepared_dir.is_relative_to(run_dir / folder):
            yield Finding(f"{run_dir / folder} is for what the run writes", ("data.prepared_dir",))
    text = dict.fromkeys(all_files(config.data.train), "data.train")
    text |= dict.fromkeys(all_files(config.data.validation), "data.validation")
    for path, key in text.items():
        if run_dir in (path, path.parent):
            yield Finding(
                f"{path} of {key} is there; give the run a directory of its own", ("run_dir",)
            )
        if any(path.is_relative_to(run_dir / folder) for folder in RUN_FOLDERS):
            yield Finding(f"{path} lies among the files that the run writes", (key,))
        if path.is_relative_to(prepared_dir) or prepared_dir.is_relative_to(path):
            yield Finding(f"{path} of {key} is there; {own_directory}", ("data.prepared_dir",))


CHECKS: dict[str, Callable[[Any], Iterator[Finding]]] = {
    "data": check_data,
    "model": check_model,
    "train": check_train,
    "validate": check_validate,
    "": check_whole,
}
