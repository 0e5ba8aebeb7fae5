"""How many graphs dynamo makes of a model on a CUDA device, for each kind named; JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import device  # noqa: E402

device.load(Path(sys.argv[1]))

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from nmt.bench.kinds import with_attention  # noqa: E402
from nmt.bench.synthetic import Shapes, synthetic_config  # noqa: E402
from nmt.model.transformer import Transformer  # noqa: E402
from nmt.training import compilation  # noqa: E402
from nmt.training.half_copies import HalfCopies  # noqa: E402

GPU = torch.device("cuda", 0)
WORDS = 50
SIZES = Shapes(dim=16, heads=2, layers=1, feed_forward_dim=32, vocabulary=WORDS)
# (sentences, source length, target length)
SHAPES = [(4, 4, 4), (1, 9, 5), (2, 2, 2), (30, 31, 29), (3, 200, 11), (32, 32, 64)]


def count_graphs(kind: str) -> dict[str, int]:
    """Graphs and graph breaks of batches of all shapes, forward and backward, in bfloat16."""
    torch._dynamo.reset()
    counters.clear()
    config = synthetic_config(SIZES)
    config = replace(config, model=with_attention(config.model, kind))
    with FakeTensorMode(allow_non_fake_inputs=True):
        with GPU:
            model = Transformer(
                config.model, source_vocabulary_size=WORDS, target_vocabulary_size=WORDS
            )
        compiled = compilation.CompiledModel(model, longest=257)
        with HalfCopies(model, torch.bfloat16):
            for sentences, source_length, target_length in SHAPES:
                source = torch.zeros(sentences, source_length, dtype=torch.int64, device=GPU)
                target = torch.zeros(sentences, target_length, dtype=torch.int64, device=GPU)
                hidden = compiled(source, torch.ones_like(source, dtype=torch.bool), target)
                torch.autograd.grad(hidden.sum(), list(model.parameters()), allow_unused=True)
    stats = counters["stats"]
    return {"graphs": stats["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


def main() -> None:
    compilation.BACKEND = "eager"
    # The stand-in that chooses a kernel would ask for the number of keys.
    torch.nn.functional.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention
    print(json.dumps({kind: count_graphs(kind) for kind in sys.argv[2:]}))


if __name__ == "__main__":
    main()
