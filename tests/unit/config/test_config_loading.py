"""Files that extend others, overrides from the command line, and where problems are said to be."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nmt.config.config import AttentionConfig, SublayerAttentionConfig, resolved_prepared_dir
from nmt.config.loading import load_config, parse_config
from nmt.errors import ConfigError

BASE = """\
run_dir: runs/base
data:
  source_language: en
  target_language: de
  train: {source: a.en, target: a.de}
  validation: {source: b.en, target: b.de}
  subword: {kind: bpe, merges: 4000, joint: false}
model:
  attention:
    cross: {kind: entmax, alpha: 1.3, layers: {0: softmax}}
    decoder_self: ReLA-g
train:
  schedule: {kind: noam, warmup: 100}
"""


@pytest.fixture
def extend(write):
    """Loads a file that extends the base, in another folder."""
    write("shared/base.yaml", BASE)

    def extend(text, *overrides):
        path = write("mine/child.yaml", "extends: ../shared/base.yaml\n" + text)
        return load_config(path, overrides)

    return extend


def test_paths_are_relative_to_the_file_that_says_them(extend, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = extend("run_dir: run\n", "data.prepared_dir=prepared")
    assert config.run_dir == tmp_path / "mine/run"
    assert config.data.train[0].source == (tmp_path / "shared/a.en",)
    assert config.data.prepared_dir == tmp_path / "elsewhere/prepared"
    assert resolved_prepared_dir(config) == tmp_path / "elsewhere/prepared"
    assert resolved_prepared_dir(extend("run_dir: run\n")) == tmp_path / "mine/run/prepared"


def test_mappings_are_merged_and_the_child_wins(extend):
    config = extend("seed: 7\ndata: {subword: {merges: 99}}\ntrain: {schedule: {warmup: 5}}\n")
    assert config.seed == 7
    assert (config.data.subword.merges, config.data.subword.joint) == (99, False)
    assert (config.train.schedule.kind, config.train.schedule.warmup) == ("noam", 5)
    assert config.data.source_language == "en"


def test_lists_are_replaced(extend):
    config = extend("data: {train: {source: [x.en, y.en], target: [x.de, y.de]}}\n")
    assert [path.name for path in config.data.train[0].source] == ["x.en", "y.en"]


@pytest.mark.parametrize(
    ("cross", "expected"),
    [
        ("rela-g", SublayerAttentionConfig("rela-g")),
        ("{kind: rela-g}", SublayerAttentionConfig("rela-g")),
        ("{kind: topk, k: 4}", SublayerAttentionConfig("topk", k=4)),
        (
            "{alpha: learned}",
            SublayerAttentionConfig(
                "entmax", alpha="learned", layers={0: AttentionConfig("softmax")}
            ),
        ),
        (
            "{kind: entmax, layers: {2: rela-i}}",
            SublayerAttentionConfig(
                "entmax",
                alpha=1.3,
                layers={0: AttentionConfig("softmax"), 2: AttentionConfig("rela-i")},
            ),
        ),
        (
            "{layers: {0: rela-i}}",
            SublayerAttentionConfig("entmax", alpha=1.3, layers={0: AttentionConfig("rela-i")}),
        ),
    ],
)
def test_another_kind_leaves_the_old_options_behind(extend, cross, expected):
    written = extend(f"model: {{attention: {{cross: {cross}}}}}\n")
    assert written.model.attention.cross == expected
    assert written.model.attention.decoder_self == SublayerAttentionConfig("rela-g")
    overridden = extend("", f"model.attention.cross={cross}")
    assert overridden == written


def test_options_join_a_kind_that_the_base_has_as_a_word(extend):
    config = extend("model: {attention: {decoder_self: {kind: rela-g, gate: false}}}\n")
    assert config.model.attention.decoder_self == SublayerAttentionConfig("rela-g", gate=False)
    config = extend("model: {attention: {decoder_self: {gate: false}}}\n")
    assert config.model.attention.decoder_self == SublayerAttentionConfig("rela-g", gate=False)


def test_another_kind_of_subwords_replaces_the_old_one(extend):
    subword = extend("data: {subword: {kind: sentencepiece, vocabulary_size: 500}}\n").data.subword
    assert (subword.kind, subword.vocabulary_size, subword.joint) == ("sentencepiece", 500, True)


def test_chains_of_three(extend, write):
    extend("seed: 5\nrun_dir: child\n")
    path = write("grandchild.yaml", "extends: mine/child.yaml\nmodel: {dim: 64}\n")
    config = load_config(path)
    assert (config.seed, config.model.dim, config.train.schedule.warmup) == (5, 64, 100)


def test_cycles_and_missing_bases_are_refused(write):
    first = write("a.yaml", "extends: sub/b.yaml\n")
    write("sub/b.yaml", "\nextends: ../a.yaml\n")
    with pytest.raises(ConfigError, match=r"b\.yaml:2: extends: .*a\.yaml extends this file"):
        load_config(first)
    with pytest.raises(ConfigError, match=r"self\.yaml:1: extends: .*cannot extend itself"):
        load_config(write("self.yaml", "extends: self.yaml\n"))
    with pytest.raises(ConfigError, match=r"c\.yaml:1: extends: there is no file .*gone\.yaml"):
        load_config(write("c.yaml", "extends: gone.yaml\n"))
    with pytest.raises(ConfigError, match=r"d\.yaml:1: extends: expected the path of one"):
        load_config(write("d.yaml", "extends: [a.yaml]\n"))


def test_problems_name_the_file_and_line_they_are_in(extend, write, tmp_path):
    write("shared/base.yaml", BASE.replace("warmup: 100", "warmup: -1") + "  prefech: 1\n")
    with pytest.raises(ConfigError) as caught:
        extend("\nmodel: {heads: 7}\n", "decode.beam=0", "train.adam.beta=1")
    first, *others = str(caught.value).split("\n")
    assert first == f"5 problems in {tmp_path}/mine/child.yaml:"
    assert others == [
        f"  {tmp_path}/mine/child.yaml:3: model.heads: model.dim 512 is not a multiple of "
        "model.heads 7",
        f"  {tmp_path}/shared/base.yaml:13: train.schedule.warmup: expected a whole number "
        "(at least 0 and at most 1e+15), got '-1'",
        f"  {tmp_path}/shared/base.yaml:14: train: unknown key 'prefech'; did you mean 'prefetch'?",
        "  command line: train.adam: unknown key 'beta'; did you mean 'beta2'?",
        "  command line: decode.beam: expected a whole number (at least 1 and at most 1,000), "
        "got '0'",
    ]


def test_one_problem_is_one_line(extend):
    with pytest.raises(ConfigError) as caught:
        extend("sead: 1\n")
    assert str(caught.value).endswith("child.yaml:2: unknown key 'sead'; did you mean 'seed'?")
    assert "\n" not in str(caught.value)


def test_a_key_in_the_wrong_section_is_shown_its_place(extend):
    with pytest.raises(ConfigError, match=r"did you mean 'train\.learning_rate'\?"):
        extend("learning_rate: 0.1\n")


def test_overrides_are_yaml_and_the_last_one_wins(extend):
    config = extend(
        "",
        "train.learning_rate=1e-4",
        "seed=3",
        "seed=4",
        "data.source_language=no",
        "data.train.source=[x, y]",
        "data.train.target=[u, v]",
        "model.attention.encoder_self.layers.0={kind: topk, k: 3}",
    )
    assert config.train.learning_rate == 1e-4
    assert config.seed == 4
    assert config.data.source_language == "no"
    assert config.data.train[0].target == (Path.cwd() / "u", Path.cwd() / "v")
    assert config.model.attention.encoder_self.at(0) == AttentionConfig("topk", k=3)


def test_the_order_of_kind_and_option_on_the_command_line_does_not_matter(extend):
    kind, option = "model.attention.cross.kind=topk", "model.attention.cross.k=3"
    assert extend("", kind, option) == extend("", option, kind)
    assert extend("", kind, option).model.attention.cross == SublayerAttentionConfig("topk", k=3)
    word = "model.attention.cross=topk"
    assert extend("", word, option).model.attention.cross == SublayerAttentionConfig("topk", k=3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "command line: expected section.key=value, got 'seed'"),
        ("=1", "command line: expected section.key=value, got '=1'"),
        ("a..b=1", "command line: expected section.key=value"),
        ("seed=[", "command line: seed: this is not valid YAML"),
        ("seed=*a", "command line: seed: YAML anchors"),
        ("seed=!!int 1", "command line: seed: YAML tags"),
        ("seed=", "command line: seed: expected a whole number (at least 0), got nothing"),
        ("seed=x", "command line: seed: expected a whole number, got 'x'"),
        ("model.dmi=64", "command line: model: unknown key 'dmi'; did you mean 'dim'?"),
        ("model=64", "command line: model: expected a mapping"),
        ("seed.x=64", "command line: seed: expected a whole number (at least 0), got a mapping"),
        ("extends=x.yaml", "command line: unknown key 'extends'"),
        ("run_dir=runs/exp #2", "run_dir: 'runs/exp #2' means 'runs/exp' in YAML; put the value"),
        ("run_dir=a\x00b", "command line: run_dir: this is not valid YAML"),
        ("run_dir=a\udcffb", "command line: run_dir: this is not valid YAML"),
    ],
)
def test_bad_overrides_are_named(extend, override, message):
    with pytest.raises(ConfigError) as caught:
        extend("", override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_missing_from_the_file(write):
    path = write("c.yaml", "run_dir: x\ndata:\n  source_language: en\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["data.target_language=de"])
    lines = str(caught.value).split("\n")
    assert len(lines) == 3
    assert all(f"{path}:3: data.{key}: missing" in str(lines) for key in ("train", "validation"))


def test_the_config_of_a_model_reads_no_other_file(write):
    write("base.yaml", BASE)
    with pytest.raises(ConfigError, match="unknown key 'extends'"):
        parse_config("extends: base.yaml\n", name="config.yaml", directory=Path("/"))


@pytest.mark.clock
def test_loading_is_fast(extend, tmp_path):
    extend("seed: 1\n")
    started = time.process_time()
    load_config(tmp_path / "mine/child.yaml")
    assert time.process_time() - started < 1.0


def test_loading_needs_no_torch(extend, tmp_path):
    extend("seed: 1\n")
    program = (
        "import sys, pathlib; from nmt.config.loading import load_config;"
        f"load_config(pathlib.Path({str(tmp_path / 'mine/child.yaml')!r}));"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.attention.kind=entmax", "model.attention.alpha=learned"],
        ["model.attention.alpha=learned", "model.attention.kind=entmax"],
        ["model.attention=entmax", "model.attention.alpha=learned"],
    ],
)
def test_an_option_of_all_attention_on_the_command_line(overrides):
    attention = load_config(Path("quickstart"), overrides).model.attention
    learned = SublayerAttentionConfig("entmax", alpha="learned")
    assert (attention.encoder_self, attention.decoder_self, attention.cross) == (learned,) * 3


def test_a_packed_model_is_no_start(extend, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("mine/packed/packed.yaml", "data: {}\n")
    with pytest.raises(ConfigError, match="packed is a packed model; start from the model that"):
        extend("run_dir: run\n", "train.start_from=mine/packed")
    with pytest.raises(ConfigError, match=r"with a config\.yaml, found none in nowhere"):
        extend("run_dir: run\n", "train.start_from=nowhere")
