"""Lowers compiled models by Inductor for an A100 that is not there, and prints JSON.

    python tests/fake_cuda/inductor.py DIRECTORY LAYERS KIND...

Forward and backward passes of every kind named are traced, partitioned, fused and written as
Triton and wrapper code, as on a GPU. Nothing is built or launched.
"""

import copy
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes

import device  # noqa: E402

device.load(Path(sys.argv[1]))

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import triton  # noqa: E402
from recorder import LAUNCHES  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402
from torch._inductor import compile_fx  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.fx_passes import fuse_attention, misc_patterns, pad_mm  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from nmt.bench.kinds import with_attention  # noqa: E402
from nmt.bench.synthetic import Shapes, synthetic_config  # noqa: E402
from nmt.model.transformer import Transformer  # noqa: E402
from nmt.training import compilation  # noqa: E402
from nmt.training.half_copies import HalfCopies  # noqa: E402

GPU = torch.device("cuda", 0)
VOCABULARY = 32000
SHARED_MEMORY = 166912  # bytes of an A100 that a program may have
LATER_SHAPES = [(3, 200, 11), (1, 9, 5), (32, 32, 64)]  # sentences, source and target positions
CALL = re.compile(
    r"^ +(?:\w+ = )?(?:(triton)_\w+\.run|(extern_kernels)\.\w+|torch\.ops\.(nmt|aten)\.(\w+)\.)",
    re.MULTILINE,
)


class Driver:
    """As much of Triton's driver as Inductor asks before anything is launched."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": SHARED_MEMORY})

    @staticmethod
    def get_current_target() -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    @staticmethod
    def get_current_device() -> int:
        return 0


def pretend() -> None:
    """Give Inductor the answers of an A100, and nothing that would compute on it."""
    device.PROPERTIES.__dict__.update(
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32
    )
    torch.version.cuda = "13.0"
    torch.cuda._exchange_device = lambda _index: 0
    torch.cuda._maybe_exchange_device = lambda _index: 0  # dynamo wants two functions
    triton.runtime.driver.set_active(Driver())
    # Patterns of attention and padded products, none of which is ours, are traced on real tensors;
    # so is the folding of constants.
    fuse_attention._sfdp_init = pad_mm._pad_mm_init = lambda *_: None
    misc_patterns._misc_patterns_init = lambda *_: None
    inductor_config.joint_graph_constant_folding = False
    inductor_config.fx_graph_cache = False
    torch.nn.functional.scaled_dot_product_attention = device.choose_fused_attention


def count_calls(code: str) -> Counter[str]:
    """The launches of a wrapper by the library that makes them."""
    found: Counter[str] = Counter()
    for written, product, library, operator in CALL.findall(code[code.index("def call") :]):
        name = "triton" if written else "products" if product else library
        found[name] += LAUNCHES.get(operator, 1)
    return found


class Lowering:
    """A backend of torch.compile that keeps what Inductor wrote and runs the graph itself."""

    def __init__(self) -> None:
        self.passes: list[dict[str, int]] = []  # forward and backward, of every graph

    def compile_to_module(self, graph: GraphLowering) -> Any:
        """Takes the place of the method that builds the code."""
        code = graph.codegen()[0].value
        moved, _, _ = graph.count_bytes()
        self.passes.append({**count_calls(code), "bytes": moved})
        return SimpleNamespace(call=lambda _inputs: (), __file__="")

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def lower(module: torch.fx.GraphModule, examples: list[Any], **options: Any) -> Any:
            kept = copy.deepcopy(module)
            compile_fx.compile_fx_inner(module, examples, **options)
            return make_boxed_func(kept.forward)

        return compile_fx.compile_fx(graph, inputs, inner_compile=lower)


def lower_kind(kind: str, layers: int) -> dict[str, Any]:
    """Graphs, and the launches and bytes of the passes of Transformer-base, in bfloat16."""
    torch._dynamo.reset()
    counters.clear()
    lowering = Lowering()
    GraphLowering._compile_to_module = lambda graph: lowering.compile_to_module(graph)
    compilation.BACKEND = lowering
    compilation.FIRST_SHAPE = (231, 27, 27)  # that of the table of counts
    shapes = Shapes(
        dim=512, heads=8, layers=layers, feed_forward_dim=2048, vocabulary=VOCABULARY, dropout=0.1
    )
    config = synthetic_config(shapes)
    config = replace(config, model=with_attention(config.model, kind))
    with FakeTensorMode(allow_non_fake_inputs=True):
        with GPU:
            model = Transformer(
                config.model, source_vocabulary_size=VOCABULARY, target_vocabulary_size=VOCABULARY
            )
        compiled = compilation.CompiledModel(model, longest=257)
        with HalfCopies(model, torch.bfloat16):
            for sentences, source_length, target_length in LATER_SHAPES:
                source = torch.zeros(sentences, source_length, dtype=torch.int64, device=GPU)
                target = torch.zeros(sentences, target_length, dtype=torch.int64, device=GPU)
                hidden = compiled(source, torch.ones_like(source, dtype=torch.bool), target)
                torch.autograd.grad(hidden.sum(), list(model.parameters()), allow_unused=True)
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "passes": lowering.passes,
    }


def main() -> None:
    pretend()
    layers, *kinds = sys.argv[2:]
    print(json.dumps({kind: lower_kind(kind, int(layers)) for kind in kinds}))


if __name__ == "__main__":
    main()
