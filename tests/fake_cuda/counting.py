"""Counts what updates and decoding steps ask of a GPU; run after `device.load`.

B sentences, T positions.
"""

import itertools
import re
from dataclasses import dataclass, replace

import numpy as np
import torch
from fake_cuda import device
from fake_cuda.recorder import FUSED_INPUTS, PRODUCTS, Recorder
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nmt.bench.kinds import all_kinds, with_attention
from nmt.bench.roofline import Pass, WorkCounts
from nmt.bench.synthetic import Shapes, synthetic_config
from nmt.config.config import Config
from nmt.config.search_options import SearchOptions
from nmt.data.batching import Batch, StreamState, Update
from nmt.data.shares import Share
from nmt.decoding.search import Symbols, search
from nmt.model.transformer import Transformer
from nmt.training.distributed import Processes
from nmt.training.loss import TranslationLoss
from nmt.training.state import TrainingState
from nmt.training.update import Updater

CUDA = torch.device("cuda:0")
FAKE = FakeTensorMode()  # one for all, because search keeps some tensors from step to step
BASE = Shapes(
    dim=512, heads=8, layers=6, feed_forward_dim=2048, vocabulary=32000, length=26, dropout=0.1
)
PRECISIONS = ("bfloat16", "float32")
LONG = (97, 257, 97 * 257)  # sentences, length and tokens of 25,000 tokens in long sentences
DECODING = (100, 27, 100)  # every sentence gains one token per step


@dataclass(frozen=True)
class Task:
    """A batch of sentences of one length, of which `tokens` target positions are no padding."""

    work: Pass
    kind: str
    precision: str
    sentences: int = 231
    length: int = 27
    tokens: int = 6106

    def counts(self, recorder: Recorder) -> WorkCounts:
        """The row of the table for what was recorded."""
        product_bytes = sum(recorder.bytes[name] for name in (*PRODUCTS, FUSED_INPUTS))
        return WorkCounts(
            self.work,
            self.kind,
            self.precision,
            self.sentences,
            self.length,
            self.tokens,
            launches=sum(recorder.launches.values()),
            synchronisations=sum(recorder.synchronisations.values()),
            product_flops=recorder.product_flops,
            product_bytes=product_bytes,
            fused_flops=recorder.fused_flops,
            cache_bytes=recorder.cache_bytes,
            attention_flops=recorder.attention_flops,
            vector_flops=recorder.vector_flops,
            other_bytes=sum(recorder.bytes.values()) - product_bytes,
            peak_bytes=recorder.peak,
            waits=", ".join(sorted(re.sub(r":\d+", "", x) for x in recorder.synchronisations)),
        )


def make_batch(task: Task) -> Batch:
    """A batch in host memory without numbers in it."""
    tokens = torch.zeros(task.sentences, task.length, dtype=torch.int64)
    visible = torch.ones(task.sentences, task.length, dtype=torch.bool)
    indices = np.arange(task.sentences)
    return Batch(tokens, visible, tokens, tokens, visible, indices, task.tokens)


def make_model(config: Config, *, vocabulary: int) -> Transformer:
    """A model on the device."""
    with CUDA:
        return Transformer(
            config.model, source_vocabulary_size=vocabulary, target_vocabulary_size=vocabulary
        )


def record_update(config: Config, task: Task, *, vocabulary: int) -> Recorder:
    """The recorder of the second update, in which the state of Adam exists."""
    config = replace(config, train=replace(config.train, compile=False))
    recorder = Recorder({"loss_inputs": task.tokens, "pack_inputs": task.tokens})
    with FAKE, recorder:
        batch = make_batch(task)
        model = make_model(config, vocabulary=vocabulary)
        loss = TranslationLoss(model, smoothing=config.train.label_smoothing)
        updater = Updater(loss, config, Processes(0, 1, CUDA, None), idle_batch=batch)
        state = TrainingState()
        update = Update(
            0, 0, [batch], [Share(0, 0, task.sentences)], task.tokens, StreamState(0, 0)
        )
        updater.run(update, state)
        updater.optimizer.zero_grad(set_to_none=True)
        recorder.clear()
        updater.run(update, state)
    return recorder


def task_config(task: Task) -> Config:
    """Transformer-base with the attention kind of a task in all sublayers."""
    config = synthetic_config(BASE, precision=task.precision)
    return replace(config, model=with_attention(config.model, task.kind))


def count_update(task: Task) -> WorkCounts:
    """The counts of an update of one forward and backward pass."""
    recorder = record_update(task_config(task), task, vocabulary=BASE.vocabulary)
    return task.counts(recorder)


class CountedStep:
    """The step function of search, which starts to count at one step and ends at the next."""

    FIRST_COUNTED = 2  # steps before it still widen the beam

    def __init__(self, model: Transformer, recorder: Recorder, task: Task, beam: int) -> None:
        self.model, self.recorder, self.task = model, recorder, task
        self.counts: WorkCounts | None = None
        self.number = 0
        source = torch.zeros(task.sentences, task.length, dtype=torch.int64, device=CUDA)
        visible = torch.ones(task.sentences, task.length, dtype=torch.bool, device=CUDA)
        memory = model.encode(source, visible)
        self.cache = model.start(memory, visible, beam=beam, max_length=task.length)

    def __call__(self, tokens: Tensor) -> Tensor:
        if self.number == self.FIRST_COUNTED:
            self.recorder.clear()
        if self.number == self.FIRST_COUNTED + 1:
            self.counts = self.task.counts(self.recorder)
        self.number += 1
        return self.model.logits(self.model.step(tokens, self.cache)).float()

    def reorder(self, parents: Tensor) -> None:
        self.cache.reorder(parents)

    def select(self, sentences: Tensor) -> None:
        self.cache.select(sentences)


def count_decoding_step(task: Task) -> WorkCounts:
    """The counts of one step of beam search in which no sentence ends."""
    recorder = Recorder()
    # Nothing is known of any hypothesis until the step is counted, and then none is left.
    steps = CountedStep.FIRST_COUNTED + 1
    known = itertools.chain([np.nan] * steps, itertools.repeat(-np.inf))
    device.answer_arrays(lambda shape: np.full(shape, next(known)))
    device.Event.is_counted = True
    with FAKE, torch.no_grad(), recorder:
        model = make_model(task_config(task), vocabulary=BASE.vocabulary).eval()
        step = CountedStep(model, recorder, task, beam=4)
        options = SearchOptions(beam=4)
        limits = [task.length] * task.sentences
        search(step, options, Symbols(start=1, end=2), max_lengths=limits, device=CUDA)
    assert step.counts is not None
    return step.counts


def all_tasks() -> list[Task]:
    """The rows of the table."""
    kinds = all_kinds()
    return [
        *(Task("update", kind, precision) for precision in PRECISIONS for kind in kinds),
        *(Task("update", kind, "bfloat16", *LONG) for kind in kinds),
        *(Task("decoding step", kind, "float32", *DECODING) for kind in kinds),
    ]


def count(task: Task) -> WorkCounts:
    """The row of a task."""
    return count_update(task) if task.work == "update" else count_decoding_step(task)
