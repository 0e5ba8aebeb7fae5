"""Training with torch.compile: one graph for all batches, the same losses, exact resumption.

The fast tests trace the graph as every backend does but run it operation by operation; those
marked slow hand it to the C++ compiler.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from safetensors.torch import load_file
from support.runs import newest, outcome, tiny_config, write_run
from support.transformers import everywhere
from torch._dynamo.utils import counters

from nmt.cli import train
from nmt.config.config import AttentionConfig, ModelConfig
from nmt.config.loading import load_config
from nmt.data.batching import Update
from nmt.errors import ConfigError
from nmt.model.transformer import Transformer
from nmt.training import compilation
from nmt.training.distributed import Processes
from nmt.training.loss import TranslationLoss
from nmt.training.state import TrainingState
from nmt.training.update import Updater, UpdateResult

# (sentences, source length, target length): all equal at first, and batches of one sentence.
SHAPES = [(4, 4, 4), (1, 9, 5), (5, 4, 7), (2, 2, 2), (30, 31, 29), (3, 200, 11), (1, 6, 257)]
SHAPES += [(2, 32, 64), (32, 32, 32)]


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace, but do not compile."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")


def small_loss(kind: str, **options: Any) -> TranslationLoss:
    attention = AttentionConfig(kind=kind, **options)
    config = ModelConfig(
        dim=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward_dim=32,
        dropout=0.0,
        attention_dropout=0.0,
        feed_forward_dropout=0.0,
        attention=everywhere(attention),
    )
    model = Transformer(config, source_vocabulary_size=40, target_vocabulary_size=40)
    return TranslationLoss(model, smoothing=0.1)


def batch(sentences: int, source_length: int, target_length: int) -> tuple[torch.Tensor, ...]:
    source = torch.randint(4, 40, (sentences, source_length))
    visible = torch.rand(sentences, source_length) > 0.2
    visible[:, 0] = True
    target = torch.randint(4, 40, (sentences, target_length))
    positions = (torch.rand(target.numel()) > 0.2).nonzero().squeeze(1)
    return source, visible, target, positions, target.flatten()[positions]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("softmax", {}),
        ("rela-g", {}),
        ("sparsemax", {}),
        ("entmax15", {}),
        ("entmax", {"alpha": "learned"}),
    ],
)
def test_one_graph_serves_every_shape(kind: str, options: dict[str, Any]) -> None:
    """Also numbers of keys that are a multiple of 32 and others."""
    loss = small_loss(kind, **options)
    compiled = compilation.compiled_loss(loss, longest=257)
    parameters = list(loss.parameters())
    for shape in SHAPES:
        inputs = batch(*shape)
        expected, expected_likelihood = loss(*inputs)
        value, likelihood = compiled(*inputs)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(likelihood, expected_likelihood, rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(value, parameters)
        for ours, theirs in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_attention_by_another_package_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend: package"):
        compilation.compiled_loss(small_loss("entmax15", backend="package"), longest=257)


def without_dropout(directory: Path, **train_settings: Any) -> Path:
    config = tiny_config(directory, log_every=1, max_updates=20, **train_settings)
    for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
        config["model"][name] = 0.0
    return write_run(directory, config)


def check_against_uncompiled(directory: Path) -> None:
    """Train twice in this process, with and without; the compiled run in two parts."""
    for name in ("plain", "compiled"):
        path = without_dropout(directory / name, compile=name == "compiled")
        if name == "compiled":
            assert train.main(["--config", str(path), "train.max_updates=13"]) == 0
            torch._dynamo.reset()  # as in a new process
        assert train.main(["--config", str(path)]) == 0
    runs = directory / "plain" / "run", directory / "compiled" / "run"
    plain, compiled = (
        [record for record in outcome(run)["records"] if record["event"] == "train"] for run in runs
    )
    for ours, theirs in zip(compiled, plain, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    names = [load_file(newest(run) / "model.safetensors").keys() for run in runs]
    assert names[0] == names[1]


@pytest.mark.usefixtures("traced")
def test_a_compiled_run_makes_the_updates_of_a_plain_one(tmp_path: Path) -> None:
    """Validations with translations and attention statistics make no further graph."""
    check_against_uncompiled(tmp_path)
    assert counters["stats"]["unique_graphs"] == 2  # one in each part of the run
    assert not counters["graph_break"]


@pytest.mark.usefixtures("traced")
def test_a_compiler_that_fails_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(_graph: Any, _inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compilation, "BACKEND", broken)
    path = write_run(tmp_path, tiny_config(tmp_path, compile=True))
    assert train.main(["--config", str(path)]) == 2
    message = capfd.readouterr().err
    assert "no compiler here" in message
    assert "compile: false" in message


@pytest.mark.usefixtures("traced")
def test_all_graphs_are_made_before_the_first_update(tmp_path: Path) -> None:
    """In the precision of the run, and what is logged or validated later changes nothing."""
    config = tiny_config(tmp_path, compile=True, precision="bfloat16")
    seen = []

    class Watched(Updater):
        def run(self, update: Update, state: TrainingState) -> UpdateResult:
            seen.append(counters["stats"]["unique_graphs"])
            return super().run(update, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nmt.training.run.Updater", Watched)
        assert train.main(["--config", str(write_run(tmp_path, config))]) == 0
    assert seen == [1] * 24
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("traced")
def test_a_compiler_that_fails_is_a_warning_where_it_was_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """`auto` on a GPU: told with the reason, and the run goes on without."""

    def broken(_graph: Any, _inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compilation, "BACKEND", broken)
    loss = small_loss("rela-g")
    on_cpu = Processes(0, 1, torch.device("cpu"), None)
    config = load_config(write_run(tmp_path, tiny_config(tmp_path)))
    assert compilation.training_module(loss, config, on_cpu, nullcontext) is loss
    assert not caplog.records
    # A model on the CPU stands in for one on a GPU: the compiler fails before it matters.
    on_gpu = Processes(0, 1, torch.device("cuda", 0), None)
    monkeypatch.setattr(torch, "zeros", partial(on_the_cpu, torch.zeros))
    monkeypatch.setattr(torch.random, "fork_rng", lambda **_options: nullcontext())
    assert compilation.training_module(loss, config, on_gpu, nullcontext) is loss
    assert "training without torch.compile, which is slower" in caplog.text
    assert "no compiler here" in caplog.text


def on_the_cpu(zeros: Any, *sizes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros in host memory, whatever device is asked for."""
    del device
    result: torch.Tensor = zeros(*sizes, dtype=dtype)
    return result


def start(config: Path, **environment: str) -> subprocess.Popen[str]:
    """A process of its own: a fork of one that has compiled would wait for threads it lacks."""
    command = [sys.executable, "-m", "nmt.cli.train", "--config", str(config)]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_without_a_compiler_the_run_ends_with_advice(tmp_path: Path) -> None:
    path = write_run(tmp_path, tiny_config(tmp_path, compile=True))
    run = start(path, CXX=str(tmp_path / "missing"))
    _, errors = run.communicate()
    assert run.returncode == 2, errors
    assert "C++ compiler" in errors


@pytest.mark.slow
def test_compiled_code_makes_the_updates_of_a_plain_run(tmp_path: Path) -> None:
    check_against_uncompiled(tmp_path)
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_code_resumes_exactly(tmp_path: Path) -> None:
    """With dropout: a run that is killed ends like one that is not."""
    for name in ("whole", "cut"):
        directory = tmp_path / name
        path = write_run(directory, tiny_config(directory, compile=True, max_updates=200))
        if name == "cut":
            run = start(path)
            while run.poll() is None and not list(directory.glob("run/checkpoints/*30")):
                time.sleep(0.01)
            run.kill()
            run.communicate()
            assert run.returncode == -signal.SIGKILL
        run = start(path)
        _, errors = run.communicate()
        assert run.returncode == 0, errors
    assert outcome(tmp_path / "cut" / "run") == outcome(tmp_path / "whole" / "run")
