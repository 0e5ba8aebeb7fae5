"""Combinations that cannot work are refused before anything is opened, with the keys named."""

import pytest
import yaml

from nmt.config.loading import load_config
from nmt.errors import ConfigError

TINY = {
    "run_dir": "run",
    "data": {
        "source_language": "en",
        "target_language": "de",
        "train": {"source": "text/a.en", "target": "text/a.de"},
        "validation": {"source": "text/b.en", "target": "text/b.de"},
    },
}

TWO = "data.train=[{{name: x, source: a, target: b}}, {{source: c, target: d, {}}}]"
GAP = (
    "data.train=[{name: x, source: a, target: b, until_update: 10}, "
    "{name: y, source: c, target: d, from_update: 20}]"
)
ATTENTION = "model.attention.cross"
IMPOSSIBLE = [
    (["model.heads=7"], "model.heads: model.dim 512 is not a multiple of model.heads 7"),
    (["model.dim=511", "model.heads=1"], "model.dim: expected an even number"),
    ([f"{ATTENTION}=entmax"], f"{ATTENTION}.kind: entmax needs alpha"),
    ([f"{ATTENTION}=topk"], f"{ATTENTION}.kind: topk needs k"),
    ([f"{ATTENTION}.layers.1=topk"], f"{ATTENTION}.layers.1.kind: topk needs k"),
    ([f"{ATTENTION}.layers.6=rela-g"], "there is no layer 6: model.decoder_layers is 6"),
    (["model.attention.encoder_self.layers.-1=rela-g"], "there is no layer -1"),
    (["model.encoder_layers=1", "model.attention.encoder_self.layers.1=rela-g"], "no layer 1"),
    ([f"{ATTENTION}.alpha=1.5"], "kind 'softmax' has no option 'alpha'"),
    ([f"{ATTENTION}={{kind: rela-g, k: 3}}"], "kind 'rela-g' has no option 'k'"),
    ([f"{ATTENTION}={{kind: entmax15, alpha: 1.5}}"], "kind 'entmax15' has no option 'alpha'"),
    ([f"{ATTENTION}={{kind: entmax, alpha: 1.0}}"], "expected a number (above 1 and at most 2)"),
    ([f"{ATTENTION}={{kind: entmax, alpha: 2.5}}"], "expected a number (above 1 and at most 2)"),
    ([f"{ATTENTION}={{kind: rela-i, norm: none, gain_init: 1}}"], "no gain without a norm"),
    ([f"{ATTENTION}=relag"], "did you mean 'rela-g'?"),
    ([f"{ATTENTION}=sparse"], "did you mean 'sparsemax'?"),
    (["model.tie_embeddings=all", "data.subword.joint=false"], "model.tie_embeddings: all needs"),
    (["train.max_updates=10"], "train.schedule.warmup 4000 is more than train.max_updates 10"),
    (["train.schedule.warmup=0"], "noam divides by the warm-up"),
    (["train.schedule=constant"], "train.learning_rate: with train.schedule.kind constant"),
    (["train.schedule.kind=inverse_sqrt"], "this is the rate itself, and 1 is more than 0.1"),
    (["train.precision=float16", "train.device=cpu"], "float16 needs a GPU"),
    (["validate.beam=0"], "validate.metric bleu needs translations, but validate.beam is 0"),
    (["validate={beam: 0, metric: loss, sentences: 5}"], "validate.sentences: it limits decoding"),
    (["data.train.target=text/a.en"], "is both in data.train.source and in data.train.target"),
    (["data.train.source=[x, y]"], "2 files in data.train.source, but 1 in data.train.target"),
    (["data.validation.source=text/a.en"], "is also a file of data.train"),
    (["data.validation={source: [p, q], target: [r]}"], "2 files in data.validation.source"),
    (["data.max_ratio=0.5"], "every pair would be left out"),
    (["data.source_language=''"], "expected a language code such as en"),
    (["data.source_language=../en"], "expected a language code such as en"),
    (["data.tokenizer=jieba"], "jieba splits Chinese, but data.source_language is 'en'"),
    (["data.subword={kind: sentencepiece, merges: 32000}"], "it belongs to bpe"),
    (["data.subword={kind: none, vocabulary_threshold: 50}"], "it belongs to bpe"),
    (["data.subword={kind: bpe, vocabulary_size: 100}"], "it belongs to sentencepiece, none"),
    (["data.subword={kind: bpe, model: bpe}"], "it belongs to sentencepiece"),
    (["data.subword={kind: sentencepiece, vocabulary_size: 4}"], "the 4 control symbols"),
    (["data.subword={kind: none, vocabulary_size: 10}", "decode.beam=12"], "decode.beam: 12 is"),
    (["data.subword={kind: none, vocabulary_size: 10}", "validate.beam=12"], "validate.beam: 12"),
    (["data.subword.reserved=[<num>, a b]"], "data.subword.reserved: expected a symbol without"),
    (['data.subword.reserved=["a\\tb"]'], "expected a symbol without spaces such as <num>"),
    (['data.subword.reserved=[""]'], "expected a symbol without spaces such as <num>, got ''"),
    (["data.subword.reserved=[<num>, <b>, <num>]"], "<num> is given twice; remove one"),
    ([f"data.subword.reserved={'x' * 101}"], "data.subword.reserved: expected at most 100"),
    (["data.subword={kind: none, dropout: 0.1}"], "it belongs to bpe, sentencepiece"),
    (["data.subword.dropout=1"], "expected a number (at least 0 and below 1)"),
    (["data.subword.dropout={source: 0.1, tgt: 0.1}"], "unknown key 'tgt'"),
    ([TWO.format("")], "data.train[1].name: a corpus of a list needs a name"),
    ([TWO.format("name: x")], "data.train[1].name: another corpus of data.train has the name x"),
    ([TWO.format("name: a/b")], "data.train[1].name: expected letters, digits, - and _, got 'a/b'"),
    ([TWO.format("name: y, weight: 0")], "data.train[1].weight: expected a number (above 0"),
    ([TWO.format("name: y, weight: -1")], "data.train[1].weight: expected a number (above 0"),
    ([TWO.format("name: y, until_update: 0")], "data.train[1].until_update: expected a whole"),
    ([TWO.format("name: y, from_update: 9, until_update: 9")], "no update would use the corpus"),
    ([TWO.format("name: y, tag: a b")], "data.train[1].tag: expected a symbol without spaces"),
    ([TWO.format("name: y, weigth: 2")], "unknown key 'weigth'; did you mean 'weight'?"),
    (["data.train.source=[]"], "data.train.source: expected a path, got an empty list"),
    (["data.train=[]"], "data.train: expected at least one item, got an empty list"),
    (["data.train.until_update=99"], "data.train: no corpus is used in update 100;"),
    (["data.train.from_update=1"], "data.train: no corpus is used in update 1;"),
    ([GAP], "data.train: no corpus is used in update 11; train.max_updates is 100000"),
    (["validate.corpus=x"], "validate.corpus: expected the name of a corpus of data.validation"),
    (["run_dir=text"], "run_dir: {here}/text/a.en of data.train is there"),
    (["run_dir=text/b.de"], "run_dir: {here}/text/b.de of data.validation is there"),
    (["run_dir=/"], "run_dir: the root of the file system"),
    (["data.train.source=run/best/a.en"], "lies among the files that the run writes"),
    (["data.train.source=run/prepared/a.en"], "data.prepared_dir: {here}/run/prepared/a.en of"),
    (["data.prepared_dir=run"], "data.prepared_dir: run_dir is the same or inside it"),
    (["data.prepared_dir=."], "data.prepared_dir: run_dir is the same or inside it"),
    (["data.prepared_dir=run/checkpoints/data"], "is for what the run writes"),
    (["data.prepared_dir=text"], "data.prepared_dir: {here}/text/a.en of data.train is there"),
    (["train.keep_last=1"], "train.keep_last: expected a whole number (at least 2 and"),
]

POSSIBLE = [
    [],
    ["model.tie_embeddings=all"],
    ["model.attention={kind: rela-i, norm: none}"],
    ["model.attention={kind: rela-g, gate: false}"],
    ["train.precision=float16"],
    ["train.precision=bfloat16", "train.device=cpu"],
    ["train.schedule={kind: constant, warmup: 0}", "train.learning_rate=3e-4"],
    ["train.schedule={kind: inverse_sqrt, warmup: 0}", "train.learning_rate=3e-4"],
    ["train.save_every=1e6"],
    ["validate={beam: 0, metric: loss}"],
    ["data.source_language=zh-Hans", "data.tokenizer.source=jieba"],
    ["data.source_language=de"],
    ["data.train.source=[x, x]", "data.train.target=[y, y]"],
    ["data.prepared_dir=run/data"],
    ["data.subword={kind: none, vocabulary_size: 100, joint: false}"],
    ["data.subword.reserved=<num>"],
    [TWO.format("name: y, weight: 0.1, tag: <y>, from_update: 5, until_update: 9")],
    [GAP.replace("20", "10")],
    ["data.subword.dropout=0.1"],
    ["data.subword={kind: sentencepiece, dropout: {target: 0.1}}"],
]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the small config with overrides; relative paths start at a temporary folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return lambda overrides: load_config(path, overrides)


@pytest.mark.parametrize(("overrides", "message"), IMPOSSIBLE)
def test_impossible(load, tmp_path, overrides, message):
    with pytest.raises(ConfigError) as caught:
        load(overrides)
    assert message.format(here=tmp_path) in str(caught.value)


@pytest.mark.parametrize("overrides", POSSIBLE, ids=" ".join)
def test_possible(load, overrides):
    load(overrides)


def test_sections_that_can_be_read_are_checked_although_another_cannot(load):
    with pytest.raises(ConfigError) as caught:
        load(["seed=x", "model.heads=7", "validate.beam=0"])
    assert str(caught.value).startswith("3 problems in ")
