"""The promises of every attention kind; each test runs over the whole table of kinds."""

from collections.abc import Iterator

import pytest
import torch
from support.attention_cases import (
    CASES,
    DIM,
    HEADS,
    KINDS,
    NORMALISED,
    RECTIFIED,
    TRACEABLE,
    make_core,
    make_projections,
)
from torch import Tensor

from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore
from nmt.ops import blockwise
from nmt.ops.backend import force_backend

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One backend for all operations; blocks are small, so that there are many."""
    monkeypatch.setattr(blockwise, "BLOCK_ELEMENTS", 300)
    with force_backend(request.param):
        yield


every_backend = pytest.mark.parametrize("backend", ["auto", "torch", "reference"], indirect=True)


def padding_mask(batch: int, keys: int, *lengths: int) -> Tensor:
    """[B, 1, 1, K]; sentences of the given lengths."""
    assert len(lengths) == batch
    return (torch.arange(keys) < torch.tensor(lengths)[:, None])[:, None, None, :]


def weights_of(core: AttentionCore, projections: tuple[Tensor, ...], visible: Tensor) -> Tensor:
    """The weights [B, H, Q, K] that a core uses."""
    seen: list[Tensor] = []
    core.observer = lambda weights, _visible: seen.append(weights.clone())
    core(projections, visible)
    core.observer = None
    return seen[0]


@every_backend
@every_case
@pytest.mark.usefixtures("backend")
def test_gradients_are_right(case: AttentionConfig) -> None:
    core = make_core(case, dtype=torch.float64)
    projections = make_projections(2, 3, 5, dtype=torch.float64)
    visible = padding_mask(2, 5, 5, 3)
    inputs = (*projections, *core.parameters())
    for tensor in inputs:
        tensor.requires_grad_()

    def attend(query: Tensor, key_value: Tensor, *_parameters: Tensor) -> Tensor:
        result: Tensor = core((query, key_value), visible)
        return result

    assert torch.autograd.gradcheck(attend, inputs, atol=1e-5, fast_mode=True)


@every_case
def test_every_backend_computes_the_reference(
    case: AttentionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(case)
    query, key_value = make_projections(5, 7, 9)
    visible = padding_mask(5, 9, 9, 8, 5, 1, 9).repeat(1, HEADS, 7, 1)
    visible[2, 1, 3, 2:] = False  # masks may differ by head and query
    monkeypatch.setattr(blockwise, "BLOCK_ELEMENTS", 300)

    def run() -> list[Tensor]:
        inputs = [query.clone().requires_grad_(), key_value.clone().requires_grad_()]
        output = core(tuple(inputs), visible)
        outward = torch.linspace(-1.0, 1.0, output.numel()).view_as(output)
        found = torch.autograd.grad(output, [*inputs, *core.parameters()], outward)
        return [output, *found]

    with force_backend("reference"):
        expected = run()
    for backend in ("auto", "torch"):
        with force_backend(backend):
            found = run()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=3e-5, rtol=3e-4)


@every_backend
@every_case
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("content", [3.0, -1e30, 1e38, torch.inf, torch.nan])
def test_a_hidden_key_changes_no_bit(case: AttentionConfig, content: float) -> None:
    core = make_core(case)
    query, key_value = make_projections(3, 4, 16)
    visible = padding_mask(3, 16, 16, 7, 1)
    before = core((query, key_value), visible)
    changed = key_value.clone()
    keys = changed[..., :DIM]
    keys[~visible[:, 0, 0]] = content
    changed[..., DIM:][~visible[:, 0, 0]] = 1e6 if content == content else 0.0
    weights = weights_of(core, (query, changed), visible)
    assert torch.equal(core((query, changed), visible), before)
    assert (weights.masked_select(~visible) == 0.0).all()


@every_backend
@every_case
@pytest.mark.usefixtures("backend")
def test_rows_without_a_visible_key_give_0_and_no_gradient(case: AttentionConfig) -> None:
    core = make_core(case)
    query, key_value = (x.requires_grad_() for x in make_projections(3, 4, 5))
    visible = padding_mask(3, 5, 5, 0, 2).repeat(1, 1, 4, 1)
    visible[2, :, 1] = False
    output = core((query, key_value), visible)
    output.square().sum().backward()
    assert (output[1] == 0.0).all()
    assert (output[2, 1] == 0.0).all()
    assert (output[0] != 0.0).any()
    assert query.grad is not None
    assert key_value.grad is not None
    assert (query.grad[1] == 0.0).all()
    assert (query.grad[2, 1] == 0.0).all()
    assert (key_value.grad[1] == 0.0).all()
    gradients = [query.grad, key_value.grad, *(p.grad for p in core.parameters())]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@every_backend
@pytest.mark.parametrize("case", RECTIFIED.values(), ids=RECTIFIED)
@pytest.mark.usefixtures("backend")
def test_null_rows_give_0_and_finite_gradients(case: AttentionConfig) -> None:
    core = make_core(case)
    query, key_value = make_projections(2, 3, 4)
    query, key_value = query.abs() + 1.0, key_value.clone()
    key_value[0, :, :DIM] = -key_value[0, :, :DIM].abs() - 1.0  # every score of sentence 0 < 0
    query.requires_grad_()
    key_value.requires_grad_()
    output = core((query, key_value), None)
    output.sum().backward()
    assert (output[0] == 0.0).all()
    assert (output[1] != 0.0).any()
    assert query.grad is not None
    assert key_value.grad is not None
    assert query.grad.isfinite().all()
    assert key_value.grad.isfinite().all()


@every_backend
@every_case
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", [1e-30, 1e4, 1e15, 1e30])
def test_scores_of_any_size_make_no_nan(case: AttentionConfig, size: float) -> None:
    core = make_core(case)
    query, key_value = make_projections(2, 3, 6)
    key_value[..., :DIM] *= size
    query.requires_grad_()
    key_value.requires_grad_()
    output = core((query, key_value), padding_mask(2, 6, 6, 4))
    output.sum().backward()
    assert output.isfinite().all()
    assert key_value.grad is not None
    assert not key_value.grad.isnan().any()


@pytest.mark.parametrize("case", NORMALISED.values(), ids=NORMALISED)
def test_normalised_weights_sum_to_1(case: AttentionConfig) -> None:
    core = make_core(case)
    visible = padding_mask(3, 33, 33, 20, 1)
    weights = weights_of(core, make_projections(3, 17, 33), visible)
    assert (weights >= 0.0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, HEADS, 17), atol=5e-6, rtol=0.0)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_keeps_the_map_in_float32(case: AttentionConfig, dtype: torch.dtype) -> None:
    core = make_core(case)
    projections = make_projections(2, 4, 8)
    visible = padding_mask(2, 8, 8, 5)
    exact = weights_of(core, projections, visible)
    with torch.autocast("cpu", dtype=dtype):
        halves = tuple(x.to(dtype).requires_grad_() for x in projections)
        weights = weights_of(core, halves, visible)
        output = core(halves, visible)
    output.sum().backward()
    assert weights.dtype == torch.float32
    assert output.dtype == dtype
    tolerance = 0.02 if dtype == torch.float16 else 0.15
    torch.testing.assert_close(weights, exact, atol=tolerance, rtol=tolerance)
    if case.row.sums_to_one:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 4), atol=1e-5, rtol=0.0)
    assert all(half.grad is not None and half.grad.isfinite().all() for half in halves)


@every_case
def test_float16_scores_beyond_its_range_make_no_nan(case: AttentionConfig) -> None:
    core = make_core(case)
    query, key_value = make_projections(2, 4, 8)
    key_value[..., :DIM] *= 20000.0
    query *= 200.0
    with torch.autocast("cpu", dtype=torch.float16):
        output = core((query.half(), key_value.half()), padding_mask(2, 8, 8, 5))
    if case.given.get("norm") == "none":
        assert not output.isnan().any()
    else:
        assert output.isfinite().all()


@pytest.mark.parametrize("case", TRACEABLE.values(), ids=TRACEABLE)
def test_compile_traces_the_whole_graph(case: AttentionConfig) -> None:
    torch.compiler.reset()
    core = make_core(case)
    projections = tuple(x.requires_grad_() for x in make_projections(2, 4, 8))
    visible = padding_mask(2, 8, 8, 5)
    compiled = torch.compile(core, fullgraph=True, backend="aot_eager")
    output = compiled(projections, visible)
    expected = core(projections, visible)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
    found = torch.autograd.grad(output.sum(), projections)
    wanted = torch.autograd.grad(expected.sum(), projections)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=3e-5, rtol=1e-3)


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_dropout_acts_on_the_weights_in_training_only(case: AttentionConfig) -> None:
    core = make_core(case)
    core.norm = None
    query, key_value = make_projections(2, 6, 8)
    still = core((query, key_value), None)
    assert torch.equal(core((query, key_value), None), still)
    core.train()
    torch.manual_seed(1)
    outputs = torch.stack([core((query, key_value), None) for _ in range(1500)])
    assert not torch.equal(outputs[0], outputs[1])
    spread = outputs.std(0) / len(outputs) ** 0.5
    assert ((outputs.mean(0) - still).abs() <= 6.0 * spread + 1e-6).all()
    torch.manual_seed(1)
    assert torch.equal(core((query, key_value), None), outputs[0])


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_dropout_is_the_same_function_forward_and_backward(case: AttentionConfig) -> None:
    core = make_core(case, dtype=torch.float64).train()
    core.dropout.rate = 0.4
    inputs = [x.requires_grad_() for x in make_projections(2, 3, 5, dtype=torch.float64)]

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        torch.manual_seed(3)
        result: Tensor = core((query, key_value), None)
        return result

    assert torch.autograd.gradcheck(attend, inputs, atol=1e-5, fast_mode=True)


@every_case
def test_observing_changes_nothing(case: AttentionConfig) -> None:
    core = make_core(case)
    projections = make_projections(2, 600, 600)
    visible = padding_mask(2, 600, 600, 400)
    seen: list[Tensor] = []
    for training in (False, True):
        core.train(training)
        core.dropout.rate = 0.0
        unseen = core(projections, visible)
        core.observer = lambda weights, _visible: seen.append(weights)
        watched = core(projections, visible)
        core.observer = None
        torch.testing.assert_close(watched, unseen, atol=1e-5, rtol=1e-4)
        if not training:
            assert torch.equal(watched, unseen)
    assert [weights.shape for weights in seen] == [(2, HEADS, 600, 600)] * 2
