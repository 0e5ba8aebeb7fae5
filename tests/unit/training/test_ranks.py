"""One update over several real processes: the gradients of one process, and work for everybody."""

import itertools
import json
import logging
import multiprocessing
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from encoded_corpora import write_corpus
from safetensors.torch import load_file, save_file
from support.runs import tiny_config, write_run

from nmt.checkpoint.model_directory import model_for
from nmt.config.config import Config
from nmt.config.loading import load_config
from nmt.data.batching import BatchStream
from nmt.data.corpus import EncodedCorpus
from nmt.data.prepare import Prepared, prepare
from nmt.model.transformer import Transformer
from nmt.training import validation
from nmt.training.distributed import processes
from nmt.training.loss import TranslationLoss
from nmt.training.update import Updater
from nmt.training.validation import Validator

WORDS = 12
UPDATES = 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> EncodedCorpus:
    """300 pairs of 2 to 20 tokens."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 20, size=300)
    sides = [[[*generator.integers(4, WORDS, size=n), 2] for n in lengths] for _ in "st"]
    return write_corpus(tmp_path_factory.mktemp("corpus"), *sides)


def settings(directory: Path, accumulate: int, **train: str) -> Config:
    values = tiny_config(directory, accumulate=accumulate, batch_tokens=400, **train)
    values["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
    return load_config(write_run(directory, values))


def compute(config: Config, corpus: EncodedCorpus, directory: Path) -> None:
    """The gradients of the first updates, and the tokens of this process in each."""
    torch.set_num_threads(1)
    with processes(config.train) as team:
        torch.manual_seed(1)
        model = Transformer(
            config.model, source_vocabulary_size=WORDS, target_vocabulary_size=WORDS
        )
        loss = TranslationLoss(model, smoothing=0.1)
        stream = BatchStream(
            corpus,
            batch_tokens=config.train.batch_tokens,
            seed=1,
            accumulate=config.train.accumulate,
            rank=team.rank,
            world_size=team.size,
        )
        updates = list(itertools.islice(stream.updates(), UPDATES))
        updater = Updater(loss, config, team, idle_batch=updates[0].batches[0])
        gradients, tokens = {}, []
        for number, update in enumerate(updates, start=1):
            updater.gradients(update, number)
            for name, parameter in loss.named_parameters():
                assert parameter.grad is not None
                gradients[f"{number} {name}"] = parameter.grad.clone()
            tokens.append(
                sum(int(b.source_visible.sum()) + b.num_target_tokens for b in update.batches)
            )
        team.gather(None)
    save_file(gradients, directory / f"{team.size}-{team.rank}.safetensors")
    (directory / f"{team.size}-{team.rank}.json").write_text(json.dumps(tokens))


def in_processes(size: int, body: Callable[[], None]) -> None:
    """Run `body` in this many processes, as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def child(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        body()
        os._exit(0)

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=child, args=(rank,)) for rank in range(size)]
    for process in children:
        process.start()
    for process in children:
        process.join(60)
        process.kill()
    assert [process.exitcode for process in children] == [0] * size


@pytest.mark.parametrize("accumulate", [1, 4])
def test_any_number_of_processes_computes_the_gradient_of_one(
    corpus: EncodedCorpus, tmp_path: Path, accumulate: int
) -> None:
    config = settings(tmp_path, accumulate)
    for size in (1, 2, 3, 4):
        in_processes(size, partial(compute, config, corpus, tmp_path))
    expected = load_file(tmp_path / "1-0.safetensors")
    (whole,) = read_tokens(tmp_path, 1)
    for size in (2, 3, 4):
        for rank in range(size):
            found = load_file(tmp_path / f"{size}-{rank}.safetensors")
            for name, gradient in expected.items():
                torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
        tokens = np.array(read_tokens(tmp_path, size))
        assert tokens.sum(axis=0).tolist() == whole
        mean = tokens.mean(axis=0)
        # At most two cuts that moved to the border of a batch, or half a pair at each.
        assert (np.abs(tokens - mean) <= np.maximum(mean / 8, 40)).all(), tokens


def test_gradients_in_bfloat16_are_those_of_one_process_up_to_rounding(
    corpus: EncodedCorpus, tmp_path: Path
) -> None:
    """Each process rounds once, and each sum once; all processes have the same result."""
    config = settings(tmp_path, 2, all_reduce="bfloat16")
    for size in (1, 3):
        in_processes(size, partial(compute, config, corpus, tmp_path))
    expected = load_file(tmp_path / "1-0.safetensors")
    first, *others = (load_file(tmp_path / f"3-{rank}.safetensors") for rank in range(3))
    rounded = 0
    for name, gradient in expected.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(first[name], gradient, rtol=2**-6, atol=largest * 2**-6)
        assert all(torch.equal(other[name], first[name]) for other in others)
        rounded += int(torch.equal(first[name].bfloat16().float(), first[name]))
    assert rounded == len(expected)  # they were sent in bfloat16


def read_tokens(directory: Path, size: int) -> list[list[int]]:
    return [json.loads((directory / f"{size}-{rank}.json").read_text()) for rank in range(size)]


def validate(config: Config, prepared: Prepared, directory: Path) -> None:
    """The record of a validation, and the translations, of a model with random weights."""
    torch.set_num_threads(1)
    shown: list[str] = []
    logging.getLogger("nmt.training.validation").addHandler(Lines(shown))
    with processes(config.train) as team:
        torch.manual_seed(1)
        model = model_for(config.model, prepared.codec)
        loss = TranslationLoss(model, smoothing=0.1)
        updater = Updater(loss, config, team, idle_batch=None)  # type: ignore[arg-type]
        validator = Validator(config, prepared, team, lambda *_: {})
        record = validator.run(updater)
        text = json.dumps([record, shown])
        (directory / f"{team.size}-{team.rank}.json").write_text(text)


class Lines(logging.Handler):
    """Keeps the lines of a logger."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_validation_is_the_same_to_the_bit_for_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, perplexity, BLEU and chrF of 12 sentences, all of which are compared."""
    monkeypatch.setattr(validation, "SAMPLES_SHOWN", 12)
    logging.getLogger("nmt").setLevel(logging.INFO)
    values = tiny_config(tmp_path)
    values["validate"] |= {"beam": 3, "batch_tokens": 30}
    config = load_config(write_run(tmp_path, values))
    prepared = prepare(config)
    for size in (1, 2, 3):
        in_processes(size, partial(validate, config, prepared, tmp_path))
    record, shown = json.loads((tmp_path / "1-0.json").read_text())
    assert len(shown) == 3 * 12
    for size, rank in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2)):
        assert json.loads((tmp_path / f"{size}-{rank}.json").read_text()) == [record, shown]
