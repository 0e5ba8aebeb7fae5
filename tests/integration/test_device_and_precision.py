"""The device and the precision of a run: chosen at its start, told, and kept when it resumes."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.runs import newest, tiny_config, train_in_child, write_run

from nmt.config.config import Config
from nmt.config.loading import load_config
from nmt.ops.backend import force_backend
from nmt.ops.cuda_device import warn_of_unused_card
from nmt.ops.native.bfloat16 import missing_products
from nmt.training.precision import LEAST_CPU_WIDTH, with_precision, with_stored_precision
from nmt.training.snapshot import read_saved_run

needs_cpu_build = pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has a CUDA device"
)


def short_run(directory: Path, **train: Any) -> dict[str, Any]:
    schedule = {"kind": "inverse_sqrt", "warmup": 1}
    config = tiny_config(directory, max_updates=4, schedule=schedule, **train)
    config["validate"] = {"every": 100, "beam": 0, "metric": "loss"}
    return config


@needs_cpu_build
def test_a_run_on_cuda_without_a_device_ends_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_in_child(write_run(tmp_path, short_run(tmp_path, device="cuda"))) == 2
    _progress, message = capfd.readouterr().err.splitlines()
    assert message.startswith("nmt-train: train.device is cuda")
    if torch.version.cuda is None:
        assert "is a build for CPUs; install a build for CUDA" in message
    assert not (tmp_path / "prepared").exists()


@needs_cpu_build
def test_a_card_that_is_not_used_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path, short_run(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    warn_of_unused_card.cache_clear()  # another test may have had the answer of this machine
    assert train_in_child(path) == 0
    assert "which torch cannot use" not in capfd.readouterr().err
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert train_in_child(write_run(tmp_path, short_run(tmp_path) | {"seed": 1})) == 0
    message = capfd.readouterr().err
    assert "on the CPU although there is GPU 0: NVIDIA A100-SXM4-40GB, which torch" in message


def load(directory: Path, **train: Any) -> Config:
    return load_config(write_run(directory, short_run(directory, **train)))


@pytest.mark.parametrize(
    ("capability", "precision"), [((8, 0), "bfloat16"), ((9, 0), "bfloat16"), ((7, 5), "float32")]
)
def test_auto_is_bfloat16_where_the_card_has_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    precision: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    card, config = torch.device("cuda", 0), load(tmp_path)
    assert with_precision(config, card).train.precision == precision
    assert with_precision(config, torch.device("cpu")).train.precision == "float32"
    exact = load(tmp_path, precision="float32")
    assert with_precision(exact, card).train.precision == "float32"


@pytest.mark.parametrize("dim", [LEAST_CPU_WIDTH // 2, LEAST_CPU_WIDTH])
def test_auto_is_bfloat16_for_wide_models_where_the_processor_is_faster(
    tmp_path: Path, dim: int
) -> None:
    cpu = torch.device("cpu")
    settings = short_run(tmp_path)
    settings["model"] |= {"dim": dim, "heads": 4}
    config = load_config(write_run(tmp_path, settings))
    fast = dim >= LEAST_CPU_WIDTH and missing_products() is None
    assert with_precision(config, cpu).train.precision == ("bfloat16" if fast else "float32")
    compiled = replace(config, train=replace(config.train, compile=True))
    assert with_precision(compiled, cpu).train.precision == "float32"
    with force_backend("torch"):
        assert with_precision(config, cpu).train.precision == "float32"


def test_a_run_resumes_in_the_precision_it_began_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`auto` stands for it; another precision is another run."""
    assert train_in_child(write_run(tmp_path, short_run(tmp_path, precision="bfloat16"))) == 0
    assert "precision: bfloat16" in capfd.readouterr().err
    assert train_in_child(write_run(tmp_path, short_run(tmp_path) | {"seed": 1})) == 0
    longer = short_run(tmp_path)
    longer["train"]["max_updates"] = 6
    assert train_in_child(write_run(tmp_path, longer)) == 0
    assert "precision: bfloat16" in capfd.readouterr().err
    saved = read_saved_run(newest(tmp_path / "run"))
    assert (saved.state.update, saved.config.train.precision) == (6, "bfloat16")
    longer["train"]["precision"] = "float32"
    assert train_in_child(write_run(tmp_path, longer)) == 2
    assert "train.precision: bfloat16 -> float32" in capfd.readouterr().err


def test_a_run_that_says_nothing_of_its_precision_was_in_float32(tmp_path: Path) -> None:
    assert train_in_child(write_run(tmp_path, short_run(tmp_path))) == 0
    checkpoint = newest(tmp_path / "run")
    settings = yaml.safe_load((checkpoint / "config.yaml").read_text())
    assert settings["train"]["precision"] == "float32"
    del settings["train"]["precision"]
    card = torch.device("cuda", 0)
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(settings))
    old = with_stored_precision(load_config(tmp_path / "old.yaml"))
    resumed = with_precision(load(tmp_path), card, begun=old)
    assert resumed.train.precision == "float32"
