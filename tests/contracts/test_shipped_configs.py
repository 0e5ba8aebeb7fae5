"""Every YAML file that is shipped loads, and the paper's rows are what they say."""

from pathlib import Path

import pytest

from nmt.config.config import Config, SublayerAttentionConfig
from nmt.config.loading import dump_config, load_config, parse_config

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(
    path
    for folder in ("configs", "recipes")
    for pattern in ("*.yaml", "*.yml")
    for path in (ROOT / folder).rglob(pattern)
)
TABLE_1 = ROOT / "configs" / "wmt14_en_de"

softmax = SublayerAttentionConfig("softmax")
rela_g = SublayerAttentionConfig("rela-g")

# Encoder self-attention, decoder self-attention, cross attention of each row.
ROWS = {
    "01-softmax": (softmax,) * 3,
    "02-sparsemax": (SublayerAttentionConfig("sparsemax"),) * 3,
    "03-entmax15": (SublayerAttentionConfig("entmax15"),) * 3,
    "04-relu-only": (SublayerAttentionConfig("rela-i", norm="none"),) * 3,
    "05-relu-rmsnorm": (SublayerAttentionConfig("rela-i", gain_init=1.0),) * 3,
    "06-rela-i": (SublayerAttentionConfig("rela-i"),) * 3,
    "07-rela-g": (rela_g,) * 3,
    "08-rela-g-layernorm": (SublayerAttentionConfig("rela-g", norm="layer"),) * 3,
    "09-rela-g-gelu": (SublayerAttentionConfig("rela-g", activation="gelu"),) * 3,
    "10-rela-g-leaky-relu": (SublayerAttentionConfig("rela-g", activation="leaky_relu"),) * 3,
    "11-rela-g-encoder-only": (rela_g, softmax, softmax),
    "12-rela-g-decoder-only": (softmax, rela_g, softmax),
    "13-rela-g-cross-only": (softmax, softmax, rela_g),
    "entmax-learned": (SublayerAttentionConfig("entmax", alpha="learned"),) * 3,
}


def test_configs_are_shipped():
    assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_loads_and_survives_being_written(path):
    config = load_config(path)
    assert parse_config(dump_config(config), name="again", directory=Path("/")) == config


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_table_1(row):
    path = TABLE_1 / f"{row}.yaml"
    config = load_config(path)
    attention = config.model.attention
    assert (attention.encoder_self, attention.decoder_self, attention.cross) == ROWS[row]
    assert config.run_dir == ROOT / "runs" / "wmt14_en_de" / row
    assert len(path.read_text(encoding="utf-8").strip().split("\n")) == 3

    # Nothing but the attention differs between the rows.
    def rest(config: Config) -> list[str]:
        lines = dump_config(config).split("\n")
        start, end = lines.index("train:"), [n for n, x in enumerate(lines) if "attention:" in x]
        return lines[1 : end[0]] + lines[start:]

    assert rest(config) == rest(load_config(TABLE_1 / "base.yaml"))


def test_the_setting_of_the_paper():
    config = load_config(TABLE_1 / "base.yaml")
    assert config.train.batch_tokens * config.train.accumulate == 25_000
    assert (config.train.max_updates, config.train.schedule.warmup) == (300_000, 4000)
    assert (config.train.adam.beta1, config.train.adam.beta2) == (0.9, 0.98)
    assert config.train.adam.epsilon == 1e-8
    assert (config.data.subword.merges, config.data.subword.vocabulary_threshold) == (32_000, 50)
    assert (config.decode.beam, config.decode.length_penalty) == (4, 0.6)
    assert (config.model.norm, config.model.tie_embeddings) == ("post", "target")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("wmt*/*.yaml")), ids=str)
def test_configs_for_gpus_do_not_begin_on_a_cpu(path):
    """Weeks of work there; on a GPU the precision is that of the device."""
    train = load_config(path).train
    assert (train.device, train.precision) == ("cuda", "auto")
