"""Our own part of the comparison with other toolkits, on a few lines of text."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from translation_models import random_lines

from nmt.checkpoint.model_directory import load_model
from nmt.exchange.marian import import_marian

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "speed"))

import make_models
from compare import GROUPS, PARTS, check, is_same, requests_of
from drive_nmt import OurDecoder, OurTrainer
from driver import Clock, measure_decoding, measure_training, peak_memory
from make_models import write_decoding
from make_task import write_training
from task import EOS, STEPS, DecodingData, TrainingData


def options(task: Path, option: str) -> argparse.Namespace:
    return argparse.Namespace(task=task, size="small", threads=1, option=option, batch=4)


def test_training_counts_every_target_token_once(tmp_path: Path) -> None:
    """An epoch of updates has the tokens of the corpus; padding is not among them."""
    lines = {"train": random_lines(300, seed=1), "val": random_lines(2, seed=2)}
    for name, text in lines.items():
        (tmp_path / f"{name}.en").write_text("".join(f"{x}\n" for x in text), encoding="utf-8")
        upper = "".join(f"{x.upper()}\n" for x in text)
        (tmp_path / f"{name}.de").write_text(upper, encoding="utf-8")
    write_training(tmp_path / "task", tmp_path)
    data = TrainingData(tmp_path / "task")
    assert len(data) == 300
    first = data.padded("target", data.batch(0))
    assert first.shape[0] * first.shape[1] <= 4096
    assert all(row[row != 0][-1] == EOS for row in first)
    trainer = OurTrainer(options(tmp_path / "task", "rela-g"))
    before = trainer.model.updates[0].tokens
    found = measure_training(trainer, 1)
    assert before + found["tokens"] <= len(data.sides["target"][0])
    assert found["seconds"] > 0.0


@pytest.fixture(scope="module")
def decoding_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of the smallest size."""
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: no export to it")
    task = tmp_path_factory.mktemp("task")
    write_decoding(task, "small")
    return task


def test_outputs_have_the_length_that_everyone_has(decoding_task: Path) -> None:
    decoder = OurDecoder(options(decoding_task, "softmax"))
    found = measure_decoding(decoder, [[0, 1, 2], [3]])
    assert [len(output) for output in found["outputs"]] == 4 * [STEPS - 1]
    assert found["memory"] > 100e6
    assert check("nmt", found)["sentences"] == 4
    alone = measure_decoding(decoder, [[3]])
    assert alone["outputs"] == decoder.translate([[0, 1, 2], [3]])[3:]
    with pytest.raises(SystemExit, match="peer: expected outputs of 16"):
        check("peer", {"outputs": [[4], 15 * [4]]})


def test_marian_has_our_weights(decoding_task: Path, tmp_path: Path) -> None:
    """Its file, imported again, has the same numbers, but that the bias forbids the end."""
    data = DecodingData(decoding_task, "small")
    marian = data.directory / "marian"
    words = marian / "vocabulary.yml"
    import_marian(marian / "model.npz", [words, words], tmp_path / "model", languages={})
    found = {k: v.numpy() for k, v in load_model(tmp_path / "model").model.state_dict().items()}
    assert found.pop("output_bias")[EOS] == make_models.NEVER
    names = {name.removeprefix("weight/") for name in data.arrays if "weight/" in name}
    assert found.keys() == names
    for name, value in found.items():
        assert np.array_equal(value, data.weight(name)), name


def test_time_and_memory_of_another_process() -> None:
    """As those of the trainer that is a process of its own."""
    program = (
        "import time; x = b'x' * 80_000_000; e = time.time() + 60\nwhile time.time() < e: pass"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            deadline = time.monotonic() + 50
            clock = Clock(process.pid)
            while peak_memory(process.pid) < 80e6 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert 80e6 < peak_memory(process.pid) < 200e6
            while clock.read()["cpu_seconds"] < 0.05 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert clock.read()["cpu_seconds"] >= 0.05
        finally:
            process.kill()
    assert Clock(os.getpid()).read()["cpu_seconds"] >= 0.0


def test_parts_and_their_requests() -> None:
    """Three sizes, two batch sizes and two numbers of threads make twelve parts of decoding."""
    assert len(GROUPS["decode"]) == 12
    warm_up, measured = requests_of(PARTS["decode-base-64-2"])
    assert measured["batches"] == [list(range(64)), list(range(64, 128))]
    assert warm_up == measured
    _, single = requests_of(PARTS["decode-small-1-1"])
    assert single["batches"] == [[number] for number in range(64)]
    assert requests_of(PARTS["train-middle-2"])[1] == {"updates": 2}


def test_rounds_of_another_version_are_not_mixed() -> None:
    earlier = {"version": "1", "machine": "a", "date": "x", "rounds": [1]}
    assert is_same(earlier, {**earlier, "date": "y", "rounds": []})
    assert not is_same(earlier, {**earlier, "version": "2"})
    assert not is_same(earlier, {**earlier, "machine": "b"})
