"""The look ahead at memory: which batches, beside which state, and nothing left behind."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_corpora import write_corpus
from support.runs import tiny_config, write_run

from nmt.config.loading import load_config
from nmt.data.batching import BatchStream
from nmt.data.corpus import EncodedCorpus
from nmt.model.transformer import Transformer
from nmt.training.distributed import Processes
from nmt.training.loss import TranslationLoss
from nmt.training.probe import largest_batches, probe
from nmt.training.state import TrainingState
from nmt.training.update import Updater

WORDS = 12


@pytest.fixture
def corpus(tmp_path: Path) -> EncodedCorpus:
    """Many short pairs, which fill batches of 120 tokens, and one long pair that does not."""
    generator = np.random.default_rng(3)
    lengths = [3] * 200 + [89]
    sides = [[[*generator.integers(4, WORDS, size=size), 2] for size in lengths] for _ in "st"]
    (tmp_path / "corpus").mkdir()
    return write_corpus(tmp_path / "corpus", *sides)


def make_stream(corpus: EncodedCorpus) -> BatchStream:
    return BatchStream(corpus, batch_tokens=120, seed=1)


def make_updater(tmp_path: Path, corpus: EncodedCorpus, **train: Any) -> Updater:
    config = load_config(write_run(tmp_path, tiny_config(tmp_path, precision="float32", **train)))
    torch.manual_seed(1)
    model = Transformer(config.model, source_vocabulary_size=WORDS, target_vocabulary_size=WORDS)
    stream = make_stream(corpus)
    first = next(stream.updates()).batches[0]
    loss = TranslationLoss(model, smoothing=0.1)
    return Updater(loss, config, Processes(0, 1, torch.device("cpu"), None), idle_batch=first)


def test_the_batches_with_most_positions_and_most_scores_are_tried(corpus: EncodedCorpus) -> None:
    shapes = sorted(batch.source.shape for batch in largest_batches(make_stream(corpus)))
    assert shapes == [(1, 90), (30, 4)]


def test_they_run_beside_the_state_of_adam(tmp_path: Path, corpus: EncodedCorpus) -> None:
    updater = make_updater(tmp_path, corpus)
    seen = []
    updater.loss.register_forward_hook(
        lambda _module, inputs, _output: seen.append(
            (len(inputs[0]), len(updater.optimizer.state), torch.is_grad_enabled())
        )
    )
    probe(updater, updater.config, train=make_stream(corpus), validation=[])
    parameters = len(list(updater.loss.parameters()))
    assert sorted(seen) == [(1, parameters, True), (30, parameters, True)]


def test_nothing_is_left_behind(tmp_path: Path, corpus: EncodedCorpus) -> None:
    """Weights, averages, gradients, optimizer and random state, and so the updates that follow."""
    stream = make_stream(corpus)
    updates = list(itertools.islice(stream.updates(), 3))
    weights = []
    for probed in (False, True):
        updater = make_updater(tmp_path, corpus, ema=0.9)
        random = torch.get_rng_state()
        if probed:
            probe(updater, updater.config, train=make_stream(corpus), validation=[])
        assert torch.equal(torch.get_rng_state(), random)
        assert not updater.optimizer.state
        assert all(parameter.grad is None for parameter in updater.loss.parameters())
        state = TrainingState()
        for update in updates:
            updater.run(update, state)
            state.update += 1
        assert updater.average is not None
        weights.append([*updater.loss.state_dict().values(), *updater.average.values])
    for ours, theirs in zip(*weights, strict=True):
        assert torch.equal(ours, theirs)
