"""The setting and the numbers of the paper's Tables 2 and 4 (Sparse Attention with Linear Units).

The paper measured on one GTX 1080 Ti: 500 updates of about 25,000 target tokens, and translation of
newstest2014 with batch size 1 and beam 4.
"""

from dataclasses import dataclass

# Transformer base; the vocabulary is that of 32,000 merges.
SHAPES = {
    "dim": 512,
    "heads": 8,
    "layers": 6,
    "feed_forward_dim": 2048,
    "vocabulary": 32000,
    "length": 27,
}
BATCH_TOKENS = 25_000
DROPOUT = 0.1


@dataclass(frozen=True)
class PaperSpeed:
    """A row of Table 2: millions of parameters, and speeds relative to softmax."""

    parameters: float
    train: float
    decode: float
    train_pytorch: float | None  # in PyTorch with the package entmax


SPEEDS = {
    "softmax": PaperSpeed(72.31, 1.00, 1.00, 1.00),
    "sparsemax": PaperSpeed(72.31, 0.26, 0.54, 0.87),
    "entmax15": PaperSpeed(72.31, 0.27, 0.49, 0.90),
    "rela-g": PaperSpeed(72.34, 0.93, 0.98, 0.95),
}


def softmax_flops(length: int, *, heads: int) -> int:
    """FLOPs of softmax attention weights for `length` queries and keys, after the scores."""
    return 3 * heads * length**2 - heads * length


def rela_flops(length: int, *, heads: int, dim: int) -> int:
    """FLOPs of ReLU and the gated RMSNorm of ReLA-g for `length` queries and keys."""
    return heads * length**2 + 10 * length * dim + length


def flops_crossover(*, heads: int, dim: int) -> float:
    """The length from which ReLA-g needs fewer FLOPs than softmax: 2 H T = 10 d + H + 1."""
    return (10 * dim + heads + 1) / (2 * heads)
