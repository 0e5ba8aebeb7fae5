"""The end of a sublayer without gradients: last layer, residual connection and LayerNorm.

While decoding, the products of a step are small, and every launch counts. N rows, K inputs and D
outputs of the layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.half_linear import LastLayer
from nmt.ops.head_norm import head_norm, head_norm_reference
from nmt.ops.residual import ResidualStream, add_norm, add_norm_reference

# Every 64 rows of a product read the whole matrix through the L2 cache, and every 64 columns the
# whole input: 1 / 32 number for each product of two numbers. In float32 an A100 reads 1.8 T of them
# per second (5,120 bytes per cycle), which lasts as long as its products in TF32. Larger tiles, as
# cuBLAS has them for many rows, read less. They win when there are more tiles than multiprocessors,
# so that the time of a launch that is saved is no longer the larger part.
MOST_ELEMENTS = 128 * 64 * 64  # of the output: 1,024 rows of width 512
LARGEST_WIDTH = 1024  # of rows that a program norms in its registers


def layer_norm_end_reference(
    residual: Tensor, x: Tensor, last: LastLayer, norm: nn.LayerNorm
) -> ResidualStream:
    """LayerNorm(residual + layer(head_norm(x))) for x [..., K] and residual [..., D]."""
    z = x if last.head_norm is None else head_norm_reference(x, *last.head_norm)
    output = functional.linear(z, last.layer.weight, last.layer.bias)
    return add_norm_reference(
        residual, output, norm.weight, norm.bias, rate=0.0, epsilon=norm.eps, training=False
    )


def apply_last(x: Tensor, last: LastLayer) -> Tensor:
    """The output [..., D] of the last layer of a sublayer, by an operation for each step."""
    output: Tensor = last.layer(x if last.head_norm is None else head_norm(x, *last.head_norm))
    return output


def layer_norm_end_apart(
    residual: Tensor, x: Tensor, last: LastLayer, norm: nn.LayerNorm
) -> ResidualStream:
    """The same by an operation for each step: torch's product, norms in Triton."""
    return add_norm(
        *(residual, apply_last(x, last), norm.weight, norm.bias),
        rate=0.0,
        epsilon=norm.eps,
        training=False,
    )


def layer_norm_end_triton(
    residual: Tensor, x: Tensor, last: LastLayer, norm: nn.LayerNorm
) -> ResidualStream:
    """The same in one launch."""
    from nmt.ops.triton import products

    rows = [tensor.reshape(-1, tensor.shape[-1]).contiguous() for tensor in (x, residual)]
    gain, gate = (None, None) if last.head_norm is None else last.head_norm[:2]
    layer = last.layer
    output: Tensor = products.product_norm(
        rows[0], layer.weight, layer.bias, rows[1], norm.weight, norm.bias, gain, gate, norm.eps
    )
    return ResidualStream.of(output.view(residual.shape))


def refuses_one_launch(
    residual: Tensor, x: Tensor, last: LastLayer, _norm: nn.LayerNorm
) -> str | None:
    """Why the kernel cannot compute a call, or None."""
    width, layer = residual.shape[-1], last.layer
    if width > LARGEST_WIDTH:
        return f"expected a width of at most {LARGEST_WIDTH}, got {width}"
    types = {tensor.dtype for tensor in (residual, x, layer.weight)}
    if types not in ({torch.float32}, {torch.bfloat16}):
        return f"expected float32 or bfloat16, got {', '.join(sorted(map(str, types)))}"
    if not layer.weight.is_contiguous():
        return "expected a matrix without gaps"
    if last.head_norm is not None and last.head_norm.norm != "rms":
        return f"expected RMSNorm on the heads, got {last.head_norm.norm}"
    if torch.is_grad_enabled():
        return "it has no backward pass"
    return cuda.triton_refusal(residual, x, layer.weight)


def slower_in_one_launch(
    residual: Tensor, _x: Tensor, _last: LastLayer, _norm: nn.LayerNorm
) -> str | None:
    """Why another implementation is better than the kernel, or None."""
    if residual.numel() <= MOST_ELEMENTS:
        return None
    return f"for more than {MOST_ELEMENTS} numbers, torch's products take larger tiles"


def example(device: torch.device) -> Call:
    """A row of width 16 that is decoded."""
    layer = nn.Linear(16, 16, device=device)
    row = torch.ones(1, 16, device=device)
    return (row, row, LastLayer(layer, None), nn.LayerNorm(16, device=device)), {}


layer_norm_end = Operation(
    "last layer, residual, LayerNorm while decoding",
    layer_norm_end_reference,
    [
        Implementation(
            "triton",
            "one kernel in Triton",
            layer_norm_end_triton,
            accepts=refuses_one_launch,
            prefers=slower_in_one_launch,
        ),
        Implementation(
            "triton",
            "product of torch, norms in Triton",
            layer_norm_end_apart,
            accepts=lambda residual, x, last, _norm: cuda.triton_refusal(
                residual, x, last.layer.weight
            ),
        ),
    ],
    example=example,
    gradients=False,
)
