"""Any config written as YAML and read again is the same config, and so is its text."""

import string
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import (
    AdamConfig,
    AttentionConfig,
    AttentionTypesConfig,
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    ParallelFiles,
    ScheduleConfig,
    SublayerAttentionConfig,
    SubwordConfig,
    SubwordDropoutConfig,
    TokenizerConfig,
    TrainConfig,
    TrainingCorpus,
    ValidateConfig,
)
from nmt.config.loading import dump_config, parse_config

NUM_LAYERS = 4

awkward = st.sampled_from(
    ["no", "~", "null", "1e3", "010", "a: b", "- x", "#x", " x", "x ", "'", '"', "*a", "!t", "\\n"]
)
characters = st.characters(exclude_categories=["Cs"], exclude_characters="/\0")
# A file's name: anything but "." and "..", and not only blanks.
names = (awkward | st.text(characters, min_size=1, max_size=12)).filter(
    lambda name: name not in (".", "..")
)
folders = st.lists(names, min_size=1, max_size=2)
fraction = st.floats(0.0, 1.0, exclude_max=True)
positive = st.floats(0.0, 1e30, exclude_min=True)
scale = st.floats(-1e30, 1e30)
count = st.integers(1, 65_536)


@st.composite
def attentions(draw: Any) -> AttentionConfig:
    values = {
        "alpha": st.floats(1.0, 2.0, exclude_min=True) | st.just("learned"),
        "activation": st.sampled_from(["relu", "gelu", "leaky_relu", "squared_relu", "identity"]),
        "norm": st.sampled_from(["rms", "layer"]),
        "gate": st.booleans(),
        "gain_init": scale | st.just("uniform"),
        "threshold": scale | st.just("learned"),
        "k": count,
        "backend": st.sampled_from(["solver", "package"]),
    }
    kind = draw(st.sampled_from(sorted(ATTENTION_KINDS)))
    options = {
        name: draw(values[name] if option.required else values[name] | st.none())
        for name, option in ATTENTION_KINDS[kind].options.items()
    }
    return AttentionConfig(kind, **options)


@st.composite
def sublayers(draw: Any) -> SublayerAttentionConfig:
    chosen = draw(attentions())
    layers = draw(st.dictionaries(st.integers(0, NUM_LAYERS - 1), attentions(), max_size=2))
    return SublayerAttentionConfig(chosen.kind, **chosen.given, layers=layers)


subwords = (
    st.builds(
        SubwordConfig,
        kind=st.just("bpe"),
        merges=count,
        joint=st.just(True),
        vocabulary_threshold=st.integers(0, 100),
        sample_pairs=st.integers(0, 10**12),
        reserved=st.sampled_from([(), ("<num>",), ("null", "1", "{x}", "~")]),
        dropout=st.builds(SubwordDropoutConfig, *[st.none() | fraction] * 2),
    )
    | st.builds(
        SubwordConfig,
        kind=st.just("sentencepiece"),
        vocabulary_size=st.integers(100, 10**6),
        model=st.sampled_from(["unigram", "bpe"]),
    )
    | st.builds(SubwordConfig, kind=st.just("none"), vocabulary_size=st.integers(100, 10**6))
)


def paths(folder: str, number: int) -> Any:
    below = st.lists(folders, min_size=number, max_size=number)
    return below.map(lambda all: tuple(Path("/", folder, *names) for names in all))


@st.composite
def training_corpora(draw: Any, number: int) -> tuple[TrainingCorpus, ...]:
    corpora = draw(st.integers(1, 3))
    named = corpora > 1 or draw(st.booleans())
    return tuple(
        TrainingCorpus(
            draw(paths("train.source", number)),
            draw(paths("target", number)),
            name=f"null-{index}" if named else None,
            tag=draw(st.sampled_from([None, "<x>", "null", "~"])),
            weight=draw(st.none() | st.floats(1e-9, 1e9)),
            from_update=None if index == 0 else draw(st.none() | st.integers(0, 99)),
            until_update=None if index == 0 else draw(st.none() | st.integers(100, 999)),
        )
        for index in range(corpora)
    )


@st.composite
def validation_corpora(draw: Any) -> tuple[ParallelFiles, ...]:
    corpora = draw(st.integers(1, 2))
    names = [f"v{index}" if corpora > 1 else None for index in range(corpora)]
    return tuple(
        ParallelFiles(draw(paths("vs", 1)), draw(paths("vt", 1)), name=name) for name in names
    )


@st.composite
def data(draw: Any) -> DataConfig:
    number = draw(st.integers(1, 3))
    return DataConfig(
        source_language=draw(st.sampled_from(["en", "no", "NO", "on", "y", "null", "zh-Hans"])),
        target_language=draw(st.text(string.ascii_letters, min_size=1, max_size=3)),
        train=draw(training_corpora(number)),
        validation=draw(validation_corpora()),
        tokenizer=draw(
            st.builds(
                TokenizerConfig,
                *[st.sampled_from(["none", "moses"])] * 2,
            )
        ),
        subword=draw(subwords),
        max_length=draw(count),
        max_ratio=draw(st.floats(1.0, 1e9) | st.just(0.0)),
        on_bad_line=draw(st.sampled_from(["error", "skip"])),
        prepared_dir=draw(
            st.none() | folders.map(lambda names: Path("/prepared directory", *names))
        ),
    )


models = st.builds(
    ModelConfig,
    dim=st.just(32),
    heads=st.sampled_from([1, 2, 4, 8]),
    encoder_layers=st.just(NUM_LAYERS),
    decoder_layers=st.just(NUM_LAYERS),
    feed_forward_dim=count,
    feed_forward_activation=st.sampled_from(["relu", "gelu", "swish"]),
    norm_epsilon=positive,
    scale_embeddings=st.booleans(),
    position_wavelengths=st.sampled_from(["inclusive", "exclusive"]),
    output_bias=st.booleans(),
    dropout=fraction,
    attention_dropout=fraction,
    norm=st.sampled_from(["post", "pre"]),
    tie_embeddings=st.sampled_from(["none", "target", "all"]),
    initializer=st.sampled_from(["xavier", "uniform_unit_scaling"]),
    initial_score_scale=st.sampled_from([0.1, 1.0]),
    attention=st.builds(
        AttentionTypesConfig,
        *[sublayers()] * 3,
    ),
)
trainings = st.builds(
    TrainConfig,
    max_updates=st.integers(10**6, 10**15),
    learning_rate=st.floats(0.0, 0.1, exclude_min=True),
    schedule=st.builds(
        ScheduleConfig,
        kind=st.sampled_from(["noam", "inverse_sqrt", "constant"]),
        warmup=st.integers(1, 10**6),
    ),
    adam=st.builds(AdamConfig, beta1=fraction, beta2=fraction, epsilon=positive),
    clip_norm=st.floats(0.0, 1e30),
    precision=st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    compile=st.sampled_from([True, False, "auto"]),
    all_reduce=st.sampled_from(["float32", "bfloat16"]),
    ema=fraction,
)
configs = st.builds(
    Config,
    run_dir=folders.map(lambda names: Path("/runs and more", *names)),
    data=data(),
    seed=st.integers(0, 2**63 - 1),
    model=models,
    train=trainings,
    validate=st.builds(ValidateConfig, beam=st.integers(1, 99), patience=st.integers(0, 9)),
    decode=st.builds(
        DecodeConfig,
        beam=st.integers(1, 99),
        length_penalty=st.floats(-100.0, 100.0),
        max_length_ratio=st.floats(0.0, 1000.0, exclude_min=True),
    ),
)


@given(configs)
def test_parse_of_dump_is_the_same_config(config):
    text = dump_config(config)
    again = parse_config(text, name="config.yaml", directory=Path("/elsewhere"))
    assert again == config
    assert dump_config(again) == text


def test_the_text_is_pleasant_to_read():
    config = parse_config(
        "run_dir: /r\n"
        "data: {source_language: en, target_language: no, train: {source: /a, target: /b},\n"
        "  validation: {source: [/c, /d], target: [/e, /f]}, tokenizer: moses}\n"
        "model:\n"
        "  attention: {cross: {kind: rela-g, layers: {3: {kind: topk, k: 2}, 0: softmax}}}\n",
        name="c.yaml",
        directory=Path("/"),
    )
    text = dump_config(config)
    assert text.startswith(
        "run_dir: /r\n"
        "data:\n"
        "  source_language: en\n"
        "  target_language: 'no'\n"
        "  train:\n"
        "    source: /a\n"
        "    target: /b\n"
        "  validation:\n"
        "    source:\n"
        "    - /c\n"
        "    - /d\n"
        "    target:\n"
        "    - /e\n"
        "    - /f\n"
        "  tokenizer: moses\n"
        "  subword:\n"
        "    kind: bpe\n"
        "    merges: 0\n"
        "    joint: true\n"
    )
    assert (
        "  attention:\n"
        "    encoder_self: softmax\n"
        "    decoder_self: softmax\n"
        "    cross:\n"
        "      kind: rela-g\n"
        "      layers:\n"
        "        0: softmax\n"
        "        3:\n"
        "          kind: topk\n"
        "          k: 2\n"
        "train:\n"
    ) in text
    assert "null" not in text
    assert "vocabulary_size" not in text  # an option of other subwords
