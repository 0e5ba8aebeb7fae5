"""The C interface of the kernels: structures, signatures and sizes, declared once. Needs no torch.

`declare` gives the functions of a build their types, and refuses a build whose structures have
other sizes. The fields are those of the structures in the C files, in the same order. A function
of kind `checked` returns 0 or the line of a requirement that its arguments do not meet (border.h).
"""

import ctypes
import enum
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_double, c_float, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 5  # INTERFACE_VERSION of border.h


class RowMap(enum.IntEnum):
    """How a row of scores becomes weights, as score_maps.h numbers it."""

    SOFTMAX = 0
    SPARSEMAX = 1
    ENTMAX15 = 2
    ENTMAX = 3
    RELU = 4
    GELU = 5
    LEAKY_RELU = 6
    SQUARED_RELU = 7
    IDENTITY = 8
    TOP_K = 9


MOST_K = 1 << 24  # the largest k of TOP_K; no row has as many keys


# ------------------------------------------------------------------------------------- engine


class PackedLinear(Structure):
    """A packed linear layer, linear.h."""

    _fields_ = (
        *((name, c_int64) for name in ("inputs", "outputs")),
        *((name, c_void_p) for name in ("weight", "weight8", "scales", "offsets", "bias")),
    )


class LayerNorm(Structure):
    """The parameters of a LayerNorm, engine.c."""

    _fields_ = (("gain", c_void_p), ("bias", c_void_p))


class Kind(Structure):
    """The score mapping and head norm of an attention kind, engine.c."""

    _fields_ = (
        ("map", c_int64),
        ("parameters", c_void_p),
        ("norm", c_int64),
        ("gain", c_void_p),
        ("gate", c_void_p),
    )


class AttentionLayer(Structure):
    """An attention sublayer, engine.c."""

    _fields_ = (
        ("input", PackedLinear),
        ("key_value", PackedLinear),
        ("output", PackedLinear),
        ("kind", Kind),
        ("norm", LayerNorm),
    )


class FeedForwardLayer(Structure):
    """A feed-forward sublayer, engine.c."""

    _fields_ = (("input", PackedLinear), ("output", PackedLinear), ("norm", LayerNorm))


class StackLayer(Structure):
    """A layer of the encoder or the decoder, engine.c."""

    _fields_ = (
        ("self", AttentionLayer),
        ("cross", AttentionLayer),
        ("feed_forward", FeedForwardLayer),
    )


class Stack(Structure):
    """The encoder or the decoder, engine.c."""

    _fields_ = (
        *((name, c_int64) for name in ("dim", "heads", "hidden_dim", "num_layers", "pre_norm")),
        ("activation", c_int64),
        ("epsilon", c_float),
        ("layers", POINTER(StackLayer)),
        ("final", LayerNorm),
    )


class TokenInput(Structure):
    """The embeddings and positions of one side, engine.c."""

    _fields_ = (
        *((name, c_int64) for name in ("vocabulary", "num_positions")),
        ("scale", c_float),
        *((name, c_void_p) for name in ("embedding", "positions")),
    )


class Memory(Structure):
    """The keys and values that cross-attention of a layer reads, engine.c."""

    _fields_ = (("keys", c_void_p), ("key_values", c_void_p))


class DecodingBatch(Structure):
    """The sentences that are decoded together, engine.c."""

    _fields_ = (
        *((name, c_int64) for name in ("sentences", "batch", "width", "position")),
        *((name, c_int64) for name in ("most_width", "most_positions")),
        *((name, c_void_p) for name in ("rows", "starts", "memories", "pasts", "descent")),
    )


class WorkingMemory(Structure):
    """Memory for the engine to work in, engine.c."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "threads", "attention_size")),
        ("attention", c_void_p),
        *((name, c_void_p) for name in ("projected", "attended", "buffer", "hidden")),
        *((name, c_void_p) for name in ("packed", "scratch")),
    )


class SearchRules(Structure):
    """The rules of a search, beam_search.c."""

    _fields_ = (
        *((name, c_int64) for name in ("beam", "kept", "min_length", "early_stop")),
        *((name, c_int64) for name in ("negative_penalty", "end", "num_never", "num_divisors")),
        *((name, c_void_p) for name in ("never", "divisors", "limits")),
        *((name, c_void_p) for name in ("prefix_starts", "prefixes")),
    )


class Ending(Structure):
    """A finished hypothesis, beam_search.c."""

    _fields_ = (
        *((name, c_double) for name in ("score", "log_probability")),
        *((name, c_int64) for name in ("length", "parent")),
    )


class Link(Structure):
    """The parent of a hypothesis and the token that was added, beam_search.c."""

    _fields_ = (("parent", c_int32), ("token", c_int32))


class Logit(Structure):
    """A continuation of a hypothesis, search.h."""

    _fields_ = (("value", c_float), ("token", c_int64))


class SearchState(Structure):
    """The hypotheses of a search, and memory for a step, beam_search.c."""

    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            *("tokens", "scores", "live_scores", "over", "places", "num_finished", "endings"),
            *("links", "hidden", "logits", "normalizer", "found", "descent"),
        )
    )


# ------------------------------------------------------------------------ training and search


class DropoutRule(Structure):
    """How random bits become factors, products.h."""

    _fields_ = (("least_kept", c_int64), ("keep_scale", c_float))


class AttentionArguments(Structure):
    """The arguments of attention over whole batches, attention.c."""

    _fields_ = (
        *((name, c_int64) for name in ("sentences", "heads", "queries", "keys", "width")),
        *((name, c_int64) for name in ("query_step", "key_step")),
        *((name, c_void_p) for name in ("query", "key", "value", "visible")),
        *((f"visible_{name}_step", c_int64) for name in ("sentence", "head", "query")),
        ("map", c_int64),
        ("parameters", c_void_p),
        ("scale", c_float),
        ("dropout", DropoutRule),
        ("states", c_void_p),
    )


class Gradients(Structure):
    """The gradients that the backward pass of attention reads and writes, attention.c."""

    _fields_ = tuple(
        (name, c_void_p) for name in ("grad_output", "query", "key", "value", "parameters")
    )


class RmsBackward(Structure):
    """The arguments of the backward pass of the gated RMSNorm, norms.c."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in ("x", "gain", "gate", "scales", "grad_output", "grad_input")
        ),
        ("width", c_int64),
    )


class AddNorm(Structure):
    """The arguments of LayerNorm(residual + dropout(x)), norms.c."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "width")),
        ("bits", c_void_p),
        ("dropout", DropoutRule),
        *((name, c_void_p) for name in ("gain", "sums", "means", "scales")),
    )


class ProductResult(Structure):
    """The destination of a product, products.h."""

    _fields_ = (
        ("numbers", c_void_p),
        *((name, c_int64) for name in ("step", "columns")),
        ("scale", c_float),
        *((name, c_bool) for name in ("more", "relu")),
        *((name, c_void_p) for name in ("bias", "where", "bits")),
        ("dropout", DropoutRule),
    )


class RoundedResult(Structure):
    """The destination of a product of matrices in bfloat16, bfloat16.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("numbers", "rounded")),
        ("columns", c_int64),
        ("scale", c_float),
        *((name, c_bool) for name in ("more", "relu")),
        *((name, c_void_p) for name in ("bias", "where", "bits")),
        ("dropout", DropoutRule),
    )


class CandidateArrays(Structure):
    """The candidates of a search, search.c."""

    _fields_ = (("parents", c_void_p), ("tokens", c_void_p), ("scores", c_void_p))


# ----------------------------------------------------------------------------------- functions

# All structures above, in their order.
STRUCTURES = [kind for kind in Structure.__subclasses__() if kind.__module__ == __name__]

# Functions that return a number: sizes of memory (-1: too large for any), and constants.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "interface_version": (),
    **{f"size_of_{structure.__name__}": () for structure in STRUCTURES},
    "panel_size": (),
    "group_size": (),
    "input_zero": (),
    "chunk_size": (),
    "most_beam": (),
    "search_rows": (c_int64, c_int64),
    "scores_scratch": (c_int64,),
    "attention_scratch": (c_int64,),
    "attention_space": (POINTER(AttentionArguments),),
    "packed_size": (c_int64, c_int64),
    "norm_sums": (c_int64,),
    "has_bfloat16_products": (),
    "pairs_size": (c_int64, c_int64, c_int64),
}

# Functions that return 0, or the line of the requirement that was not met.
CHECKED: dict[str, tuple[Any, ...]] = {
    "weigh_scores": (c_int64, c_float, c_void_p, c_int64, c_void_p),
    "apply_linear": (
        *(POINTER(PackedLinear), c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64),
    ),
    "check_stack": (POINTER(Stack), c_int64),
    "encode": (
        *(POINTER(Stack), POINTER(TokenInput), c_void_p, c_int64, c_void_p, c_void_p),
        POINTER(WorkingMemory),
    ),
    "remember": (
        *(POINTER(Stack), c_void_p, c_int64, c_void_p, POINTER(Memory), POINTER(WorkingMemory)),
    ),
    "decode": (
        *(POINTER(Stack), POINTER(TokenInput), POINTER(DecodingBatch), c_void_p, c_void_p),
        POINTER(WorkingMemory),
    ),
    "search_steps": (
        *(POINTER(Stack), POINTER(TokenInput), POINTER(PackedLinear), POINTER(DecodingBatch)),
        *(POINTER(SearchRules), POINTER(SearchState), POINTER(WorkingMemory), c_int64),
    ),
    "read_hypotheses": (
        *(POINTER(DecodingBatch), POINTER(SearchRules), POINTER(SearchState), c_int64, c_void_p),
    ),
    "normalize": (c_void_p, c_int64, c_int64, c_void_p, c_int64),
    "choose_beam": (
        *(c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64),
        *(POINTER(CandidateArrays), POINTER(CandidateArrays), c_int64),
    ),
    "attend": (
        *(
            POINTER(AttentionArguments),
            c_int64,
            c_int64,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_int64,
        ),
    ),
    "attend_backward": (
        *(
            POINTER(AttentionArguments),
            c_int64,
            c_int64,
            c_void_p,
            POINTER(Gradients),
            c_void_p,
            c_int64,
        ),
    ),
    "multiply_matrices": (
        *(c_void_p, c_void_p, c_int64, c_int64, c_int64, POINTER(ProductResult), c_void_p, c_int64),
    ),
    "gated_rms_norm": (
        *(c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float, c_void_p, c_void_p, c_int64),
    ),
    "gated_rms_norm_backward": (
        *(POINTER(RmsBackward), c_int64, c_void_p, c_void_p, c_void_p, c_int64),
    ),
    "add_norm": (*(POINTER(AddNorm), c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_int64),),
    "add_norm_backward": (
        *(POINTER(AddNorm), c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64),
    ),
    "multiply_bfloat16": (
        *(c_void_p, c_void_p, c_int64, c_int64, c_int64, POINTER(RoundedResult), c_void_p, c_int64),
    ),
    "multiply_transposed_bfloat16": (
        *(c_void_p, c_void_p, c_int64, c_int64, POINTER(RoundedResult)),
        *(c_void_p, c_void_p, c_int64),
    ),
    "round_to_bfloat16": (c_void_p, c_int64, c_void_p, c_int64),
    "softmax_rows": (c_void_p, c_int64, c_int64, c_void_p, c_int64),
}


def check_outcome(line: int, function: Any, _arguments: tuple[Any, ...]) -> None:
    """Raise for arguments that a kernel refused."""
    if line != 0:
        raise ValueError(f"the kernel {function.__name__} refused its arguments (line {line})")


def check_size(size: int, function: Any, _arguments: tuple[Any, ...]) -> int:
    """Raise for sizes that are beyond all memory."""
    if size < 0:
        raise MemoryError(f"{function.__name__}: the sizes are beyond all memory")
    return size


def declare(library: ctypes.CDLL) -> str | None:
    """Give all functions their types; returns why the library cannot be used, if it cannot."""
    try:
        for functions, check in ((NUMBERS, check_size), (CHECKED, check_outcome)):
            for name, arguments in functions.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, c_int64
                function.errcheck = check
    except AttributeError as error:
        return f"it lacks a function: {error}"
    found = library.interface_version()
    if found != VERSION:
        return f"expected interface version {VERSION}, got {found}"
    for structure in STRUCTURES:
        size = getattr(library, f"size_of_{structure.__name__}")()
        if size != ctypes.sizeof(structure):
            expected = ctypes.sizeof(structure)
            return f"expected {expected} bytes for {structure.__name__}, got {size}"
    return None


# -------------------------------------------------------------------------------------- arrays


def address(
    array: npt.NDArray[Any], shape: Sequence[int] | None = None, dtype: type = np.float32
) -> int:
    """The address of an array, after a check that it is what a kernel will take it for."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(
            f"expected a contiguous array of {dtype.__name__}, got one of {array.dtype} with "
            f"strides {array.strides}"
        )
    if shape is not None and array.shape != tuple(shape):
        raise ValueError(f"expected an array of shape {tuple(shape)}, got {array.shape}")
    return array.ctypes.data
