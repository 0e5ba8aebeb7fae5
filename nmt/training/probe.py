"""A look ahead before the first update: does everything run, and does the largest batch fit?"""

import logging

import torch

from nmt.config.config import Config
from nmt.data.batching import Batch, make_batch, plan_epoch
from nmt.data.corpus import EncodedCorpus
from nmt.errors import ConfigError
from nmt.training.loss import TranslationLoss
from nmt.training.update import Updater, is_out_of_memory, loss_inputs

logger = logging.getLogger(__name__)


def probe(
    updater: Updater, config: Config, *, train: EncodedCorpus, validation: list[Batch]
) -> None:
    """Run two validation batches and the largest training batch; leave no trace in the weights."""
    with torch.no_grad():
        for batch in validation[:2]:
            updater.loss(*loss_inputs(batch, updater.device))
    batch_tokens = config.train.batch_tokens
    if fits(updater, largest_batch(train, batch_tokens)):
        return
    while batch_tokens > 16:
        batch_tokens //= 2
        if fits(updater, largest_batch(train, batch_tokens)):
            raise ConfigError(
                f"the largest batch of train.batch_tokens={config.train.batch_tokens} does not fit "
                f"into the memory of {updater.device}; {batch_tokens} fits: set that, and raise "
                "train.accumulate by the same factor"
            )
    raise ConfigError(f"not even a batch of {batch_tokens} tokens fits into {updater.device}")


def largest_batch(corpus: EncodedCorpus, batch_tokens: int) -> Batch:
    """The batch of the first epoch with most padded positions, source and target together."""
    source, target = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(source, target, batch_tokens=batch_tokens, seed=0, epoch=0)
    largest = max(plan, key=lambda rows: len(rows) * int(source[rows].max() + target[rows].max()))
    return make_batch(corpus, largest)


def fits(updater: Updater, batch: Batch) -> bool:
    """Whether a forward and backward pass has enough memory."""
    loss: TranslationLoss = updater.loss
    try:
        with updater.autocast():
            value, _ = loss(*loss_inputs(batch, updater.device))
        torch.autograd.grad(value, [p for p in loss.parameters() if p.requires_grad])
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return False
        raise
    finally:
        if updater.device.type == "cuda":
            torch.cuda.empty_cache()
    return True
