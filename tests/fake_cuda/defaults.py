"""Facts about training on a CUDA device, found with fake tensors; prints them as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

DIRECTORY = Path(sys.argv[1])
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import device  # noqa: E402

device.load(DIRECTORY)

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from nmt.bench.synthetic import Shapes, synthetic_config  # noqa: E402
from nmt.ops.attention import attention  # noqa: E402
from nmt.ops.attention_call import AttentionCall  # noqa: E402
from nmt.ops.backend import force_backend  # noqa: E402
from nmt.ops.score_mappings import Softmax  # noqa: E402
from nmt.training.precision import with_precision  # noqa: E402

GPU = torch.device("cuda", 0)


class Products(TorchDispatchMode):
    """Collects the types of the results of batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[str] = []

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bmm.default:
            self.types.append(str(result.dtype).removeprefix("torch."))
        return result


def product_types() -> list[str]:
    """The types of scores and of output of plain attention under autocast."""
    call = AttentionCall(Softmax(), heads=2, scale=0.5, dropout=0.0, training=True)
    with FakeTensorMode(), force_backend("reference"), torch.autocast("cuda", torch.bfloat16):
        projections = (torch.empty(3, 5, 48, device=GPU, dtype=torch.bfloat16),)
        with Products() as products:
            attention(call, projections, None, ())
    return products.types


def main() -> None:
    config = synthetic_config(Shapes(), precision="auto")
    facts = {
        "precision": with_precision(config, GPU).train.precision,
        "products": product_types(),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
