"""The number of operations in the matrix products of a model.

A multiplication and an addition are two operations. Padding does not count, so a program that pads
reaches a smaller share of the machine's rate.
"""

from collections.abc import Sequence

from nmt.config.config import ModelConfig
from nmt.data.batching import Batch


def encoder_operations(model: ModelConfig, source: int) -> int:
    """Operations of the encoder and of the keys and values of cross-attention."""
    linear = source * (4 * model.dim**2 + 2 * model.dim * model.feed_forward_dim)
    attention = 2 * source**2 * model.dim
    cross = source * 2 * model.dim**2 * model.decoder_layers
    return 2 * (model.encoder_layers * (linear + attention) + cross)


def decoder_operations(
    model: ModelConfig, source: int, target: int, *, seen: int, vocabulary: int
) -> int:
    """Operations of decoder and output layer; all `target` tokens together see `seen` tokens."""
    linear = target * (6 * model.dim**2 + 2 * model.dim * model.feed_forward_dim)
    attention = 2 * (seen + target * source) * model.dim
    output = target * model.dim * vocabulary
    return 2 * (model.decoder_layers * (linear + attention) + output)


def training_operations(model: ModelConfig, batches: Sequence[Batch], *, vocabulary: int) -> int:
    """Operations of the forward pass and of the backward pass, which takes twice as many.

    Masked scores count, because products of whole matrices are the fastest way to compute the rest.
    """
    total = 0
    for batch in batches:
        lengths = zip(
            batch.source_visible.sum(dim=1).tolist(),
            batch.target_visible.sum(dim=1).tolist(),
            strict=True,
        )
        for source, target in lengths:
            total += encoder_operations(model, source)
            total += decoder_operations(
                model, source, target, seen=target**2, vocabulary=vocabulary
            )
    return 3 * total


def translation_operations(
    model: ModelConfig, *, source: int, target: int, beam: int, vocabulary: int
) -> int:
    """Operations of encoding a sentence and decoding `beam` hypotheses; lengths include EOS."""
    one = decoder_operations(
        model, source, target, seen=target * (target + 1) // 2, vocabulary=vocabulary
    )
    return encoder_operations(model, source) + beam * one
