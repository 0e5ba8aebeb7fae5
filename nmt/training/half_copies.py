"""Copies of a model's matrices in half precision, with which training multiplies.

The weights themselves stay in float32: Adam, the average of the weights, gradients, clipping,
checkpoints and other processes know nothing of the copies.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.ops.half_linear import HalfPrecisionLayer, JointCopies


class HalfCopies:
    """A context in which a model computes its products in half precision.

    Entering it copies the weights as they are then, all in one operation. They must not change
    before the last backward pass.
    """

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        self.model = model
        self.layers = [
            module for module in model.modules() if isinstance(module, HalfPrecisionLayer)
        ]
        self.sources: list[Tensor] = [model.output_weight.detach()]
        for layer in self.layers:
            self.sources += [layer.weight.detach(), layer.bias.detach()]
        self.copies = [torch.empty_like(source, dtype=dtype) for source in self.sources]
        self.memory_copies = self.join(model.memory_layers())

    def join(self, layers: Sequence[HalfPrecisionLayer]) -> JointCopies:
        """Let the copies of some layers lie one after the other, so that one product has them."""
        places = [2 * self.layers.index(layer) + 1 for layer in layers]
        weights, biases = (
            torch.cat([self.copies[place + offset] for place in places]) for offset in (0, 1)
        )
        widths = [layer.out_features for layer in layers]
        for offset, joint in enumerate((weights, biases)):
            for place, part in zip(places, joint.split_with_sizes(widths), strict=True):
                self.copies[place + offset] = part
        return JointCopies(weights, biases)

    def __enter__(self) -> Self:
        torch._foreach_copy_(self.copies, self.sources)
        self.attach(self.copies)
        self.model.half_memory_layers = self.memory_copies
        return self

    def __exit__(self, *_exception: object) -> None:
        self.attach([None] * len(self.copies))
        self.model.half_memory_layers = None

    def attach(self, copies: "list[Tensor] | list[None]") -> None:
        """Give the model and its layers copies, or none."""
        self.model.half_output_weight = copies[0]
        for number, layer in enumerate(self.layers):
            layer.half_weight, layer.half_bias = copies[2 * number + 1 : 2 * number + 3]
