"""The kernels in Triton as implementations of operations on CUDA devices.

Triton is imported by the first call that needs it: on a CPU it is never needed. Shapes: B batch, H
heads, Q queries, K keys, N rows, D width, V vocabulary. Attention is in cuda_attention.py.
"""

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

from nmt.ops.backend import Costly
from nmt.ops.native.interface import RowMap
from nmt.ops.seeds import draw_seed
from nmt.ops.shared_vectors import shared

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_ROW = 1 << 14  # numbers of a row that one program holds
TRITON_FROM = (7, 0)  # the compute capability of Volta; Triton compiles for no older card


HAS_TRITON = importlib.util.find_spec("triton") is not None
MISSING_TRITON = Costly(
    "Triton is not installed: sparse attention writes its scores to memory, which takes up to 1.5 "
    "times as long in training and memory quadratic in length; install the triton that belongs to "
    "this torch"
)


@cache
def old_card(index: int | None) -> Costly | None:
    """Why Triton cannot compile for a card, or None."""
    capability = torch.cuda.get_device_capability(index)
    if capability >= TRITON_FROM:
        return None
    return Costly(
        f"{torch.cuda.get_device_name(index)} is too old for Triton, which needs compute "
        "capability 7.0: sparse attention writes its scores to memory, which takes longer"
    )


def triton_refusal(*tensors: Tensor | None) -> str | None:
    """Why the kernels in Triton cannot compute with these tensors, or None."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    compiling = torch.compiler.is_compiling()  # which needs Triton by itself
    for tensor in tensors:
        if tensor is None:
            continue
        if not tensor.is_cuda and not interpreted:
            return f"expected tensors on a CUDA device, got {tensor.device}"
        if tensor.dtype not in FLOATS:
            return f"expected float32, bfloat16 or float16, got {tensor.dtype}"
        if not interpreted and not compiling and (reason := old_card(tensor.device.index)):
            return reason
    return None if HAS_TRITON else MISSING_TRITON


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether a backward pass can follow; inside an autograd function nobody can tell."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def refuses_head_norm(z: Tensor, gain: Tensor | None, gate: Tensor | None, norm: str) -> str | None:
    """Why the norm of joined heads cannot be taken, or None."""
    if norm != "rms":
        return f"expected RMSNorm, got {norm}"
    if z.shape[-1] > LARGEST_ROW:
        return f"expected a width of at most {LARGEST_ROW}, got {z.shape[-1]}"
    return triton_refusal(z, gain, gate)


def head_norm(z: Tensor, gain: Tensor | None, gate: Tensor | None, _norm: str) -> Tensor:
    """sigmoid(gate z) RMSNorm(z) in one pass over z [..., D]."""
    from nmt.ops.triton import operators

    assert gain is not None
    rows = z.reshape(-1, z.shape[-1]).contiguous()
    output: Tensor = operators.gated_norm(rows, *shared(gain, gate), 1e-8)[0]
    return output.view(z.shape)


def add_norm(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    x_bias: Tensor | None = None,
    *,
    rate: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """LayerNorm(residual + dropout(x + x_bias)) in one pass over x [..., D].

    In the types of the residual and of x; where these are the same, it is one tensor.
    """
    from nmt.ops.triton import operators

    shape = x.shape
    rows = [tensor.reshape(-1, shape[-1]).contiguous() for tensor in (residual, x)]
    seed = draw_seed(rate, x.device)
    found = operators.add_norm(*rows, *shared(gain, bias, x_bias), seed, rate, epsilon)
    exact = found[0].view(shape)
    return exact, exact if x.dtype == residual.dtype else found[1].view(shape)


def relu_backward(grad: Tensor, output: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients before a ReLU with this output [N, D], and of the bias before it."""
    from nmt.ops.triton import operators

    grad_input, parts = operators.relu_backward(grad, output)
    return grad_input, operators.join_parts(parts, bias)


def refuses_entmax(scores: Tensor, *_rest: object) -> str | None:
    """Why the rows of entmax cannot be taken, or None."""
    if scores.dim() != 4:
        return f"expected scores [B, H, Q, K], got {scores.dim()} dimensions"
    if scores.shape[-1] > LARGEST_ROW:
        return f"expected at most {LARGEST_ROW} keys, got {scores.shape[-1]}"
    return triton_refusal(scores)


def entmax(scores: Tensor, visible: Tensor | None, beta: Tensor | float) -> Tensor:
    """Weights of scores [B, H, Q, K]; no host waits for the device."""
    from nmt.ops.triton import operators

    hidden = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
    mapping = RowMap.ENTMAX
    if isinstance(beta, Tensor):
        per_head = beta.flatten().float()
    else:
        mapping = {1.0: RowMap.SPARSEMAX, 0.5: RowMap.ENTMAX15}.get(beta, RowMap.ENTMAX)
        per_head = scores.new_full((scores.shape[1],), beta)
    weights: Tensor = operators.entmax_rows(hidden.contiguous(), per_head, int(mapping))
    return weights


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    smoothing: float,
    half_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The losses with one buffer of logits, which become their own gradient in place."""
    from nmt.ops.triton.loss import FusedCrossEntropy

    losses: tuple[Tensor, Tensor] = FusedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, target, smoothing, half_weight, wants_gradient(hidden, weight)
    )
    return losses
