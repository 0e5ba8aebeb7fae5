"""The meaning of written values: the traps of YAML, numbers, words and paths."""

from pathlib import Path

import pytest

from nmt.config.config import SublayerAttentionConfig, TokenizerConfig
from nmt.errors import ConfigError

# (line, attribute, value)
TRAPS_READ = [
    ("train: {learning_rate: 1e-4}", "train.learning_rate", 1e-4),
    ("train: {learning_rate: 1E-4}", "train.learning_rate", 1e-4),
    ("train: {learning_rate: .5}", "train.learning_rate", 0.5),
    ("train: {learning_rate: 1.}", "train.learning_rate", 1.0),
    ("train: {learning_rate: 1}", "train.learning_rate", 1.0),
    ("train: {learning_rate: +2.5e0}", "train.learning_rate", 2.5),
    ("train: {max_updates: 1e4}", "train.max_updates", 10_000),
    ("train: {max_updates: 1.0e+4}", "train.max_updates", 10_000),
    ("train: {max_updates: 100_000}", "train.max_updates", 100_000),
    ("seed: 0", "seed", 0),
    ("decode: {length_penalty: -0.5}", "decode.length_penalty", -0.5),
    ("train: {compile: true}", "train.compile", True),
    ("train: {compile: auto}", "train.compile", "auto"),
    ("train: {freeze: []}", "train.freeze", ()),
    ("validate: {metric: 'loss'}", "validate.metric", "loss"),
    ("model: {tie_embeddings: none}", "model.tie_embeddings", "none"),
]

TRAPS_REFUSED = [
    ("seed: 010", "write it without the leading zero"),
    ("train: {learning_rate: 00.5}", "write it without the leading zero"),
    ("seed: 0o10", "expected a whole number"),
    ("seed: 0x10", "expected a whole number"),
    ("seed: 0b11", "expected a whole number"),
    ("seed: 12:30:45", "expected a whole number"),
    ("train: {learning_rate: 1:30.5}", "expected a number"),
    ("seed: '1'", "remove the quotes"),
    ("train: {learning_rate: '0.1'}", "remove the quotes"),
    ("seed: 1.5", "expected a whole number"),
    ("seed: 1e400", "expected a whole number"),
    ("seed: 99999999999999999999", "too large"),
    ("seed: 1__0", "expected a whole number"),
    ("seed: 1,000", "expected a whole number"),
    ("seed: ٣", "expected a whole number"),
    ("seed: true", "expected a whole number"),
    ("seed:", "got nothing"),
    ("seed: ~", "leave the key out"),
    ("train: {learning_rate: .nan}", "must be finite"),
    ("train: {learning_rate: -.inf}", "must be finite"),
    ("train: {learning_rate: nan}", "must be finite"),
    ("train: {learning_rate: 1e999}", "too large"),
    ("train: {compile: yes}", "write true"),
    ("train: {compile: Off}", "write false"),
    ("train: {compile: True}", "write true"),
    ("train: {compile: n}", "write false"),
    ("train: {compile: 'true'}", "remove the quotes"),
    ("train: {compile: 1}", "expected true or false"),
    ("model: {tie_embeddings: null}", "write none"),
    ("model: {attention: {cross: {kind: rela-g, norm: null}}}", "write none, or leave"),
    ("run_dir2: x", "did you mean 'run_dir'?"),
    ("train: {seed: 1}", "unknown key 'seed'; 'seed' is a key of the top level"),
    ("train: {weight_decay: 1}", "unknown key 'weight_decay'; expected one of max_updates, "),
    ("train: {optimizer: sgd}", "unknown key 'optimizer'; expected one of max_updates, "),
    ("model: {batch_token: 1}", "did you mean 'train.batch_tokens'?"),
    ("<<: {seed: 1}", "unknown key '<<'"),
]


def lookup(config: object, dotted: str) -> object:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize(("line", "attribute", "value"), TRAPS_READ)
def test_read_as_plainly_meant(read, line, attribute, value):
    found = lookup(read(line), attribute)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("line", "reason"), TRAPS_REFUSED)
def test_refused_with_the_reason(problems_of, line, reason):
    message = problems_of(line)
    assert reason in message
    assert message.startswith("test.yaml:7: ")


@pytest.mark.parametrize("word", ["no", "NO", "on", "y", "true", "off", "'no'", '"on"'])
def test_words_stay_text_where_text_is_expected(read_text, word):
    config = read_text("source_language: en", f"source_language: {word}")
    assert config.data.source_language == word.strip("'\"")


def test_a_word_for_both_sides_or_one_each(read_text):
    validation = "  validation: {source: b.en, target: b.de}"
    both = read_text(validation, f"{validation}\n  tokenizer: moses")
    assert both.data.tokenizer == TokenizerConfig("moses", "moses")
    one = read_text(validation, f"{validation}\n  tokenizer: {{target: moses}}")
    assert one.data.tokenizer == TokenizerConfig("auto", "moses")


def test_attention_by_word_by_type_and_by_layer(read):
    everywhere = read("model: {attention: ReLA-g}").model.attention
    rela = SublayerAttentionConfig("rela-g")
    assert (everywhere.encoder_self, everywhere.decoder_self, everywhere.cross) == (rela,) * 3
    with_option = read("model: {attention: {kind: rela-g, norm: layer}}").model.attention
    assert with_option.cross == SublayerAttentionConfig("rela-g", norm="layer")
    assert with_option.encoder_self == with_option.decoder_self == with_option.cross

    mixed = read("model: {attention: {cross: {layers: {2: {kind: 1.5-entmax}}}}}").model.attention
    assert mixed.encoder_self.kind == "softmax"
    assert [mixed.cross.at(layer).kind for layer in range(4)] == [
        *("softmax", "softmax", "entmax15", "softmax")
    ]


def test_an_empty_section_is_a_section_without_changes(read):
    assert read("model:", "train:").model == read().model


def test_one_path_where_several_may_stand(read):
    config = read()
    assert config.data.train[0].source == (Path("/base/a.en"),)


def test_paths_are_absolute_and_know_home(read_text, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert read_text("run_dir: run", "run_dir: ~/run").run_dir == Path("/home/somebody/run")
    assert read_text("run_dir: run", "run_dir: ../x/./run").run_dir == Path("/x/run")
    assert read_text("run_dir: run", "run_dir: /r").run_dir == Path("/r")


@pytest.mark.parametrize("written", ["''", "' '", "~", '"a\\0b"', "[a, b]", "{a: b}"])
def test_what_is_no_path_is_refused(read_text, written):
    with pytest.raises(ConfigError, match=r"test.yaml:1: run_dir: expected a path, got "):
        read_text("run_dir: run", f"run_dir: {written}")
