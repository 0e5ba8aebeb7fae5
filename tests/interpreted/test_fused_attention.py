"""Fused attention against its definition in float64: values, gradients, zeros, masks, dropout."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from nmt.ops.attention import attention, growing_attention, growing_attention_reference
from nmt.ops.attention_call import AttentionCall, Past
from nmt.ops.backend import force_backend
from nmt.ops.entmax import entmax
from nmt.ops.masking import InPlaceMask
from nmt.ops.score_mappings import (
    SCORE_ACTIVATIONS,
    Entmax,
    ScoreMapping,
    Softmax,
    TopK,
    masked_softmax,
)
from nmt.ops.triton.attention import FusedCall, attend, attend_backward, split
from nmt.ops.triton.products import product_norm

MAPS = [
    "softmax",
    "sparsemax",
    "entmax15",
    "entmax",
    "relu",
    "gelu",
    "leaky_relu",
    "squared_relu",
    "identity",
    "topk",
]
K = 3  # of topk
# Batch, queries, keys, heads, width of a head, mask. One tile and several, forward and backward;
# widths that are no power of two; every form of the mask; rows too long for the registers.
SHAPES = {
    "one_tile": (2, 5, 7, 2, 16, "keys"),
    "causal": (1, 33, 33, 2, 32, "causal"),
    "causal_tiles": (2, 70, 70, 1, 64, "causal"),
    "many_keys": (1, 20, 150, 2, 24, "keys"),
    "many_queries": (1, 150, 40, 1, 16, "keys"),
    "one_of_each": (1, 1, 1, 1, 16, None),
    "any_mask": (2, 5, 7, 2, 16, "any"),
    "any_mask_tiles": (1, 40, 140, 2, 16, "any"),
    "recomputed": (1, 17, 530, 1, 16, "keys"),
}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}


def make_call(name: str, shape: str, *, dropout: float = 0.0) -> tuple[FusedCall, list[Tensor]]:
    """A call, and projections in float32."""
    batch, queries, keys, heads, width, mask = SHAPES[shape]
    number = MAPS.index(name)
    fixed = {"sparsemax": 1.0, "entmax15": 0.5}
    parameters = torch.randn(heads) * 0.1
    if number <= MAPS.index("entmax"):
        parameters = torch.rand(heads) * 0.9 + 0.05
        if name in fixed:
            parameters.fill_(fixed[name])
    visible = None
    if mask in ("keys", "any"):
        rows = (1, 1) if mask == "keys" else (heads, queries)
        visible = torch.rand(batch, *rows, keys) > 0.3
        visible[1:] = False  # a sentence without a visible key
    call = FusedCall(
        heads=heads,
        map=number,
        scale=width**-0.5,
        dropout=dropout,
        learned=MAPS.index("entmax") <= number < MAPS.index("topk"),
        visible=visible,
        causal=mask == "causal",
        parameters=parameters,
        fixed=float(K),  # which other mappings do not read, as each head has its own number
        seed=torch.tensor([2026]) if dropout else None,
    )
    dim = heads * width
    if queries == keys:
        return call, [torch.randn(batch, queries, 3 * dim)]
    return call, [torch.randn(batch, queries, dim), torch.randn(batch, keys, 2 * dim)]


def output_shape(projections: list[Tensor]) -> tuple[int, int, int]:
    width = sum(projection.shape[-1] for projection in projections) // 3
    return (*projections[0].shape[:2], width)


def weights_by_definition(call: FusedCall, scores: Tensor, visible: Tensor) -> Tensor:
    name, parameters = MAPS[call.map], call.parameters[:, None, None]
    if name == "softmax":
        return masked_softmax(scores, visible)
    if name in ("sparsemax", "entmax15"):
        return entmax(scores, visible, 1.0 if name == "sparsemax" else 0.5)
    if name == "entmax":
        return entmax(scores, visible, parameters)
    if name == "topk":
        return TopK(K).weights(scores, visible)
    return SCORE_ACTIVATIONS[name]((scores - parameters).masked_fill(~visible, 0.0))


def by_definition(
    call: FusedCall, projections: list[Tensor], factors: Tensor | float = 1.0
) -> Tensor:
    """[B, Q, D] by plain operations; `factors` [B, H, Q, K] are those of dropout."""
    query, key, value = split(projections, call.heads)
    scores = query @ key.transpose(-1, -2) * call.scale
    visible = torch.ones(1, dtype=torch.bool) if call.visible is None else call.visible
    if call.causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = weights_by_definition(call, scores, visible.expand(scores.shape)) * factors
    return (weights @ value).transpose(1, 2).flatten(2)


def with_gradients(
    call: FusedCall,
    projections: list[Tensor],
    function: Callable[[FusedCall, list[Tensor]], Tensor],
    grad: Tensor,
) -> list[Tensor]:
    """Output, gradients of the projections and of the parameters, in float64."""
    inputs = [part.double().requires_grad_() for part in projections]
    parameters = call.parameters.double().requires_grad_()
    output = function(replace(call, parameters=parameters), inputs)
    output.backward(grad.double())
    grads = [part.grad for part in inputs]
    if call.learned:
        grads.append(parameters.grad)
    return [output.detach(), *[grad for grad in grads if grad is not None]]


def fused(call: FusedCall, projections: list[Tensor], grad: Tensor) -> list[Tensor]:
    output, state = attend(call, *split(projections, call.heads))
    grads, grad_parameters = attend_backward(call, projections, state, grad)
    return [output, *grads, *([] if grad_parameters is None else [grad_parameters])]


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        largest = float(other.abs().max())
        assert float((one.double() - other).abs().max()) <= tolerance * max(largest, 1e-3)


# Every mapping and every shape in the ordinary suite; all pairs of them in the slow one.
QUICK = {("softmax", "one_tile"), ("sparsemax", "many_keys"), ("entmax15", "causal_tiles")}
QUICK |= {("entmax", "many_queries"), ("relu", "causal"), ("gelu", "one_tile")}
QUICK |= {("leaky_relu", "one_of_each"), ("squared_relu", "one_tile"), ("identity", "causal")}
QUICK |= {("entmax", "causal"), ("relu", "many_keys"), ("relu", "any_mask")}
QUICK |= {("softmax", "any_mask_tiles"), ("topk", "one_tile"), ("topk", "many_keys")}
QUICK |= {("topk", "recomputed"), ("entmax", "recomputed")}
PAIRS = [
    pytest.param(name, shape, marks=[] if (name, shape) in QUICK else pytest.mark.slow)
    for name in MAPS
    for shape in SHAPES
]


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_values_and_gradients(name: str, shape: str) -> None:
    call, projections = make_call(name, shape)
    grad = torch.randn(output_shape(projections))
    expected = with_gradients(call, projections, by_definition, grad)
    assert_close(fused(call, projections, grad), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", ["entmax", "relu"])
def test_one_number_for_all_heads(name: str) -> None:
    call, projections = make_call(name, "one_tile")
    same = replace(call, parameters=torch.full((2,), 0.3))
    fixed = replace(call, parameters=None, fixed=0.3)
    heads = split(projections, call.heads)
    assert torch.equal(attend(same, *heads)[0], attend(fixed, *heads)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", ["one_tile", *(pytest.param(x, marks=pytest.mark.slow) for x in SHAPES if "_k" in x)]
)
@pytest.mark.parametrize("name", ["softmax", "entmax", "relu"])
def test_half_precision(name: str, shape: str, dtype: torch.dtype) -> None:
    call, projections = make_call(name, shape)
    halves = [part.to(dtype) for part in projections]
    grad = torch.randn(output_shape(projections)).to(dtype)
    expected = with_gradients(call, [part.float() for part in halves], by_definition, grad)
    assert_close(fused(call, halves, grad), expected, TOLERANCE[dtype])


def show_weights(call: FusedCall, projections: list[Tensor]) -> Tensor:
    """The weights [B, H, Q, K] that the kernel used, seen through one-hot values."""
    query, key, value = split(projections, call.heads)
    assert key.shape[2] <= value.shape[3]
    value.copy_(torch.eye(*value.shape[2:]))
    output, _ = attend(call, query, key, value)
    return output.unflatten(-1, (call.heads, -1)).transpose(1, 2)[..., : key.shape[2]]


@pytest.mark.parametrize("name", MAPS)
def test_zeros_are_exact_and_where_the_definition_has_them(name: str) -> None:
    call, projections = make_call(name, "one_tile")
    weights = show_weights(call, projections)
    expected, _ = with_gradients(call, projections, by_definition, torch.zeros(2, 5, 32))[:2]
    expected = expected.unflatten(-1, (call.heads, -1)).transpose(1, 2)[..., :7]
    assert torch.equal(weights == 0.0, expected == 0.0)
    assert (weights[1] == 0.0).all()
    if name in ("sparsemax", "relu", "squared_relu", "entmax15", "entmax", "topk"):
        assert (weights[0] == 0.0).float().mean() > 0.3


@pytest.mark.parametrize("shape", ["causal", "causal_tiles"])
@pytest.mark.parametrize("name", ["softmax", "entmax15", "entmax", "relu"])
def test_dropout_is_the_same_forward_and_backward(name: str, shape: str) -> None:
    call, projections = make_call(name, shape, dropout=0.3)
    batch, queries, keys, heads = *SHAPES[shape][:3], SHAPES[shape][3]
    wide = replace(call, map=MAPS.index("identity"), parameters=torch.full((heads,), -1.0))
    ones = [torch.zeros(batch, queries, 3 * heads * 128)]  # all scores are 0, all weights 1
    factors = show_weights(replace(wide, visible=None, causal=False), ones)
    assert set(factors.unique().tolist()) == {0.0, factors.max().item()}
    assert factors.max().item() == pytest.approx(1 / 0.7)
    assert factors.shape == (batch, heads, queries, keys)
    grad = torch.randn(output_shape(projections))
    expected = with_gradients(
        call, projections, lambda c, p: by_definition(c, p, factors.double()), grad
    )
    assert_close(fused(call, projections, grad), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", MAPS)
def test_nan_is_not_lost(name: str) -> None:
    call, projections = make_call(name, "causal")
    projections[0][0, 3, 0] = torch.nan  # a query of the first head
    output, _ = attend(call, *split(projections, call.heads))
    assert output[0, 3].isnan().any()
    assert output[0, :3].isfinite().all()


@pytest.mark.parametrize("name", MAPS)
def test_a_hidden_key_counts_for_nothing_whatever_its_score(name: str) -> None:
    call, projections = make_call(name, "one_tile")
    assert call.visible is not None
    before, _ = attend(call, *split(projections, call.heads))
    hidden = (~call.visible[0, 0, 0]).nonzero()[:, 0]
    key = split(projections, call.heads)[1]
    for bad in (torch.nan, torch.inf, 1e30):
        key[0, :, hidden] = bad
        after, _ = attend(call, *split(projections, call.heads))
        assert torch.equal(after, before)


def test_large_scores_stay_finite() -> None:
    for name in MAPS:
        call, projections = make_call(name, "causal")
        output, state = attend(call, *split([part * 1e4 for part in projections], call.heads))
        grads, _ = attend_backward(call, [part * 1e4 for part in projections], state, output)
        assert output.isfinite().all(), name
        assert all(grad.isfinite().all() for grad in grads), name


def test_ties_with_the_kth_score_stay_in() -> None:
    call, projections = make_call("topk", "one_tile")
    call = replace(call, visible=None, scale=1.0)
    query, key, _ = split(projections, call.heads)
    query.zero_()
    query[..., 0] = 1.0
    key[..., 0] = torch.tensor([5.0, 4.0, 2.0, 2.0, 2.0, 1.0, -3.0])  # the scores of every query
    weights = show_weights(call, projections)
    expected = torch.tensor([5.0, 4.0, 2.0, 2.0, 2.0]).softmax(0)
    assert (weights[..., 5:] == 0.0).all()
    torch.testing.assert_close(weights[..., :5], expected.expand(*weights.shape[:3], 5))


@pytest.mark.parametrize("shape", ["one_tile", "many_keys"])
def test_keys_and_values_may_be_a_part_of_a_wider_matrix(shape: str) -> None:
    call, projections = make_call("entmax15", shape)
    wide = torch.randn(*projections[1].shape[:2], 3 * projections[1].shape[2])
    part = wide[..., projections[1].shape[2] : 2 * projections[1].shape[2]].copy_(projections[1])
    found = []
    for key_value in (projections[1], part):
        query_key_value = (projections[0], key_value)
        output, state = attend(call, *split(query_key_value, call.heads))
        grads, _ = attend_backward(call, query_key_value, state, output)
        found.append([output, *grads])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("keys", [5, 40])
def test_a_query_may_be_a_part_of_a_wider_matrix(keys: int) -> None:
    call = AttentionCall(Softmax(), heads=2, scale=0.25, dropout=0.0, training=True)
    query, key_value = torch.randn(2, 8, 64)[..., :32], torch.randn(2, keys, 64)
    found = []
    for backend in ("triton", "reference"):
        inputs = [query.detach().requires_grad_(), key_value.clone().requires_grad_()]
        assert not inputs[0].is_contiguous()
        with force_backend(backend):
            output = attention(call, tuple(inputs), None, ())
        found.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments by name, `grid` among them, of all launches; no kernel runs."""
    found: list[dict[str, Any]] = []

    def run(_kernel: object, *_arguments: object, **named: Any) -> None:
        found.append(named)

    monkeypatch.setattr(InterpretedFunction, "run", run)
    return found


@pytest.mark.parametrize("length", [8, 40])
def test_more_heads_of_sentences_than_cuda_has_places_on_the_second_axis(
    length: int, launches: list[dict[str, Any]]
) -> None:
    call = replace(make_call("entmax15", "one_tile")[0], heads=8, visible=None, parameters=None)
    projections = [torch.empty(8192, length, 3 * 8)]
    output, state = attend(call, *split(projections, call.heads))
    attend_backward(call, projections, state, output)
    assert len(launches) == (2 if length == 8 else 3)
    for launch in launches:
        assert launch["grid"][0] >= 8 * 8192
        assert all(size <= 65_535 for size in launch["grid"][1:])


@pytest.mark.parametrize("override", ["", "0"])
def test_the_environment_keeps_products_exact(
    override: str, launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    call, projections = make_call("softmax", "one_tile")
    attend(call, *split(projections, call.heads))
    vector, matrix = torch.empty(16), torch.empty(16, 16)
    product_norm(matrix, matrix, vector, matrix, vector, vector, None, None, 1e-5)
    assert [launch["IEEE"] for launch in launches] == [override == "0"] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("beta", [2e-7, 1e-5])
@pytest.mark.parametrize("keys", [40, 530])
def test_rows_sum_to_1_near_alpha_1_in_half_precision(
    keys: int, beta: float, dtype: torch.dtype
) -> None:
    call = replace(make_call("entmax", "one_tile")[0], visible=None, parameters=None, fixed=beta)
    query, key = torch.randn(1, 2, 16, 16).to(dtype), torch.randn(1, 2, keys, 16).to(dtype)
    output, _ = attend(call, 3.0 * query, key, torch.ones_like(key))
    torch.testing.assert_close(output, torch.ones_like(output), atol=TOLERANCE[dtype], rtol=0.0)


@pytest.mark.parametrize("kind", [Softmax(), Entmax(1.5), TopK(2)])
def test_a_new_position_joins_the_past(kind: ScoreMapping) -> None:
    batch, heads, width, keys, head_dim, first = 2, 2, 3, 16, 8, 5
    visible = torch.rand(batch, 1, width, keys) > 0.5
    visible[..., first + width :] = False
    visible[:, :, range(width), range(first, first + width)] = True
    mask = InPlaceMask(visible, torch.float32, has_empty_rows=False)
    call = AttentionCall(kind, heads=heads, scale=0.3, dropout=0.0, training=False)
    projections = torch.randn(batch, width, 3 * heads * head_dim)
    projections[0, 0, heads * head_dim] = torch.nan  # a key, which is hidden from the others
    projections[0, 0, -1] = torch.inf
    visible[0, 0, 1:, first] = False
    before = torch.randn(2, batch, heads, keys, head_dim)
    results = []
    for function in (growing_attention, growing_attention_reference):
        past = Past(before.clone(), first, mask)
        with torch.no_grad(), force_backend("triton" if not results else "reference"):
            results.append((function(call, projections, past, ()), past.key_value))
    assert torch.equal(results[0][1], results[1][1])
    torch.testing.assert_close(results[0][0][0, 1:], results[1][0][0, 1:])
    torch.testing.assert_close(results[0][0][1], results[1][0][1])
