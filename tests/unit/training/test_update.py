"""One update by itself: numbers that are not finite, the scale of float16, too little memory."""

import itertools
import json
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_corpora import write_corpus
from support.runs import tiny_config, write_run

from nmt.checkpoint.optimizer import flatten_optimizer
from nmt.config.config import Config
from nmt.config.loading import load_config
from nmt.data.batching import BatchStream, Update
from nmt.errors import ConfigError, DivergedError
from nmt.model.transformer import Transformer
from nmt.ops.half_linear import SublayerOutput
from nmt.ops.residual import ResidualStream
from nmt.training.distributed import Processes
from nmt.training.divergence import SMALLEST_LOSS_SCALE, Watch, locate
from nmt.training.loss import TranslationLoss
from nmt.training.state import TrainingState
from nmt.training.update import LossScale, Updater, UpdateResult

WORDS = 12
ALONE = Processes(0, 1, torch.device("cpu"), None)


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> list[Update]:
    """A few updates of two batches each."""
    generator = np.random.default_rng(3)
    sides = [
        [[*generator.integers(4, WORDS, size=length), 2] for length in range(1, 25)] for _ in "st"
    ]
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), *sides)
    stream = BatchStream(corpus, batch_tokens=60, seed=1, accumulate=2)
    return list(itertools.islice(stream.updates(), 6))


def settings(tmp_path: Path, *, dropout: float = 0.0, **train: Any) -> Config:
    values = tiny_config(tmp_path, **train)
    values["model"] |= {"dropout": dropout, "attention_dropout": dropout}
    return load_config(write_run(tmp_path, values))


def make_updater(config: Config, updates: list[Update]) -> Updater:
    torch.manual_seed(1)
    model = Transformer(config.model, source_vocabulary_size=WORDS, target_vocabulary_size=WORDS)
    loss = TranslationLoss(model, smoothing=0.1)
    return Updater(loss, config, ALONE, idle_batch=updates[0].batches[0])


def make_watch(updater: Updater, state: TrainingState) -> Watch:
    return Watch(
        updater.loss,
        state,
        warmup=10,
        loss_bounds=lambda: pytest.fail("not asked for"),
    )


def snapshot(updater: Updater) -> dict[str, torch.Tensor]:
    moments = flatten_optimizer(updater.optimizer, updater.loss.model.named_parameters())
    return {
        name: tensor.clone()
        for name, tensor in [*updater.loss.state_dict().items(), *moments.items()]
    }


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


# ---------------------------------------------------------------- numbers that are not finite

WEIGHTS = [
    "model.target_embedding",
    "model.own_source_embedding",
    "model.encoder.0.self_attention.query_key_value.weight",
    "model.encoder.0.feed_forward.output.bias",
    "model.encoder.0.feed_forward_residual.norm.weight",
    "model.decoder.0.self_attention.output.weight",
    "model.decoder.0.cross_attention.key_value.weight",
    "model.decoder.0.feed_forward.output.weight",
]
MODULES = [
    "model.source_input",
    "model.encoder.0.self_attention",
    "model.encoder.0.feed_forward",
    "model.decoder.0.self_attention",
    "model.decoder.0.cross_attention",
    "model.decoder.0.feed_forward",
    "model.decoder.0",
]
INJECTIONS = [
    *(
        (kind, name, value)
        for kind in ("weight", "gradient")
        for name in WEIGHTS
        for value in (math.nan, math.inf)
    ),
    *(("output", name, math.nan) for name in MODULES),
    ("loss", "", math.nan),
]


def inject(loss: TranslationLoss, kind: str, name: str, value: float) -> None:
    """Let one number be not finite, once for good or in every pass."""

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        bad = tensor.clone()
        bad.view(-1)[0] = value
        return bad

    def spoil_all(output: torch.Tensor | SublayerOutput | ResidualStream) -> object:
        if isinstance(output, torch.Tensor):
            return spoil(output)
        return type(output)(*(None if one is None else spoil(one) for one in output))

    if kind == "weight":
        weight = loss.get_parameter(name)
        weight.data = spoil(weight.data)
    elif kind == "gradient":
        loss.get_parameter(name).register_hook(spoil)
    elif kind == "output":
        loss.get_submodule(name).register_forward_hook(lambda _m, _i, output: spoil_all(output))
    else:
        loss.register_forward_hook(lambda _m, _i, output: (output[0] * value, output[1]))


@pytest.mark.parametrize(("kind", "name", "value"), INJECTIONS)
def test_a_number_that_is_not_finite_stops_the_step(
    tmp_path: Path, updates: list[Update], kind: str, name: str, value: float
) -> None:
    """Nothing of the model or of Adam's state changes, and the message says where to look."""
    updater = make_updater(settings(tmp_path), updates)
    state = TrainingState()
    updater.run(updates[0], state)
    state.update += 1
    inject(updater.loss, kind, name, value)
    before = snapshot(updater)
    result = updater.run(updates[1], state)
    assert result.bad.item() == 1.0
    assert result.sums.tolist() == [0.0] * 5
    where = locate(updater.loss, result)
    assert name in where or kind == "weight"
    assert "training pairs" in where
    after = snapshot(updater)
    if kind == "weight":
        assert f"the weight {name} is not finite" in where
        assert updater.first_bad_tensor() == f"the weight {name}"
        before.pop(name), after.pop(name)
    else:
        assert updater.first_bad_tensor() is None
    assert_same(before, after)


# ---------------------------------------------------------------- float16


def test_the_scale_of_float16_ends_the_run_before_it_is_0(
    tmp_path: Path, updates: list[Update]
) -> None:
    """200 updates that overflow at every scale."""
    updater = make_updater(settings(tmp_path, precision="float16"), updates)
    state = TrainingState()
    watch = make_watch(updater, state)
    scale, bad, sums = LossScale(state, updater.device), torch.ones(()), torch.zeros(5)
    overflows = (UpdateResult(1, bad, sums, (), scale.grow_or_shrink(bad)) for _ in range(200))
    with pytest.raises(DivergedError, match="float16 overflows"):
        deque(map(watch.take, overflows))
    assert SMALLEST_LOSS_SCALE / 2 <= state.loss_scale < SMALLEST_LOSS_SCALE


def test_the_scale_of_float16_grows_after_2000_updates_without_an_overflow() -> None:
    scale = LossScale(TrainingState(loss_scale=8.0), torch.device("cpu"))
    good, bad = torch.zeros(()), torch.ones(())
    deque(map(scale.grow_or_shrink, [good] * 1999), maxlen=0)
    assert scale.numbers.tolist() == [8.0, 1999.0]
    assert scale.grow_or_shrink(good).tolist() == [16.0, 0.0]
    assert scale.grow_or_shrink(good).tolist() == [16.0, 1.0]
    assert scale.grow_or_shrink(bad).tolist() == [8.0, 0.0]


def test_float16_goes_on_with_its_scale_and_counts(tmp_path: Path, updates: list[Update]) -> None:
    """Overflows at first, because the scale is far too high; and with dropout."""
    config = settings(tmp_path, precision="float16", dropout=0.1)
    runs = []
    for parts in ([6], [2, 4]):
        updater, state = make_updater(config, updates), TrainingState(loss_scale=2.0**22)
        for part in parts:
            kept = snapshot(updater)
            state = TrainingState.from_dict(json.loads(json.dumps(state.to_dict())))
            updater = restored(make_updater(config, updates), kept)
            watch = make_watch(updater, state)
            for update in updates[state.update : state.update + part]:
                result = updater.run(update, state)
                state.update += 1
                watch.take(result)
        runs.append((snapshot(updater), state))
    assert_same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert 0 < runs[0][1].skipped_updates < 6
    assert runs[0][1].loss_scale < 2.0**22


def restored(updater: Updater, kept: dict[str, torch.Tensor]) -> Updater:
    """A new updater with the weights and Adam's state of another."""
    updater.loss.load_state_dict({name: t for name, t in kept.items() if ":" not in name})
    for name, parameter in updater.loss.model.named_parameters():
        state = {key: kept.get(f"{key}:{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
        if state["step"] is not None:
            updater.optimizer.state[parameter] = state
    return updater


# ---------------------------------------------------------------- memory


def forget_memory(loss: TranslationLoss, *, sentences: int, where: str) -> None:
    """Let batches of more sentences run out of memory, in the forward or the backward pass."""

    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("not enough memory")

    def look(_module: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
        if len(inputs[0]) > sentences:
            if where == "forward":
                refuse()
            output[0].register_hook(refuse)

    loss.register_forward_hook(look)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_too_large_for_memory_is_split(
    tmp_path: Path, updates: list[Update], caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Its gradients are those of the whole batch."""
    update = max(updates, key=lambda item: max(len(batch.indices) for batch in item.batches))
    gradients = []
    for sentences in (10**6, 2):
        updater = make_updater(settings(tmp_path), updates)
        forget_memory(updater.loss, sentences=sentences, where=where)
        result = updater.run(update, TrainingState())
        gradients.append([p.grad.clone() for p in updater.loss.parameters() if p.grad is not None])
    assert "not enough memory" in caplog.text
    assert result.bad.item() == 0.0
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-6)


def test_a_sentence_too_large_for_memory_ends_the_run(
    tmp_path: Path, updates: list[Update]
) -> None:
    updater = make_updater(settings(tmp_path), updates)
    forget_memory(updater.loss, sentences=0, where="forward")
    with pytest.raises(ConfigError, match="lower train"):
        updater.run(updates[0], TrainingState())


# ---------------------------------------------------------------- the same weights everywhere


def test_any_changed_bit_changes_the_digest_of_the_weights(
    tmp_path: Path, updates: list[Update]
) -> None:
    updater = make_updater(settings(tmp_path), updates)
    digests = {updater.weights_digest()}
    for parameter in updater.loss.parameters():
        parameter.data.view(-1).view(torch.int32)[-1] ^= 1
        digests.add(updater.weights_digest())
    assert len(digests) == 1 + len(list(updater.loss.parameters()))
