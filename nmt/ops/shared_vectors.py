"""Gradients of vectors that all rows of a batch share (gains, gates, biases), summed together.

A kernel that runs over rows leaves the gradient of such a vector in PARTS sums, and adding these up
is a launch of its own. In `vectors_of_one_pass` a kernel gets PARTS views of the vector instead,
whose gradients are the sums as they are. When all of them are there, at the end of the backward
pass, one operation adds up the parts of all vectors. D is the width of a vector.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class SharedVectors(torch.autograd.Function):
    """Views [PARTS, D] of vectors [D]."""

    @staticmethod
    def forward(ctx: Any, *vectors: Tensor) -> tuple[Tensor, ...]:
        from nmt.ops.triton.rows import PARTS

        ctx.set_materialize_grads(False)
        return tuple(vector.expand(PARTS, *vector.shape) for vector in vectors)

    @staticmethod
    def backward(_ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        from nmt.ops.triton import operators

        grads = {place: grad for place, grad in enumerate(grad_outputs) if grad is not None}
        sums: list[Tensor | None] = [None] * len(grad_outputs)
        for width in sorted({grad.shape[1] for grad in grads.values()}):
            places = [place for place, grad in grads.items() if grad.shape[1] == width]
            found = operators.sum_parts([grads[place] for place in places])
            for place, total in zip(places, found.unbind(0), strict=True):
                sums[place] = total
        return tuple(sums)


_views: dict[int, Tensor] = {}  # of the vectors of the current pass, by their identity


@contextmanager
def vectors_of_one_pass(vectors: Sequence[Tensor]) -> Iterator[None]:
    """A context in which `shared` has views of vectors whose gradients are summed together."""
    global _views
    trained = [vector for vector in vectors if vector.requires_grad]
    before = _views
    if trained:
        views = SharedVectors.apply(*trained)  # type: ignore[no-untyped-call]
        _views = {id(vector): view for vector, view in zip(trained, views, strict=True)}
    try:
        yield
    finally:
        _views = before


def shared(*vectors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Views [PARTS, D] of vectors [D] if the current pass has them all, else the vectors."""
    if torch.compiler.is_compiling() or not _views:
        return vectors
    views = tuple(None if vector is None else _views.get(id(vector)) for vector in vectors)
    found = all((one is None) == (other is None) for one, other in zip(vectors, views, strict=True))
    return views if found else vectors
