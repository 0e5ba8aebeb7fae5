"""Tokenizers and numbers of subwords that the config leaves open."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import tiny_config, write_corpus, write_run

from nmt.config.config import Config, DataConfig, SubwordConfig, TokenizerConfig
from nmt.config.loading import dump_config, load_config, parse_config
from nmt.data.codec import Codec
from nmt.data.encoding_choice import choose_encoding
from nmt.data.prepare import prepare, with_prepared_choices
from nmt.errors import ConfigError
from nmt.storage.manifest import MANIFEST


def open_config(directory: Path, *settings: str) -> Config:
    """A config that leaves tokenizer and subwords open."""
    write_corpus(directory / "data")
    config = tiny_config(directory)
    del config["data"]["subword"]
    config["data"] |= {"source_language": "en", "target_language": "de"}
    return load_config(write_run(directory, config), settings)


@pytest.mark.parametrize(
    ("pairs", "merges"),
    [(10_000, 4_000), (100_000, 8_000), (1_000_000, 16_000), (10_000_000, 32_000)],
)
def test_subwords_by_the_number_of_pairs(tmp_path: Path, pairs: int, merges: int) -> None:
    data = open_config(tmp_path).data
    assert choose_encoding(data, pairs=pairs).subword.merges == merges
    pieces = replace(data, subword=SubwordConfig("sentencepiece"))
    assert choose_encoding(pieces, pairs=pairs).subword.vocabulary_size == merges
    given = replace(data, subword=SubwordConfig("bpe", merges=123))
    assert choose_encoding(given, pairs=pairs).subword.merges == 123


def test_tokenizer_by_language(tmp_path: Path) -> None:
    data = open_config(tmp_path).data

    def chosen(source: str, target: str, tokenizer: TokenizerConfig) -> tuple[str, str]:
        languages = {"source_language": source, "target_language": target}
        found = choose_encoding(replace(data, tokenizer=tokenizer, **languages), pairs=1).tokenizer
        return found.source, found.target

    auto = TokenizerConfig()
    assert chosen("en", "de", auto) == ("moses", "moses")
    assert chosen("zh", "pt-BR", auto) == ("jieba", "moses")
    assert chosen("ja", "th", auto) == ("none", "none")
    assert chosen("en", "de", TokenizerConfig("none", "auto")) == ("none", "moses")
    for code in ("ZH", "Zh-cn", "zh_Hant", "chi", "zho", "yue-HK"):
        assert chosen(code, "kmr", auto) == ("jieba", "moses")
    for code in ("jpn", "JA", "khm", "lao", "th-TH"):
        assert chosen(code, "bos", auto) == ("none", "moses")
    assert chosen("jav", "myv", auto) == ("moses", "moses")


def test_codes_that_are_unknown_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = open_config(tmp_path).data
    for source, target in (("cn", "JP"), ("english", "en"), ("zza", "pt-BR")):
        choose_encoding(replace(data, source_language=source, target_language=target), pairs=1)
    choose_encoding(
        replace(data, source_language="xx", tokenizer=TokenizerConfig("none", "none")), pairs=1
    )
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [text.partition(";")[0] for text in warnings] == [
        "cn is no language code of ISO 639 (did you mean zh?)",
        "JP is no language code of ISO 639 (did you mean ja?)",
        "english is no language code of ISO 639",
    ]


@pytest.mark.parametrize("code", ["ZH", "zho", "yue", "zhx"])
def test_jieba_for_chinese(tmp_path: Path, code: str) -> None:
    """Earlier versions chose it for every code that begins with zh, and recorded it."""
    settings = [f"data.source_language={code}", "data.tokenizer.source=jieba"]
    assert open_config(tmp_path, *settings).data.tokenizer.source == "jieba"
    with pytest.raises(ConfigError, match="jieba splits Chinese"):
        open_config(tmp_path, "data.source_language=khm", "data.tokenizer.source=jieba")


def test_a_space_before_the_full_stop_makes_no_difference(tmp_path: Path) -> None:
    data: DataConfig = open_config(tmp_path).data
    codec = Codec.learn(data, [("A dog sleeps.", "Ein Hund schläft."), ("A man.", "Ein Mann.")])
    assert codec.source.encode("A dog sleeps.") == codec.source.encode("A dog sleeps .")
    assert codec.target.decode(codec.target.encode("Ein Hund .")) == "Ein Hund."


def test_prepared_data_records_what_was_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    config = open_config(tmp_path)
    prepared = prepare(config)
    settings = prepared.about["settings"]
    assert settings["data.tokenizer"] == {"source": "moses", "target": "moses"}
    assert settings["data.subword"]["merges"] == 4_000
    assert "4,000 BPE merges" in caplog.text
    chosen = with_prepared_choices(config, prepared)
    assert (chosen.data.tokenizer.source, chosen.data.subword.merges) == ("moses", 4_000)
    text = dump_config(chosen)
    assert parse_config(text, name="chosen", directory=tmp_path) == chosen
    before = (prepared.directory / MANIFEST).stat().st_mtime_ns
    assert prepare(config).fingerprint == prepared.fingerprint
    assert (prepared.directory / MANIFEST).stat().st_mtime_ns == before


def test_data_of_an_earlier_version_is_not_prepared_again(tmp_path: Path) -> None:
    """Its defaults were no tokenizer and 32,000 merges, which its manifest names."""
    earlier = ("data.tokenizer=none", "data.subword.merges=32000")
    prepared = prepare(open_config(tmp_path, *earlier))
    again = prepare(open_config(tmp_path))
    assert again.fingerprint == prepared.fingerprint
    codec = json.loads((again.directory / "codec.json").read_bytes())
    assert codec["source"]["tokenizer"] == "none"
    other = prepare(open_config(tmp_path, "data.tokenizer=moses"))
    assert other.about["settings"]["data.tokenizer"]["source"] == "moses"
