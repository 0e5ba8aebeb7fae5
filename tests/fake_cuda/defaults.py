"""Facts about training on a CUDA device, found with fake tensors; prints them as JSON."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import device  # noqa: E402

device.load(Path(sys.argv[1]))

import torch  # noqa: E402
from recorder import Recorder  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from nmt.bench.synthetic import Shapes, synthetic_config, write_synthetic_corpus  # noqa: E402
from nmt.bench.training import first_updates  # noqa: E402
from nmt.config.config import Config  # noqa: E402
from nmt.data.batching import Batch, Update  # noqa: E402
from nmt.model.transformer import Transformer  # noqa: E402
from nmt.ops.attention import attention  # noqa: E402
from nmt.ops.attention_call import AttentionCall  # noqa: E402
from nmt.ops.backend import force_backend  # noqa: E402
from nmt.ops.score_mappings import Softmax  # noqa: E402
from nmt.training import divergence  # noqa: E402
from nmt.training.distributed import Processes  # noqa: E402
from nmt.training.divergence import LossBounds, Watch  # noqa: E402
from nmt.training.loss import TranslationLoss  # noqa: E402
from nmt.training.precision import with_precision  # noqa: E402
from nmt.training.state import TrainingState  # noqa: E402
from nmt.training.update import Updater, loss_inputs  # noqa: E402

GPU = torch.device("cuda", 0)
SHAPES = Shapes(dim=64, heads=4, layers=2, feed_forward_dim=128, vocabulary=500, batch_tokens=400)


class Calls(TorchDispatchMode):
    """Collects the names of operators, the types of the results of batched products, and products
    with one side as wide as the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.product_types: list[str] = []
        self.vocabulary_products = 0

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name == "_to_copy" and args[0].is_cuda != result.is_cuda:
            name = "copy to the device" if result.is_cuda else "copy to the host"
        self.names.append(name)
        if name == "bmm":
            self.product_types.append(str(result.dtype).removeprefix("torch."))
        if name in ("mm", "addmm"):
            tensors = [value for value in (*args, result) if isinstance(value, torch.Tensor)]
            self.vocabulary_products += any(SHAPES.vocabulary in one.shape for one in tensors)
        return result


class RecorderWithHost(Recorder):
    """A recorder for which numbers in host memory are 0 and cost no wait."""

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and not args[0].is_cuda:
            return 0.0
        return super().__torch_dispatch__(func, types, args, kwargs)


def product_types() -> list[str]:
    """The types of scores and of output of plain attention in half precision."""
    call = AttentionCall(Softmax(), heads=2, scale=0.5, dropout=0.0, training=True)
    with FakeTensorMode(), force_backend("reference"):
        projections = (torch.empty(3, 5, 48, device=GPU, dtype=torch.bfloat16),)
        with Calls() as calls:
            attention(call, projections, None, ())
    return calls.product_types


def fake_batch(batch: Batch, mode: FakeTensorMode) -> Batch:
    """The batch as the prefetching thread leaves it, in fake memory."""
    packed = batch.pack(pinned=False).packed
    assert packed is not None
    block = mode.from_tensor(packed.block)
    return replace(batch, packed=replace(packed, block=block))


def make_updates(config: Config, mode: FakeTensorMode) -> list[Update]:
    with tempfile.TemporaryDirectory() as directory:
        updates = first_updates(config, write_synthetic_corpus(Path(directory), SHAPES), 3)
    return [
        update._replace(batches=[fake_batch(batch, mode) for batch in update.batches])
        for update in updates
    ]


def make_updater(config: Config, idle_batch: Batch) -> Updater:
    with GPU:
        model = Transformer(
            config.model,
            source_vocabulary_size=SHAPES.vocabulary,
            target_vocabulary_size=SHAPES.vocabulary,
        )
    loss = TranslationLoss(model, smoothing=0.1)
    return Updater(loss, config, Processes(0, 1, GPU, None), idle_batch=idle_batch)


def update_facts(config: Config) -> dict[str, Any]:
    """The work of two updates of two batches each, and of a pass of validation."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    config = replace(config, train=replace(config.train, accumulate=2))
    updates = make_updates(config, mode)
    with mode:
        updater, state = make_updater(config, updates[0].batches[0]), TrainingState()
        updater.run(updates[0], state)
        with Calls() as calls, Recorder() as recorder:
            for update in updates[1:]:
                updater.run(update, state)
        watched = watch_facts(updater, updates)
        batch = updates[0].batches[0]
        with torch.inference_mode(), Calls() as validation, updater.precision():
            updater.loss(*loss_inputs(batch, GPU))
    return {
        "copies": calls.names.count("copy to the device"),
        "index_put": sum("index_put" in name for name in calls.names),
        "synchronisations": dict(recorder.synchronisations),
        "watch": watched,
        "validation_products": validation.vocabulary_products,
    }


def watch_facts(updater: Updater, updates: list[Update]) -> dict[str, Any]:
    """The waits of the watch over updates, before the last one is asked for."""
    state = TrainingState()
    watch = Watch(
        updater.loss,
        state,
        warmup=10,
        loss_bounds=lambda: LossBounds(1.0, 5.0),
    )
    device.Event.waits.clear()
    with RecorderWithHost() as recorder:
        for update in updates:
            watch.take(updater.run(update, state))
            state.update += 1
        waits = list(device.Event.waits)
        watch.flush()
    return {
        "waits": waits,
        "waits_of_flush": device.Event.waits[len(waits) :],
        "synchronisations": dict(recorder.synchronisations),
    }


def main() -> None:
    divergence.SMALLEST_LOSS_SCALE = 0.0  # the scale is read as 0
    config = with_precision(synthetic_config(SHAPES, precision="auto"), GPU)
    scaled = replace(config, train=replace(config.train, precision="float16"))
    facts = {
        "precision": config.train.precision,
        "products": product_types(),
        "update": update_facts(config),
        "float16": update_facts(scaled),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
