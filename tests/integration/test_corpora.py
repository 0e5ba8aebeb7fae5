"""Several corpora with subword dropout: what is prepared, logged, refused, and resumed."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.runs import (
    die_at_call,
    outcome,
    tiny_config,
    train_in_child,
    train_in_children,
    write_corpus,
    write_run,
)

from nmt.cli import prepare, train, translate
from nmt.config.loading import load_config
from nmt.data.prepare import open_prepared
from nmt.storage.records import read_records
from nmt.training.update import Updater


def corpora(directory: Path) -> dict[str, Any]:
    """Two corpora of different sizes with weights, a tag and windows; two validation corpora."""
    write_corpus(directory / "data")
    write_corpus(directory / "more", pairs=60, seed=9)
    config = tiny_config(directory, log_every=1)
    config["data"] |= {
        "train": [
            {"name": "clean", "source": "data/train.src", "target": "data/train.tgt", "weight": 1},
            {
                "name": "noisy",
                "source": "more/train.src",
                "target": "more/train.tgt",
                "weight": 3,
                "tag": "<noisy>",
                "from_update": 4,
                "until_update": 18,
            },
        ],
        "validation": [
            {"name": "first", "source": "data/validation.src", "target": "data/validation.tgt"},
            {
                "name": "second",
                "source": "more/validation.src",
                "target": "more/validation.tgt",
                "tag": "<noisy>",
            },
        ],
        "subword": {"kind": "bpe", "merges": 20, "reserved": ["<num>"], "dropout": 0.2},
    }
    return config


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished, undisturbed run."""
    directory = tmp_path_factory.mktemp("reference")
    assert train_in_child(write_run(directory, corpora(directory))) == 0
    return directory


def fresh(reference: Path, directory: Path) -> Path:
    for name in ("data", "more", "prepared"):
        shutil.copytree(reference / name, directory / name)
    return write_run(directory, corpora(directory))


def test_the_tag_is_the_first_id_of_its_corpus_only(reference: Path) -> None:
    prepared = open_prepared(reference / "prepared")
    (tag,) = prepared.codec.source.encode("<noisy>")[:-1]
    ids, _ = prepared.train.padded("source", prepared.train.source_lengths.nonzero()[0], padding=0)
    assert prepared.sizes == [240, 60]
    assert (ids[:240] != tag).all()
    assert (ids[240:, 0] == tag).all()
    assert (ids[240:, 1:] != tag).all()
    assert sorted(prepared.validations) == ["validation", "validation.second"]
    text = prepared.validations["validation.second"].text["source"]
    assert all(line.startswith("<noisy> ") for line in text)


def test_each_validation_corpus_is_scored_by_name(reference: Path) -> None:
    records = [
        record
        for record in read_records(reference / "run" / "metrics.jsonl")
        if record["event"] == "validation"
    ]
    assert len(records) == 4
    for record in records:
        assert list(record["corpora"]) == ["first", "second"]
        assert record["score"] == record["loss"] == record["corpora"]["first"]["loss"]
        assert record["loss"] != record["corpora"]["second"]["loss"]
        assert {"bleu", "chrf", "perplexity"} < set(record["corpora"]["second"])
    log = (reference / "run" / "train.log").read_text()
    assert "  second: bleu " in log
    events = next((reference / "run" / "tensorboard").iterdir()).read_bytes()
    assert b"validation/corpora/second/loss" in events


def test_the_corpus_that_the_config_names_chooses_best(reference: Path, tmp_path: Path) -> None:
    config = fresh(reference, tmp_path)
    overrides = ["validate.corpus=second", "train.max_updates=12"]
    assert train.main(["--config", str(config), *overrides]) == 0
    (*_, record) = (
        record
        for record in read_records(tmp_path / "run" / "metrics.jsonl")
        if record["event"] == "validation"
    )
    assert record["score"] == record["corpora"]["second"]["loss"] == record["loss"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best_score"] == record["score"]


@pytest.mark.parametrize("count", [8, 30, 37])
def test_a_killed_run_goes_on_to_the_same_bits(reference: Path, tmp_path: Path, count: int) -> None:
    """Kills before, in and after the window of the second corpus."""
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Updater, "backward", count)) == -9
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def test_the_number_of_processes_may_change(reference: Path, tmp_path: Path) -> None:
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Updater, "step", 13)) == -9
    assert train_in_children(config, 2) == [0, 0]
    ours, theirs = (
        list(read_records(path / "run" / "metrics.jsonl")) for path in (tmp_path, reference)
    )
    assert [record.get("tokens") for record in ours] == [record.get("tokens") for record in theirs]
    assert [record.get("epoch") for record in ours] == [record.get("epoch") for record in theirs]


def test_weights_and_windows_of_a_run_cannot_change(
    reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = corpora(reference)
    config["data"]["train"][1]["until_update"] = 20
    path = reference / "other.yaml"
    path.write_text(json.dumps(config))
    assert train.main(["--config", str(path)]) == 2
    message = (
        "weight 3, updates 5 to 18 -> weight 1, updates 1 to the end; weight 3, updates 5 to 20"
    )
    assert message in capsys.readouterr().err


def test_statistics_of_each_corpus(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.main(["--config", str(reference / "config.yaml")]) == 0
    shown = capsys.readouterr().err
    assert "clean                      240  of 240 read, 0 left out" in shown
    assert "noisy: 60 pairs; 75.0% of the pairs drawn from update 5 to update 18" in shown
    assert train.main(["--config", str(reference / "config.yaml"), "--plan"]) == 0
    assert "75.0% of the pairs drawn from update 5 to update 18" in capsys.readouterr().out


def test_a_tag_and_a_reserved_symbol_can_be_typed(reference: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("<noisy> ab cde\nab <num> cde\n")
    output = tmp_path / "output"
    arguments = ["--model", str(reference / "run"), "--input", str(text), "--output", str(output)]
    assert translate.main([*arguments, "--max-length", "5"]) == 0
    assert len(output.read_text().splitlines()) == 2
    codec = open_prepared(reference / "prepared").codec
    assert len(codec.source.encode("<num>")) == 2


def test_a_corpus_without_a_pair_left_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = corpora(tmp_path)
    (tmp_path / "more" / "train.src").write_text("ab " * 400 + "\n")
    (tmp_path / "more" / "train.tgt").write_text("ab\n")
    path = write_run(tmp_path, config)
    assert prepare.main(["--config", str(path)]) == 2
    assert (
        "no training pair of noisy is left (longer than max_length: 1)" in capsys.readouterr().err
    )


def test_a_changed_tag_prepares_the_data_again(tmp_path: Path) -> None:
    config = corpora(tmp_path)
    path = write_run(tmp_path, config)
    assert prepare.main(["--config", str(path)]) == 0
    before = open_prepared(load_config(path).data.prepared_dir or tmp_path).fingerprint
    config["data"]["train"][1]["tag"] = "<num>"
    config["data"]["validation"][1]["tag"] = "<num>"
    assert prepare.main(["--config", str(write_run(tmp_path, config))]) == 0
    assert open_prepared(tmp_path / "prepared").fingerprint != before


def test_a_run_that_starts_from_a_model_knows_its_tags_and_adds_others(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = corpora(tmp_path)
    config["train"] |= {"start_from": str(reference / "run"), "max_updates": 5}
    config["train"]["schedule"]["warmup"] = 2
    del config["model"], config["data"]["subword"]
    path = write_run(tmp_path, config)
    assert train_in_child(path) == 0
    config["data"]["train"][1]["tag"] = "<new>"
    config["run_dir"] = str(tmp_path / "tagged")
    config["data"]["prepared_dir"] = "tagged/prepared"
    path = write_run(tmp_path, config)
    assert prepare.main(["--config", str(path)]) == 2
    assert "<new> is no reserved symbol of the model in train.start_from" in capsys.readouterr().err
    config["data"]["subword"] = {"reserved": ["<other>"]}
    config["data"]["extend_vocabulary"] = 1
    path = write_run(tmp_path, config)
    assert prepare.main(["--config", str(path)]) == 2  # those of the start are to stay
    assert "data.subword.reserved: ('<num>',) -> ('<other>',)" in capsys.readouterr().err
    config["data"]["subword"] = {"reserved": ["<num>", "<other>"]}
    assert train_in_child(write_run(tmp_path, config)) == 0
    before, after = (
        open_prepared(directory / "prepared").codec.source
        for directory in (reference, tmp_path / "tagged")
    )
    for symbol in ("<new>", "<other>"):
        assert len(after.encode(symbol)) == len(before.encode("<noisy>")) == 2
    assert after.encode("<noisy> ab <num> cde") == before.encode("<noisy> ab <num> cde")
