"""Fast linear layers for CPU decoding, with weights packed once, in float32 or in 8 bits.

Search multiplies few rows (sentences x beam) with the same matrices again and again. MKL, behind
torch's ordinary linear layer, is slow for few rows, and its results for 1 to 3 rows (up to 11 with
several threads) differ in the last bit from those of many rows. oneDNN with weights laid out once
is faster at every size. It gives a row the same bits whatever the other rows are, if there are at
least two. Products of 8-bit integers are exact and every row has its own scale, so they do not
depend on the batch either.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmt.decoding.packed_model import LARGEST_INT8, SMALLEST_WEIGHT
from nmt.model.transformer import Transformer


class OneDnnLinear(nn.Module):
    """A linear layer in float32 whose weight has been laid out for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        with warnings.catch_warnings():  # of an opaque layout that is still to come
            warnings.simplefilter("ignore")
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] for x [..., in]."""
        result: Tensor
        if x.numel() == x.shape[-1]:
            result = self(x.expand(2, *x.shape))
            return result[0]
        result = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return result


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights; there is one scale per output and one per input row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        weight = weight.detach()
        largest = weight.abs().amax(dim=1).clamp(min=SMALLEST_WEIGHT)
        quantized = (weight * (LARGEST_INT8 / largest)[:, None]).round().to(torch.int8)
        self.weight = quantized.t().contiguous()  # [in, out]
        self.scales = largest / LARGEST_INT8
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] for x [..., in]."""
        rows = x.reshape(-1, x.shape[-1])
        # Few and plain operations: with few rows, starting them is what takes the time. A row of
        # zeros becomes NaN, then any 8-bit numbers, then zeros again.
        steps = rows.abs().amax(dim=1, keepdim=True).div_(LARGEST_INT8)
        quantized = torch.div(rows, steps).round_().to(torch.int8)
        products = torch._int_mm(quantized, self.weight)
        # As floating-point numbers in the same memory: new memory would take longer than the sums.
        result = products.view(torch.float32).copy_(products).mul_(self.scales)
        if self.bias is None:
            result.mul_(steps)
        else:
            torch.addcmul(self.bias, result, steps, out=result)
        return result.view(*x.shape[:-1], -1)


def can_pack() -> bool:
    """Whether this build of torch has what `OneDnnLinear` needs."""
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and torch._C._has_mkldnn


def pack(model: Transformer, *, int8: bool) -> Callable[[Tensor], Tensor]:
    """Replace the model's linear layers; returns the packed output layer, [..., D] to [..., V].

    The model is of no use for training afterwards.
    """
    if not int8 and not can_pack():
        return model.logits
    kind = Int8Linear if int8 else OneDnnLinear
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child.weight, child.bias))
    return kind(model.output_weight, model.output_bias)
