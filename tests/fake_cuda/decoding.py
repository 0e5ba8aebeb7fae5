"""Counts synchronisations and memory of whole searches on a fake CUDA device; prints JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

DIRECTORY = Path(sys.argv[1])
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import device  # noqa: E402

device.load(DIRECTORY)
device.Event.is_counted = True

import torch  # noqa: E402
from recorder import Recorder  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from nmt.bench.kinds import with_attention  # noqa: E402
from nmt.bench.synthetic import Shapes, synthetic_config  # noqa: E402
from nmt.config.search_options import Sampling, SearchOptions  # noqa: E402
from nmt.decoding.decoder import Decoder  # noqa: E402
from nmt.decoding.devices import cast  # noqa: E402
from nmt.decoding.ensemble import Member, TorchStep  # noqa: E402
from nmt.decoding.memory import search_need  # noqa: E402
from nmt.decoding.search import Symbols, search  # noqa: E402
from nmt.model.transformer import Transformer  # noqa: E402
from nmt.ops.backend import force_backend  # noqa: E402

CUDA = torch.device("cuda", 0)
SHAPES = Shapes(dim=64, heads=4, layers=2, feed_forward_dim=128, vocabulary=500)
SYMBOLS = Symbols(start=1, end=2, never=(0, 1, 3))
SENTENCES, LIMIT, ENDING = 8, 9, 4
SEARCHES = {
    "beam": SearchOptions(beam=4),
    "n-best": SearchOptions(beam=4, nbest=3, early_stop="exact"),
    "greedy": SearchOptions(beam=1),
    "minimum length": SearchOptions(beam=4, min_length=3),
    "samples": SearchOptions(sampling=Sampling(top_k=5), nbest=2),
}


class CountedStep:
    """The step function of a model, which notes the size of the batch at each step."""

    def __init__(self, step: TorchStep) -> None:
        self.step = step
        self.sizes: list[int] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        self.sizes.append(len(tokens))
        return self.step(tokens)

    def reorder(self, parents: Tensor) -> None:
        self.step.reorder(parents)

    def select(self, sentences: Tensor) -> None:
        self.step.select(sentences)


def run(options: SearchOptions, kind: str, dtype: torch.dtype) -> dict[str, object]:
    """One search, in which half of the sentences end at step ENDING, and later the others."""
    answers = 0

    def answer(shape: tuple[int, ...]) -> np.ndarray:
        nonlocal answers
        answers += 1
        packed = np.full(shape, np.nan)  # no hypothesis ends, and all others live on
        width = shape[1] // 5
        ending = shape[0] // 2 if answers == ENDING else 0
        packed[:ending, width : 2 * width] = -1.0  # finished scores
        packed[:ending, 4 * width :] = -np.inf  # live scores
        packed[:, [*range(width), *range(2 * width, 4 * width)]] = 0.0  # parents and tokens
        return packed

    device.answer_arrays(answer)
    with CUDA:
        config = with_attention(synthetic_config(SHAPES).model, kind)
        model = Transformer(config, source_vocabulary_size=500, target_vocabulary_size=500).eval()
    cast(model, dtype)
    member = Member(model, None, Decoder(model.logits))  # type: ignore[arg-type]
    made = {"beam": options.width, "max_length": LIMIT, "multiple": 1, "device": CUDA}
    step = CountedStep(TorchStep(member, [[5] * 7] * SENTENCES, **made))
    recorder = Recorder()
    with recorder:
        search(
            step,
            options,
            SYMBOLS,
            max_lengths=[LIMIT - row % 2 for row in range(SENTENCES)],
            prefixes=[[7, 8][: row % 3] for row in range(SENTENCES)],
            device=CUDA,
        )
    waits = {
        place: count
        for place, count in recorder.synchronisations.items()
        if "start_state" not in place and " index" not in place  # once, before the first step
    }
    return {"sizes": step.sizes, "waits": waits}


def measure(kind: str, shapes: Shapes, options: SearchOptions, length: int) -> dict[str, int]:
    """The peak of a search without an end, and what was calculated for it."""
    device.answer_arrays(lambda shape: np.full(shape, np.nan))
    size = shapes.vocabulary
    with CUDA:
        config = with_attention(synthetic_config(shapes).model, kind)
        model = Transformer(config, source_vocabulary_size=size, target_vocabulary_size=size).eval()
    cast(model, torch.bfloat16)
    member = Member(model, None, Decoder(model.logits))  # type: ignore[arg-type]
    limit = 18  # the cache has grown once
    made = {"beam": options.width, "max_length": limit, "multiple": 16, "device": CUDA}
    recorder = Recorder()
    with recorder:
        step = TorchStep(member, [[5] * length] * SENTENCES, **made)
        limits = [limit] * SENTENCES
        search(step, options, SYMBOLS, max_lengths=limits, device=CUDA)
    need = search_need([member], length, limit, beam=options.width)
    return {"peak": recorder.peak, "calculated": SENTENCES * need.bytes}


def measure_all() -> dict[str, dict[str, int]]:
    """Peaks that logits, the cache, and the attention of the encoder cause."""
    beam, greedy = SEARCHES["beam"], SEARCHES["greedy"]
    deep = Shapes(dim=64, heads=4, layers=2, feed_forward_dim=256, vocabulary=200)
    with force_backend("torch"):  # without a fused kernel
        scores = measure("topk", replace(deep, dim=16), greedy, 64)
    return {
        "logits": measure("rela-g", replace(deep, layers=1, vocabulary=20_000), beam, 16),
        "cache": measure("softmax", deep, beam, 32),
        "greedy": measure("entmax15", deep, greedy, 32),
        "scores": scores,
    }


def main() -> None:
    found = {}
    with FakeTensorMode(), torch.no_grad():
        for name, options in SEARCHES.items():
            found[name] = run(options, "softmax", torch.bfloat16)
        for kind in ("entmax15", "rela-g"):
            found[kind] = run(SEARCHES["beam"], kind, torch.float32)
        memory = measure_all()
    print(json.dumps({"searches": found, "memory": memory}))


if __name__ == "__main__":
    main()
