"""A model directory is the whole model, and a run directory leads to the right one."""

import logging
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from support.small_models import (
    flip_bit,
    small_codec,
    small_config,
    small_files,
    small_transformer,
    write_model,
)

from nmt.checkpoint.model_directory import load_model, model_files
from nmt.checkpoint.selection import find_model
from nmt.checkpoint.store import CheckpointStore, verify
from nmt.errors import IntegrityError, NoCheckpointError
from nmt.storage.directories import bytes_writer, write_directory
from nmt.storage.files import host_digest
from nmt.storage.manifest import MANIFEST

KINDS = [
    "softmax",
    "{kind: entmax, alpha: learned}",
    "{kind: rela-i, gain_init: uniform}",
    "{kind: rela-g, threshold: learned}",
]


@pytest.mark.parametrize("tie", ["none", "target"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loaded_model_is_the_saved_one(tmp_path: Path, tie: str, kind: str, norm: str) -> None:
    """Config, codec and every weight; and saved again it is the same directory, bit for bit."""
    attention = f"{{cross: {kind}, decoder_self: {kind}}}"
    config = small_config(
        tmp_path, model=f", tie_embeddings: {tie}, norm: {norm}, attention: {attention}"
    )
    codec = small_codec(config)
    model = small_transformer(config, codec, seed=5)
    write_directory(tmp_path / "a", model_files(config, codec, model.state_dict()))
    before = torch.random.get_rng_state()
    loaded = load_model(tmp_path / "a")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert loaded.config == config
    text = "the old man sees a dog"
    source = torch.tensor([codec.source.encode(text)])
    assert loaded.codec.source.encode(text) == source[0].tolist()
    target = torch.tensor([[1, 4, 5]])
    visible = torch.ones_like(source, dtype=torch.bool)
    with torch.inference_mode():
        expected = model.logits(model(source, visible, target))
        assert torch.equal(loaded.model.logits(loaded.model(source, visible, target)), expected)
    again = model_files(loaded.config, loaded.codec, loaded.model.state_dict())
    write_directory(tmp_path / "b", again)
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()


def run_with(tmp_path: Path, *names: str) -> Path:
    """A run directory with these model directories in it."""
    for seed, name in enumerate(names, start=1):
        write_model(tmp_path / "run" / name, seed=seed)
    return tmp_path / "run"


CHECKPOINTS = ("checkpoints/step-00000001", "checkpoints/step-00000002")


def test_average_then_best_then_newest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(tmp_path, *CHECKPOINTS, "best", "average")
    caplog.set_level(logging.INFO, "nmt")
    for name in ("average", "best", CHECKPOINTS[1], CHECKPOINTS[0]):
        assert find_model(run) == run / name
        assert str(run / name) in caplog.records[-1].getMessage()
        assert find_model(run / name) == run / name
        shutil.rmtree(run / name)
    with pytest.raises(NoCheckpointError, match=str(run)):
        find_model(run)
    with pytest.raises(NoCheckpointError, match="nowhere"):
        find_model(tmp_path / "nowhere")


def test_damaged_newest_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(tmp_path, *CHECKPOINTS)
    flip_bit(run / CHECKPOINTS[1] / "model.safetensors", 1234)
    assert find_model(run) == run / CHECKPOINTS[0]
    assert "step 2" in caplog.text
    flip_bit(run / CHECKPOINTS[0] / "codec.json", 3)
    with pytest.raises(NoCheckpointError, match="none of the 2"):
        find_model(run)


def test_a_damaged_best_is_never_loaded(tmp_path: Path) -> None:
    run = run_with(tmp_path, *CHECKPOINTS, "best")
    flip_bit(run / "best" / "model.safetensors", 12345)
    with pytest.raises(IntegrityError, match=r"best/model\.safetensors"):
        load_model(find_model(run))
    (run / "best" / MANIFEST).unlink()
    with pytest.raises(IntegrityError, match=r"best/MANIFEST\.json: missing"):
        load_model(find_model(run / "best"))


def test_broken_optimizer_state_does_not_matter_to_translation(tmp_path: Path) -> None:
    files = small_files(tmp_path, seed=1) | {"optimizer.safetensors": bytes_writer(b"1234")}
    path = CheckpointStore(tmp_path / "run").save(1, files)
    (path / "optimizer.safetensors").write_bytes(b"4321")
    assert load_model(find_model(tmp_path / "run")).path == path
    with pytest.raises(IntegrityError, match="optimizer"):
        verify(path)


def test_best_is_found_in_mid_replacement(tmp_path: Path) -> None:
    """Its writer died between the two renames, and nobody has put that in order yet."""
    run = run_with(tmp_path, "best")
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    aside = run / f".nmt-old-best.{host_digest()}.{int(process.stdout)}.00000000"
    (run / "best").rename(aside)
    assert find_model(run) == aside
    load_model(aside)
    with CheckpointStore(run).lock():
        assert find_model(run) == run / "best"


def test_reading_while_best_is_replaced(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    files = [small_files(tmp_path, seed=seed) for seed in (1, 2)]
    store.put("best", files[0])
    stop = threading.Event()

    def replace() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            store.put("best", files[count % 2])
            time.sleep(0.05)  # a reader is left the time to read, but not to choose when

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        config = small_config(tmp_path)
        expected = [
            small_transformer(config, small_codec(config), seed=seed).target_embedding
            for seed in (1, 2)
        ]
        for _ in range(30):
            weights = load_model(find_model(tmp_path)).model.target_embedding
            assert any(torch.equal(weights, item) for item in expected)
    finally:
        stop.set()
        writer.join()
