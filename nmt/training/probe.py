"""A look ahead before the first update: does everything run, and do the largest batches fit?"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from nmt.config.config import Config
from nmt.data.batching import Batch, BatchStream, make_batch
from nmt.data.sampling import MOST_GROWTH
from nmt.errors import ConfigError
from nmt.training.loss import TranslationLoss
from nmt.training.update import Updater, is_out_of_memory, loss_inputs, trained_parameters

logger = logging.getLogger(__name__)

# Numbers per position and layer, in model widths, that a forward pass keeps for the backward pass:
# of a source position those of an encoder layer and the keys and values of cross-attention.
KEPT_PER_SOURCE_POSITION = 18
KEPT_PER_TARGET_POSITION = 23


def probe(updater: Updater, config: Config, *, train: BatchStream, validation: list[Batch]) -> None:
    """Run the first and the longest validation batch, and the largest training batches.

    Weights, optimizer and random state are left as they were.
    """
    with torch.no_grad():
        for batch in validation[:1] + validation[-1:]:
            updater.loss(*loss_inputs(batch, updater.device))
    batch_tokens = config.train.batch_tokens
    if fits(updater, train):
        return
    while batch_tokens > 16:
        batch_tokens //= 2
        if fits(updater, replace(train, batch_tokens=batch_tokens)):
            raise ConfigError(
                f"the largest batch of train.batch_tokens={config.train.batch_tokens} does not fit "
                f"into the memory of {updater.device}; {batch_tokens} fits: set that, and raise "
                "train.accumulate by the same factor"
            )
    raise ConfigError(f"not even a batch of {batch_tokens} tokens fits into {updater.device}")


def largest_batches(stream: BatchStream) -> list[Batch]:
    """The batches that need most memory, of an epoch with each set of corpora.

    Subword sampling makes batches grow up to a limit, so batches of that size are tried.

    That is the one with most activations, and the one with most scores, which some implementations
    of attention write to memory; often it is the same.
    """
    source, target = stream.corpus.source_lengths, stream.corpus.target_lengths
    if stream.sampling is not None:
        stream = replace(stream, batch_tokens=int(MOST_GROWTH * stream.batch_tokens))
    starts = [0] if stream.mixture is None else stream.mixture.starts()
    batches = [rows for done in starts for rows in stream.plan(0, done=done)]
    activations, scores = [], []
    for rows in batches:
        s, t = int(source[rows].max()), int(target[rows].max())
        kept = KEPT_PER_SOURCE_POSITION * s + KEPT_PER_TARGET_POSITION * t
        activations.append(len(rows) * kept)
        scores.append(len(rows) * (s * s + s * t + t * t))
    largest = {costs.index(max(costs)) for costs in (activations, scores)}
    return [make_batch(stream.corpus, batches[position]) for position in sorted(largest)]


def fits(updater: Updater, stream: BatchStream) -> bool:
    """Whether forward and backward passes have enough memory beside the state of the optimizer."""
    loss: TranslationLoss = updater.loss
    parameters = trained_parameters(loss)
    devices = [updater.device] if updater.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), optimizer_state(updater), updater.precision():
            for batch in largest_batches(stream):
                value, _ = loss(*loss_inputs(batch, updater.device))
                torch.autograd.grad(value, parameters)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return False
        raise
    finally:
        if updater.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


@contextmanager
def optimizer_state(updater: Updater) -> Iterator[None]:
    """A context in which the optimizer has the memory that its first step takes."""
    optimizer = updater.optimizer
    assert not optimizer.state, "the run has begun"
    try:
        for parameter in trained_parameters(updater.loss):
            parameter.grad = torch.zeros_like(parameter)
        optimizer.found_inf = torch.ones((), device=updater.device)  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.step()  # which changes nothing but to allocate its state
        optimizer.zero_grad(set_to_none=True)
        yield
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
