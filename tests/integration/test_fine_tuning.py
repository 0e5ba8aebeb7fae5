"""A run that starts from a trained model: its weights and codec, and nothing else of it."""

import json
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.runs import (
    die_at_call,
    newest,
    outcome,
    tiny_config,
    train_in_child,
    train_in_children,
    write_run,
)

from nmt.cli import import_, prepare, train
from nmt.data.codec import Codec
from nmt.data.vocabulary import UNK
from nmt.storage.hashing import file_sha256
from nmt.training.saving import Saver
from nmt.training.update import Updater

KILLED = -signal.SIGKILL
MARIAN = Path(__file__).parents[1] / "unit" / "exchange" / "huggingface"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished run to start from, and the text of another domain."""
    directory = tmp_path_factory.mktemp("base")
    assert train_in_child(write_run(directory)) == 0
    for name in ("train", "validation"):
        for side in ("src", "tgt"):
            text = (directory / "data" / f"{name}.{side}").read_text(encoding="utf-8")
            other = "".join(f"{line} klm ab\n" for line in text.splitlines())
            (directory / "data" / f"other_{name}.{side}").write_text(other, encoding="utf-8")
    return directory


def settings(base: Path, directory: Path, **train_settings: Any) -> dict[str, Any]:
    """A run on the other text that starts from the base; model and codec are left out."""
    config = tiny_config(directory, start_from=str(base / "run"), **train_settings)
    config["data"] = {
        "train": {side: f"data/other_train.{end}" for side, end in SIDES},
        "validation": {side: f"data/other_validation.{end}" for side, end in SIDES},
        "workers": 1,
    }
    del config["model"]
    config["validate"]["beam"] = 0
    return config


SIDES = (("source", "src"), ("target", "tgt"))


def fresh(base: Path, directory: Path, config: dict[str, Any] | None = None) -> Path:
    shutil.copytree(base / "data", directory / "data")
    return write_run(directory, config or settings(base, directory))


def records(run_dir: Path, event: str) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished, undisturbed run that started from the base."""
    directory = tmp_path_factory.mktemp("tuned")
    assert train_in_child(fresh(base, directory)) == 0
    return directory


def test_the_first_loss_on_the_old_data_is_the_last_of_the_old_model(
    base: Path, tmp_path: Path
) -> None:
    config = tiny_config(tmp_path, start_from=str(base / "run" / "best"), max_updates=5)
    config["train"]["schedule"]["warmup"] = 1
    del config["model"], config["data"]["subword"]
    assert train_in_child(fresh(base, tmp_path, config)) == 0
    state = json.loads((base / "run" / "best" / "state.json").read_bytes())["training"]
    first = records(tmp_path / "run", "validation")[0]
    assert first["update"] == 0
    assert first["loss"] == state["best_score"]


def test_the_codec_is_that_of_the_start(base: Path, tuned: Path) -> None:
    for name in ("joint.codes", "source.vocabulary", "target.vocabulary", "codec.json"):
        expected = (base / "run" / "best" / name).read_bytes()
        assert (tuned / "run" / "prepared" / name).read_bytes() == expected
        assert (newest(tuned / "run") / name).read_bytes() == expected


def test_the_run_records_what_it_started_from(base: Path, tuned: Path) -> None:
    start = base / "run" / "best"  # whose loss is lower than that of the average
    record = json.loads((newest(tuned / "run") / "state.json").read_bytes())["training"]
    assert record["started_from"]["path"] == str(start)
    assert record["started_from"]["sha256"] == file_sha256(start / "model.safetensors")
    first = records(tuned / "run", "validation")[0]
    assert record["started_from"]["score"] == first["loss"]


def test_a_run_may_name_its_start_by_another_path_later(tuned: Path, tmp_path: Path) -> None:
    """The start may have moved with the project, or be gone; a run from nothing stays one."""
    shutil.copytree(tuned, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.yaml"
    assert train.main(["--config", str(path), "train.start_from=moved"]) == 0
    assert train.main(["--config", str(path), "train.start_from=null"]) == 2


@pytest.mark.parametrize(
    ("owner", "name", "count"),
    [(Updater, "backward", 3), (Saver, "prune", 2)],
)
def test_a_killed_run_never_reads_its_start_again(
    base: Path, tuned: Path, tmp_path: Path, owner: type, name: str, count: int
) -> None:
    config = fresh(base, tmp_path)
    shutil.copytree(base / "run", tmp_path / "start")
    text = config.read_text(encoding="utf-8").replace(str(base / "run"), "start")
    config.write_text(text, encoding="utf-8")
    assert train_in_child(config, partial(die_at_call, owner, name, count)) == KILLED
    if (tmp_path / "run" / "checkpoints").exists():
        shutil.rmtree(tmp_path / "start")
        shutil.rmtree(tmp_path / "run" / "prepared")  # it is made again with the codec of the run
    assert train_in_child(config) == 0
    expected, found = outcome(tuned / "run"), outcome(tmp_path / "run")
    for state in (expected["state"], found["state"]):
        state["started_from"].pop("path")
    assert found == expected


def test_two_processes_start_and_resume_as_one(base: Path, tuned: Path, tmp_path: Path) -> None:
    config = fresh(base, tmp_path, settings(base, tmp_path, freeze=["encoder"]))

    def sabotage(rank: int) -> None:
        if rank == 1:
            die_at_call(Updater, "step", 14)

    assert train_in_children(config, 2, sabotage)[1] == KILLED
    assert train_in_children(config, 2) == [0, 0]
    for one, other in zip(
        records(tmp_path / "run", "validation"), records(tuned / "run", "validation"), strict=True
    ):
        assert one["loss"] == pytest.approx(other["loss"], abs=0.05)  # other dropout masks
    assert records(tmp_path / "run", "validation")[0]["loss"] == pytest.approx(
        records(tuned / "run", "validation")[0]["loss"], rel=1e-6
    )


def test_a_killed_run_with_frozen_parts_resumes_exactly(base: Path, tmp_path: Path) -> None:
    outcomes = []
    for name in ("whole", "killed"):
        directory = tmp_path / name
        config = settings(base, directory, freeze=["encoder", "source_embedding"], ema=0.5)
        path = fresh(base, directory, config)
        if name == "killed":
            assert train_in_child(path, partial(die_at_call, Updater, "step", 13)) == KILLED
        assert train_in_child(path) == 0
        outcomes.append(outcome(directory / "run"))
    assert outcomes[0] == outcomes[1]
    before = load_file(base / "run" / "best" / "model.safetensors")
    for model in (newest(directory / "run"), directory / "run" / "average"):
        after = load_file(model / "model.safetensors")
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert same == {n for n in before if n.startswith(("encoder", "own_source_embedding"))}


def test_new_pieces_get_rows_beside_the_old_ones(base: Path, tmp_path: Path) -> None:
    """Also in a run that is killed, and that prepares its data again without the start."""
    outcomes = []
    for name in ("whole", "killed"):
        directory = tmp_path / name
        config = settings(base, directory, learning_rate=1e-9)
        config["data"]["extend_vocabulary"] = 9
        path = fresh(base, directory, config)
        for file in (directory / "data").glob("other_*"):
            text = file.read_text(encoding="utf-8").replace("klm", "жук")
            file.write_text(text, encoding="utf-8")
        if name == "killed":
            shutil.copytree(base / "run", directory / "start")
            text = path.read_text(encoding="utf-8").replace(str(base / "run"), "start")
            path.write_text(text, encoding="utf-8")
            assert train_in_child(path, partial(die_at_call, Updater, "step", 8)) == KILLED
            shutil.rmtree(directory / "start")
            shutil.rmtree(directory / "run" / "prepared")
        assert train_in_child(path) == 0
        outcomes.append(outcome(directory / "run"))
        outcomes[-1]["state"]["started_from"].pop("path")
    assert outcomes[0] == outcomes[1]
    before = load_file(base / "run" / "best" / "model.safetensors")
    model = newest(directory / "run")
    after = load_file(model / "model.safetensors")
    for table in ("target_embedding", "own_source_embedding"):
        old, new = before[table], after[table]
        assert len(old) < len(new) <= len(old) + 9
        torch.testing.assert_close(new[: len(old)], old, rtol=0, atol=1e-6)
        assert 0.1 < float(new[len(old) :].std()) * 4 < 2.0  # drawn from N(0, 1/16)
    assert UNK not in Codec.load(model).source.encode("ab жук")


def test_the_plan_names_the_start_and_frozen_parameters(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fresh(base, tmp_path, settings(base, tmp_path, freeze=["embeddings"]))
    assert train.main(["--config", str(path), "--plan", "model.attention.cross=softmax"]) == 0
    plan = capsys.readouterr().out
    best = base / "run" / "best"
    assert f"{best}: 34 tensors are taken, 0 are drawn, 2 are left out" in plan
    assert "7,680, of which 2,112 are frozen" in plan
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_is_not_extended_without_a_start(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fresh(base, tmp_path, tiny_config(tmp_path))
    assert train.main(["--config", str(path), "data.extend_vocabulary=9"]) == 2
    assert "there is no vocabulary to extend without train.start_from" in capsys.readouterr().err


def test_an_unknown_part_is_refused_before_data_is_prepared(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = fresh(base, tmp_path, settings(base, tmp_path, freeze=["encodr"]))
    assert train.main(["--config", str(config)]) == 2
    assert "train.freeze: there is no part 'encodr'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "prepared").exists()


def test_other_kinds_of_attention_take_all_that_fits(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(base, tmp_path, max_updates=1, save_every=1)
    config["train"]["schedule"]["warmup"] = 1
    config["train"]["learning_rate"] = 1e-9
    config["model"] = {
        "attention": {"encoder_self": {"kind": "entmax", "alpha": "learned"}, "cross": "rela-i"}
    }
    assert train.main(["--config", str(fresh(base, tmp_path, config))]) == 0
    log = capsys.readouterr().err
    assert "taken: 34 tensors (decoder, encoder, own_source_embedding, target_embedding)" in log
    drawn = "decoder.*.cross_attention.core.norm, encoder.*.self_attention.core.weights"
    assert f"drawn: 2 tensors ({drawn})" in log
    assert "left out: 2 tensors (decoder.*.cross_attention.core.norm)" in log
    before = load_file(base / "run" / "best" / "model.safetensors")
    after = load_file(newest(tmp_path / "run") / "model.safetensors")
    both = before.keys() & after.keys()
    same = {name for name in both if torch.allclose(before[name], after[name], atol=1e-7)}
    assert len(same) == 34
    gain = "decoder.0.cross_attention.core.norm.gain"
    assert gain not in same  # of another kind, though it has the same name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dim=32", "does not fit .*: model.dim: 16 -> 32; leave these keys out"),
        ("model.tie_embeddings=none", "model.tie_embeddings: target -> none"),
        ("data.subword.kind=none", "data.subword.kind: bpe -> none"),
        ("data.target_language=de", "data.target_language: yy -> de"),
        ("train.start_from=nowhere", "train.start_from: expected a model or run directory"),
    ],
)
def test_a_start_that_does_not_fit_is_one_line(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    config = fresh(base, tmp_path)
    for command in (train, prepare):
        assert command.main(["--config", str(config), override]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert sum(line.startswith("nmt-") for line in lines) == 1
        assert re.search(message, lines[-1])
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_prepared_data_depends_on_the_codec_of_the_start(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(tmp_path, start_from=str(base / "run"))
    del config["model"], config["data"]["subword"]
    path = fresh(base, tmp_path, config)
    shutil.copytree(base / "prepared", tmp_path / "prepared")
    assert prepare.main(["--config", str(path)]) == 0
    assert "up to date" in capsys.readouterr().err  # the same text in the same codec
    other = write_run(tmp_path / "other", tiny_config(tmp_path / "other", max_updates=2))
    overrides = ["data.subword.merges=4", "train.schedule.warmup=1", "train.save_every=1"]
    assert train.main(["--config", str(other), *overrides]) == 0
    capsys.readouterr()
    assert prepare.main(["--config", str(path), f"train.start_from={tmp_path / 'other/run'}"]) == 0
    assert "codec of train.start_from" in capsys.readouterr().err  # the reason to prepare it again


def test_an_imported_model_is_fine_tuned(base: Path, tmp_path: Path) -> None:
    """Its codec is one that nmt does not learn; the run goes on without the import."""
    assert (
        import_.main(
            ["--format", "huggingface", str(MARIAN), "--output", str(tmp_path / "imported")]
        )
        == 0
    )
    config = settings(base, tmp_path, max_updates=2, save_every=1)
    config["train"] |= {"start_from": "imported", "schedule": {"kind": "constant", "warmup": 0}}
    path = fresh(base, tmp_path, config)
    assert train_in_child(path) == 0
    shutil.rmtree(tmp_path / "imported")
    shutil.rmtree(tmp_path / "run" / "prepared")
    config["train"]["max_updates"] = 3
    assert train_in_child(write_run(tmp_path, config)) == 0
    assert [record["update"] for record in records(tmp_path / "run", "validation")] == [0, 2, 3]
