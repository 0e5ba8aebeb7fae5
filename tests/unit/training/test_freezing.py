"""Frozen parts of a model keep every bit, and the others are trained as if nothing were frozen."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from encoded_corpora import write_corpus
from support.runs import tiny_config, write_run

from nmt.checkpoint.optimizer import flatten_optimizer
from nmt.config.config import Config
from nmt.config.loading import load_config
from nmt.data.batching import BatchStream, Update
from nmt.errors import ConfigError
from nmt.model.parts import MODEL_PARTS, TABLES, check_parts, freeze, parameter_names
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.training import compilation
from nmt.training.distributed import Processes
from nmt.training.divergence import first_bad_module
from nmt.training.loss import TranslationLoss
from nmt.training.probe import optimizer_state
from nmt.training.state import TrainingState
from nmt.training.update import Updater, loss_inputs

WORDS = 12
ALONE = Processes(0, 1, torch.device("cpu"), None)


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> list[Update]:
    generator = np.random.default_rng(3)
    sides = [
        [[*generator.integers(4, WORDS, size=length), 2] for length in range(1, 25)] for _ in "st"
    ]
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), *sides)
    stream = BatchStream(corpus, batch_tokens=60, seed=1, accumulate=2)
    return list(itertools.islice(stream.updates(), 3))


def settings(tmp_path: Path, *, model: dict[str, Any] | None = None, **train: Any) -> Config:
    values = tiny_config(tmp_path, **train)
    values["model"] |= model or {}
    return load_config(write_run(tmp_path, values))


def make_model(config: Config) -> Transformer:
    torch.manual_seed(1)
    model = Transformer(config.model, source_vocabulary_size=WORDS, target_vocabulary_size=WORDS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[0] = -0.0  # a bit that sums and averages lose
    return model


def make_updater(config: Config, updates: list[Update]) -> Updater:
    model = make_model(config)
    freeze(model, config.train.freeze)
    loss = TranslationLoss(model, smoothing=0.1)
    return Updater(loss, config, ALONE, idle_batch=updates[0].batches[0])


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def train(updater: Updater, updates: list[Update]) -> dict[str, bytes]:
    state = TrainingState()
    updater.loss.train()
    for update in updates:
        updater.run(update, state)
        state.update += 1
    with updater.averaged():
        return bits(dict(updater.loss.model.named_parameters()))


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize(
    "parts",
    [["encoder"], ["encoder", "source_embedding"], ["output"], ["cross", "decoder.0.feed_forward"]],
    ids="+".join,
)
def test_frozen_bits_stay_and_all_others_change(
    tmp_path: Path, updates: list[Update], backend: str, ema: float, parts: list[str]
) -> None:
    config = settings(tmp_path, freeze=parts, ema=ema, clip_norm=1.0, learning_rate=0.1)
    with force_backend(backend):
        updater = make_updater(config, updates)
        before = bits(dict(updater.loss.model.named_parameters()))
        after = train(updater, updates)
    model = updater.loss.model
    frozen = {name for part in parts for name in parameter_names(model, part)}
    assert {name for name in before if before[name] == after[name]} == frozen
    moments = flatten_optimizer(updater.optimizer, model.named_parameters())
    assert {key.partition(":")[2] for key in moments} == before.keys() - frozen
    assert all(dict(model.named_parameters())[name].grad is None for name in frozen)


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
def test_the_first_update_of_the_others_is_that_of_the_whole_model(
    tmp_path: Path, updates: list[Update], backend: str
) -> None:
    untied = {"tie_embeddings": "none"}
    parts = ["output", "encoder.0.feed_forward", "decoder_self"]
    with force_backend(backend):
        whole = make_updater(settings(tmp_path, model=untied), updates)
        partial = make_updater(settings(tmp_path, model=untied, freeze=parts), updates)
        expected, found = train(whole, updates[:1]), train(partial, updates[:1])
    frozen = {name for part in parts for name in parameter_names(partial.loss.model, part)}
    for name in found.keys() - frozen:
        assert found[name] == expected[name], name


def test_compiled_training_freezes_too(
    tmp_path: Path, updates: list[Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    plain = {"dropout": 0.0, "attention_dropout": 0.0}
    model = make_model(settings(tmp_path, model=plain))
    freeze(model, ["encoder"])
    loss = TranslationLoss(model, smoothing=0.1)
    compiled = compilation.compiled_loss(loss, longest=32)
    batch = loss_inputs(updates[0].batches[0], ALONE.device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(loss(*batch)[0], trained)
    for ours, theirs in zip(
        torch.autograd.grad(compiled(*batch)[0], trained), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_looks_at_a_run_leave_frozen_parts_out(tmp_path: Path, updates: list[Update]) -> None:
    updater = make_updater(settings(tmp_path, freeze=["decoder"]), updates)
    with optimizer_state(updater):
        assert len(updater.optimizer.state) == len(
            [p for p in updater.loss.parameters() if p.requires_grad]
        )
    batch = loss_inputs(updates[0].batches[0], updater.device)
    assert first_bad_module(updater.loss, batch) is None


def test_parts_by_name(tmp_path: Path) -> None:
    config = settings(tmp_path, model={"norm": "pre", "encoder_layers": 2})
    model = make_model(config)
    named = dict(model.named_parameters())
    for part in (*MODEL_PARTS, *TABLES):
        assert parameter_names(model, part), part
    assert set(parameter_names(model, "encoder")) == {n for n in named if n.startswith("encoder")}
    assert all(n.startswith("encoder.1.") for n in parameter_names(model, "encoder.1"))
    assert parameter_names(model, "output") == ["target_embedding"]  # they are tied
    assert parameter_names(model, "source_embedding") == ["own_source_embedding"]
    assert len(freeze(model, ["encoder", "encoder.0", "cross"])) == len(
        {*parameter_names(model, "encoder"), *parameter_names(model, "cross")}
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["encodr"], r"no part 'encodr'; expected some of encoder, .*encoder.0, decoder.0\)"),
        (["encoder.1"], r"no part 'encoder.1'"),
        (["encoder.0.self"], r"no part 'encoder.0.self'"),  # a prefix ends at a dot
        (["encoder", "decoder", "embeddings"], "nothing is left to train"),
    ],
)
def test_other_parts_are_refused(tmp_path: Path, parts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_parts(settings(tmp_path).model, parts)
