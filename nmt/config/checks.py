"""Combinations of settings that cannot work, found before any data is opened.

Each check yields findings about one section, or about the whole; none touches the file system.
"""

from collections.abc import Callable, Iterator, Mapping
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
    SubwordConfig,
    TrainConfig,
    ValidateConfig,
    resolved_prepared_dir,
)
from nmt.config.limits import LANGUAGE_CODE

CHINESE = ("zh", "cmn", "yue", "wuu", "lzh")
NUM_CONTROL_SYMBOLS = 4
HIGHEST_RATE = 0.1
RUN_FOLDERS = ("checkpoints", "best", "average", "tensorboard")


@dataclass(frozen=True)
class Finding:
    """What is wrong, and the dotted keys it is about, the likeliest culprit first."""

    keys: tuple[str, ...]
    message: str


def check(sections: Mapping[str, Any]) -> Iterator[Finding]:
    """All findings about the sections that could be read; the empty name is the whole config."""
    for name, section_check in CHECKS.items():
        if name in sections:
            yield from section_check(sections[name])


def check_data(data: DataConfig) -> Iterator[Finding]:
    """Files that cannot be a parallel corpus, and settings that leave nothing of one."""
    yield from check_parallel(data.train, "data.train")
    yield from check_parallel(data.validation, "data.validation")
    for path in sorted(set(all_files(data.train)) & set(all_files(data.validation))):
        yield Finding(
            ("data.validation", "data.train"),
            f"{path} is also a file of data.train; validation needs text that is not trained on",
        )
    yield from check_languages(data)
    yield from check_subword(data.subword)
    if 0.0 < data.max_ratio < 1.0:
        yield Finding(
            ("data.max_ratio",),
            f"expected 0 (any ratio) or at least 1, got {data.max_ratio:g}; it is the longer side "
            "divided by the shorter, so every pair would be left out",
        )


def all_files(files: ParallelFiles) -> tuple[Path, ...]:
    """The files of both sides."""
    return files.source + files.target


def check_parallel(files: ParallelFiles, key: str) -> Iterator[Finding]:
    """Two sides that do not match each other."""
    keys = (f"{key}.target", f"{key}.source", key)
    if len(files.source) != len(files.target):
        yield Finding(
            keys,
            f"{len(files.source)} files in {key}.source, but {len(files.target)} in {key}.target; "
            "each source file needs its translation",
        )
    for path in sorted(set(files.source) & set(files.target)):
        yield Finding(keys, f"{path} is both in {key}.source and in {key}.target")


def check_languages(data: DataConfig) -> Iterator[Finding]:
    """Language codes that are none, and a tokenizer for another language."""
    for side in ("source", "target"):
        language = getattr(data, f"{side}_language")
        key = f"data.{side}_language"
        if not LANGUAGE_CODE.fullmatch(language):
            message = f"expected a language code such as en or pt-BR, got {language!r}"
            yield Finding((key,), message)
        elif getattr(data.tokenizer, side) == "jieba" and not language.startswith(CHINESE):
            yield Finding(
                (f"data.tokenizer.{side}", "data.tokenizer", key),
                f"jieba splits Chinese, but {key} is {language!r}; use moses or none, or say zh",
            )


def check_subword(subword: SubwordConfig) -> Iterator[Finding]:
    """A vocabulary too small for anything."""
    sized = "vocabulary_size" in SUBWORD_OPTIONS[subword.kind]
    if sized and subword.vocabulary_size <= NUM_CONTROL_SYMBOLS:
        yield Finding(
            ("data.subword.vocabulary_size",),
            f"expected more than the {NUM_CONTROL_SYMBOLS} control symbols, "
            f"got {subword.vocabulary_size}",
        )


def check_model(model: ModelConfig) -> Iterator[Finding]:
    """Sizes that do not fit each other, and attention that cannot be built."""
    if model.dim % model.heads:
        yield Finding(
            ("model.heads", "model.dim"),
            f"model.dim {model.dim} is not a multiple of model.heads {model.heads}",
        )
    if model.dim % 2:
        yield Finding(
            ("model.dim",), f"expected an even number, got {model.dim}; positions need pairs"
        )
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
                    (f"{key}.layers.{layer}",),
                    f"there is no layer {layer}: model.{layers} is {num_layers}, and layers are "
                    f"counted from 0 to {num_layers - 1}",
                )


def check_attention(attention: AttentionConfig, key: str) -> Iterator[Finding]:
    """Options that the kind cannot do without, and options that make no sense together."""
    for name, option in attention.row.options.items():
        if option.required is not None and name not in attention.given:
            message = f"{attention.kind} needs {name}: {option.required}"
            yield Finding((f"{key}.kind", key), message)
    if attention.given.get("norm") == "none" and "gain_init" in attention.given:
        message = f"there is no gain without a norm ({key}.norm is none); leave it out"
        yield Finding((f"{key}.gain_init",), message)


def check_train(train: TrainConfig) -> Iterator[Finding]:
    """Schedules that never reach their rate, and precision the device does not have."""
    schedule = train.schedule
    if schedule.warmup > train.max_updates:
        yield Finding(
            ("train.schedule.warmup", "train.schedule", "train.max_updates"),
            f"train.schedule.warmup {schedule.warmup} is more than train.max_updates "
            f"{train.max_updates}; the learning rate would never reach its peak",
        )
    if schedule.kind == "noam" and schedule.warmup == 0:
        yield Finding(
            ("train.schedule.warmup",), "noam divides by the warm-up; give it at least 1 update"
        )
    if schedule.kind != "noam" and train.learning_rate > HIGHEST_RATE:
        yield Finding(
            ("train.learning_rate", "train.schedule.kind"),
            f"with train.schedule.kind {schedule.kind} this is the rate itself, and "
            f"{train.learning_rate:g} is more than {HIGHEST_RATE:g}; 3e-4 is a usual value",
        )
    if train.precision == "float16" and train.device == "cpu":
        yield Finding(
            ("train.precision", "train.device"),
            "float16 needs a GPU, but train.device is cpu; use bfloat16 or float32",
        )


def check_validate(validate: ValidateConfig) -> Iterator[Finding]:
    """Settings of a decoding that does not take place."""
    if validate.beam > 0:
        return
    if validate.metric in ("bleu", "chrf"):
        yield Finding(
            ("validate.metric", "validate.beam"),
            f"validate.metric {validate.metric} needs translations, but validate.beam is 0; "
            "use a beam of at least 1, or the metric loss or perplexity",
        )
    if validate.sentences > 0:
        yield Finding(
            ("validate.sentences", "validate.beam"),
            "it limits decoding, but validate.beam 0 leaves decoding out",
        )


def check_whole(config: Config) -> Iterator[Finding]:
    """What concerns more than one section."""
    subword = config.data.subword
    if config.model.tie_embeddings == "all" and not subword.joint:
        yield Finding(
            ("model.tie_embeddings", "data.subword.joint"),
            "all needs one vocabulary for both sides, but data.subword.joint is false; "
            "use target, or joint subwords",
        )
    if "vocabulary_size" in SUBWORD_OPTIONS[subword.kind]:
        for key, beam in (("decode", config.decode.beam), ("validate", config.validate.beam)):
            if beam > subword.vocabulary_size:
                yield Finding(
                    (f"{key}.beam",),
                    f"{beam} is more than data.subword.vocabulary_size {subword.vocabulary_size}",
                )
    yield from check_folders(config)


def check_folders(config: Config) -> Iterator[Finding]:
    """Folders that would write over the text or over each other."""
    run_dir, prepared_dir = config.run_dir, resolved_prepared_dir(config)
    text = dict.fromkeys(all_files(config.data.train), "data.train")
    text |= dict.fromkeys(all_files(config.data.validation), "data.validation")
    if run_dir == Path(run_dir.anchor):
        yield Finding(("run_dir",), "the root of the file system cannot be a run directory")
    for path, key in text.items():
        if run_dir in (path, path.parent):
            yield Finding(
                ("run_dir",),
                f"{path} of {key} is there; give the run a directory of its own",
            )
        for folder in RUN_FOLDERS:
            if path.is_relative_to(run_dir / folder):
                yield Finding((key,), f"{path} lies among the files that the run writes")
    prepared = ("data.prepared_dir",)
    if run_dir.is_relative_to(prepared_dir):
        yield Finding(
            prepared, "run_dir is the same or inside it; prepared data needs its own directory"
        )
    for folder in RUN_FOLDERS:
        if prepared_dir.is_relative_to(run_dir / folder):
            yield Finding(prepared, f"{run_dir / folder} is for what the run writes")
    for path, key in text.items():
        if path.is_relative_to(prepared_dir) or prepared_dir.is_relative_to(path):
            yield Finding(
                prepared, f"{path} of {key} is there; prepared data needs its own directory"
            )


CHECKS: dict[str, Callable[[Any], Iterator[Finding]]] = {
    "data": check_data,
    "model": check_model,
    "train": check_train,
    "validate": check_validate,
    "": check_whole,
}
