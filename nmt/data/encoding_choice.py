"""How raw text is encoded where the config leaves it open: by language and by number of pairs."""

import logging
from dataclasses import replace
from typing import Any

from nmt.config.config import (
    SUBWORD_OPTIONS,
    DataConfig,
    SubwordConfig,
    TokenizerConfig,
    TokenizerKind,
)
from nmt.languages import CHINESE, OF_COUNTRIES, TWO_LETTERS, WITHOUT_SPACES, base_language

logger = logging.getLogger(__name__)

# The subwords by the largest number of pairs. Long pieces are rare in a small corpus: Sennrich
# and Zhang (2019) and Araabi and Monz (2020) measured the best sizes for little data, and 32,000 is
# usual from a few million pairs.
SUBWORDS = ((30_000, 4_000), (300_000, 8_000), (3_000_000, 16_000))
MOST_SUBWORDS = 32_000
WORD_VOCABULARY = 32_000  # of a vocabulary of whole words, whatever the size of the corpus

OPEN: tuple[Any, ...] = ("auto", 0)  # values that stand for a choice
CHOSEN = {"data.tokenizer": ("source", "target"), "data.subword": ("merges", "vocabulary_size")}


def choose_encoding(data: DataConfig, *, pairs: int) -> DataConfig:
    """The config with the tokenizers and the number of subwords that suit its languages and size.

    Values that are given stay.
    """
    tokenizer, subword = data.tokenizer, data.subword
    size = WORD_VOCABULARY if subword.kind == "none" else num_subwords(pairs)
    sizes: dict[str, Any] = {name: getattr(subword, name) or size for name in sizes_of(subword)}
    chosen = replace(
        data,
        tokenizer=TokenizerConfig(
            source=choose_tokenizer(tokenizer.source, data.source_language),
            target=choose_tokenizer(tokenizer.target, data.target_language),
        ),
        subword=replace(subword, **sizes),
    )
    if chosen != data:
        logger.info("%s", describe_encoding(chosen, pairs=pairs))
    return chosen


def sizes_of(subword: SubwordConfig) -> list[str]:
    """The options of a kind of subwords that say how many there are."""
    return [name for name in CHOSEN["data.subword"] if name in SUBWORD_OPTIONS[subword.kind]]


def choose_tokenizer(kind: TokenizerKind, language: str) -> TokenizerKind:
    """The tokenizer of a language: jieba for Chinese, Moses where spaces separate words."""
    if kind != "auto":
        return kind
    base = base_language(language)
    if base in CHINESE:
        return "jieba"
    if base in WITHOUT_SPACES:
        return "none"
    if len(base) != 3 and base not in TWO_LETTERS:
        meant = f" (did you mean {OF_COUNTRIES[base]}?)" if base in OF_COUNTRIES else ""
        logger.warning(
            "%s is no language code of ISO 639%s; its words are taken to be separated by spaces",
            language,
            meant,
        )
    return "moses"


def num_subwords(pairs: int) -> int:
    """The number of merges or pieces for a corpus, by its number of pairs."""
    return next((size for most, size in SUBWORDS if pairs <= most), MOST_SUBWORDS)


def describe_encoding(data: DataConfig, *, pairs: int) -> str:
    """The log line about tokenizers and subwords."""
    subword: SubwordConfig = data.subword
    size = subword.merges if subword.kind == "bpe" else subword.vocabulary_size
    unit = {"bpe": "BPE merges", "sentencepiece": "pieces", "none": "words"}[subword.kind]
    return (
        f"encoding for {pairs:,} pairs: tokenizer {data.tokenizer.source} (source), "
        f"{data.tokenizer.target} (target); {size:,} {unit}"
    )


def with_recorded_choices(settings: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Settings of prepared data, with what they leave open as it was recorded."""
    settled = dict(settings)
    for key, names in CHOSEN.items():
        values, before = dict(settings[key]), recorded.get(key, {})
        for name in names:
            if values[name] in OPEN:
                values[name] = before.get(name, values[name])
        settled[key] = values
    return settled


def with_choices_of(data: DataConfig, other: DataConfig) -> DataConfig:
    """The config with what it leaves open as another one, of the same run, has it."""
    changes: dict[str, Any] = {}
    for key, names in CHOSEN.items():
        section = key.removeprefix("data.")
        own, former = getattr(data, section), getattr(other, section)
        taken = {name: getattr(former, name) for name in names if getattr(own, name) in OPEN}
        changes[section] = replace(own, **taken)
    return replace(data, **changes)


def with_settings(data: DataConfig, settings: dict[str, Any]) -> DataConfig:
    """The config with the choices that prepared data records."""
    sizes = {name: settings["data.subword"][name] for name in sizes_of(data.subword)}
    other = replace(
        data,
        tokenizer=TokenizerConfig(**settings["data.tokenizer"]),
        subword=replace(data.subword, **sizes),
    )
    return with_choices_of(data, other)
