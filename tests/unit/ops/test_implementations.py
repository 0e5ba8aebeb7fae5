"""Every implementation is the reference that it stands for: values, gradients, zeros, bits."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.attention_cases import CASES
from torch import Tensor, nn

from nmt.config.config import ModelConfig
from nmt.model.attention import AttentionCore
from nmt.model.layers import FeedForward, Residual
from nmt.model.linear import Linear
from nmt.ops import head_norm, native_attention
from nmt.ops.attention import Parameters, attention
from nmt.ops.attention_call import AttentionCall
from nmt.ops.backend import force_backend
from nmt.ops.dropout import DropoutMask, draw_bits
from nmt.ops.half_linear import SublayerOutput
from nmt.ops.native import library
from nmt.ops.native import training as kernels

pytestmark = pytest.mark.skipif(
    library.load() is None, reason="no kernels were built for this processor"
)

HEADS = 3
NATIVE = ("softmax", "sparsemax", "entmax15", "entmax 1.02", "entmax 1.3", "entmax learned")
RECTIFIED = ("ReLU alone", "rela-g above 0.3", "rela-g learned threshold")
every_map = pytest.mark.parametrize("kind", NATIVE + RECTIFIED)
# Queries, keys and the width of a head: fewer than a vector, a vector, and no multiples of one.
SIZES = [(1, 1, 1), (5, 3, 8), (16, 16, 16), (37, 45, 20), (130, 33, 64), (3, 200, 33)]
every_size = pytest.mark.parametrize("size", SIZES, ids=str)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_call(kind: str, width: int, dropout: float = 0.0) -> tuple[AttentionCall, Parameters]:
    torch.manual_seed(0)
    core = AttentionCore(HEADS * width, HEADS, attention=CASES[kind], dropout=dropout).train()
    learned = core.weights.values()
    values = torch.tensor([0.01, 0.4, 1.0], requires_grad=True)  # the first: by a series
    return core.call(None), (values,) if learned else ()


def make_inputs(size: tuple[int, int, int], *, batch: int = 2) -> list[Tensor]:
    queries, keys, width = size
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(batch, length, parts * HEADS * width, generator=generator).requires_grad_()
        for length, parts in ((queries, 1), (keys, 2))
    ]


def make_mask(name: str, size: tuple[int, int, int], *, batch: int = 2) -> Tensor | None:
    queries, keys, _ = size
    if name == "none":
        return None
    if name == "padding":
        return (torch.arange(keys) < torch.tensor([[keys], [keys // 2]]))[:, None, None, :]
    if name == "causal":
        return torch.ones(queries, keys, dtype=torch.bool).tril_()
    mask = torch.rand(batch, HEADS, queries, keys, generator=torch.Generator().manual_seed(2)) < 0.6
    mask[0, 1, queries // 2] = False
    mask[1, :, queries // 2 :] = False
    return mask


def run(
    name: str,
    call: AttentionCall,
    mask: Tensor | None,
    parameters: Parameters,
    inputs: list[Tensor],
) -> list[Tensor]:
    """The output of an implementation of attention, and the gradients of everything."""
    (implementation,) = (one for one in attention.implementations if one.name == name)
    arguments = (call, tuple(inputs), mask, parameters)
    assert implementation.refusal(*arguments) is None
    torch.manual_seed(3)
    output = implementation.run(*arguments)
    outward = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).view_as(output)
    return [output, *torch.autograd.grad(output, [*inputs, *parameters], outward)]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one, other, atol=3e-5 * scale, rtol=3e-4)


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@every_map
@every_size
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "any"])
@pytest.mark.parametrize("name", ["C kernels", "blockwise", "scaled_dot_product_attention"])
def test_attention_is_the_reference(
    name: str, kind: str, size: tuple[int, int, int], mask: str
) -> None:
    if name == "scaled_dot_product_attention" and kind != "softmax":
        return
    call, parameters = make_call(kind, size[2])
    inputs, visible = make_inputs(size), make_mask(mask, size)
    found = run(name, call, visible, parameters, inputs)
    assert_close(found, run("reference", call, visible, parameters, inputs))


@every_map
@pytest.mark.parametrize("name", ["C kernels", "blockwise"])
@pytest.mark.parametrize("mask", ["none", "padding", "any"])
def test_weights_have_the_exact_zeros_of_the_reference(name: str, kind: str, mask: str) -> None:
    """Except where a weight is so close to 0 that rounding decides."""
    size = (37, 45, 20)
    call, parameters = make_call(kind, size[2])
    seen: list[Tensor] = []
    call = replace(call, observer=lambda weights: seen.append(weights.clone()))
    inputs, visible = make_inputs(size), make_mask(mask, size)
    for one in (name, "reference"):
        run(one, call, visible, parameters, inputs)
    found, expected = seen
    differs = (found == 0.0) != (expected == 0.0)
    assert (expected[differs].abs() < 1e-5).all()
    assert (found[differs].abs() < 1e-5).all()
    assert differs.float().mean() < 1e-3
    if kind not in ("softmax", "entmax 1.02"):
        assert (found == 0.0).float().mean() > 0.2
    if visible is not None:
        assert (found.masked_select(~visible) == 0.0).all()


@every_map
@pytest.mark.parametrize("bits_at_once", [1 << 24, 2 * 32 * 20])
def test_every_implementation_drops_the_same_weights(
    kind: str, bits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_attention, "BITS_AT_ONCE", bits_at_once)
    size = (32, 20, 24)
    call, parameters = make_call(kind, size[2], dropout=0.3)
    inputs, visible = make_inputs(size), make_mask("padding", size)
    expected = run("reference", call, visible, parameters, inputs)
    state = torch.get_rng_state()
    for name in ("C kernels", "blockwise"):
        assert_close(run(name, call, visible, parameters, inputs), expected)
        assert torch.equal(torch.get_rng_state(), state)


@every_map
@pytest.mark.usefixtures("threads")
def test_attention_has_the_same_bits_on_any_number_of_threads(kind: str) -> None:
    size = (37, 45, 20)
    call, parameters = make_call(kind, size[2], dropout=0.3)
    inputs, visible = make_inputs(size), make_mask("any", size)
    results = []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        results.append(run("C kernels", call, visible, parameters, inputs))
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])


@every_map
@pytest.mark.parametrize("content", [7.0, torch.nan, torch.inf])
def test_hidden_keys_at_the_end_change_no_bit(kind: str, content: float) -> None:
    size = (20, 45, 16)
    call, parameters = make_call(kind, size[2])
    query, short = make_inputs(size)
    more = torch.full((2, 21, short.shape[2]), content)
    long = torch.cat([short.detach(), more], dim=1).requires_grad_()
    visible = (torch.arange(66) < 45).view(1, 1, 1, 66)
    alone = run("C kernels", call, None, parameters, [query, short])
    beside = run("C kernels", call, visible, parameters, [query, long])
    assert not beside[2][:, 45:].any()
    beside[2] = beside[2][:, :45]
    assert_equal(beside, alone)


@every_map
def test_a_sentence_does_not_depend_on_those_beside_it(kind: str) -> None:
    size = (20, 45, 16)
    call, parameters = make_call(kind, size[2])
    inputs, visible = make_inputs(size), make_mask("any", size)
    assert visible is not None
    together = run("C kernels", call, visible, parameters, inputs)
    one = [x[1:].detach().requires_grad_() for x in inputs]
    assert torch.equal(run("C kernels", call, visible[1:], parameters, one)[0], together[0][1:])


@pytest.mark.parametrize("kind", ["sparsemax", "entmax15", "entmax 1.02", "entmax learned"])
@pytest.mark.parametrize("size", [1e6, 1e8, 1e17])
def test_scores_too_large_for_differences_still_have_weights(kind: str, size: float) -> None:
    """A diverging model: every query attends to one of its keys, and to nothing less."""
    call, parameters = make_call(kind, 16)
    seen: list[Tensor] = []
    call = replace(call, observer=lambda weights: seen.append(weights.clone()))
    inputs = [(size**0.5 * one).detach().requires_grad_() for one in make_inputs((5, 9, 16))]
    run("C kernels", call, None, parameters, inputs)
    torch.testing.assert_close(seen[0].sum(dim=-1), torch.ones(2, HEADS, 5))


@pytest.mark.parametrize("name", ["C kernels", "blockwise"])
@pytest.mark.parametrize("kind", RECTIFIED)
def test_weights_that_end_at_the_largest_have_no_gradient(kind: str, name: str) -> None:
    call, parameters = make_call(kind, 16)
    query, key_value = make_inputs((5, 9, 16))
    inputs = [(1e12 * query).detach().requires_grad_(), key_value]
    found = run(name, call, None, parameters, inputs)
    expected = run("reference", call, None, parameters, inputs)
    for one, other in zip(found, expected, strict=True):
        scale = float(other.detach().abs().max())
        torch.testing.assert_close(one, other, atol=1e-5 * scale, rtol=1e-4)


@every_map
def test_not_a_number_shows(kind: str) -> None:
    size = (5, 9, 16)
    call, parameters = make_call(kind, size[2])
    query, key_value = make_inputs(size)
    with torch.no_grad():
        query[0, 3, 2] = torch.nan
    found = run("C kernels", call, None, parameters, [query, key_value])
    assert found[0][0, 3, : size[2]].isnan().all()
    expected = run("reference", call, None, parameters, [query, key_value])
    for one, other in zip(found, expected, strict=True):
        assert one[other.isnan()].isnan().all()


@pytest.mark.parametrize("rows", [0, 1, 31, 100])
@pytest.mark.parametrize("width", [1, 16, 37, 256])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("functions", [head_norm.NATIVE, head_norm.TORCH], ids=["native", "torch"])
def test_the_gated_norm_is_the_reference(
    rows: int, width: int, gated: bool, functions: head_norm.RowFunctions
) -> None:
    torch.manual_seed(1)
    z, grad_output = torch.randn(rows, width), torch.randn(rows, width)
    if rows > 1:
        z[1] = 0.0
    gain = torch.randn(width)
    gate = torch.randn(width) if gated else None
    output, scale = functions.forward(z, gain, gate)
    found = [output, *functions.backward(z, gain, gate, scale, grad_output)]
    inputs = [x.double().requires_grad_() for x in (z, gain, gate) if x is not None]
    exact = head_norm.head_norm_reference(*inputs[:2], inputs[2] if gated else None, "rms")
    wanted = [exact.detach(), *torch.autograd.grad(exact, inputs, grad_output.double())]
    for one, other in zip((x for x in found if x is not None), wanted, strict=True):
        tolerance = 1e-5 * max(1.0, float(other.abs().max())) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=1e-4)


@pytest.mark.usefixtures("threads")
def test_norms_have_the_same_bits_on_any_number_of_threads() -> None:
    torch.manual_seed(1)
    z, outer = torch.randn(2, 333, 40)
    gain, gate = torch.randn(2, 40)
    results = []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        output, scales = kernels.gated_rms_norm(z, gain, gate, head_norm.EPSILON)
        gradients = kernels.gated_rms_norm_backward(z, gain, gate, scales, outer)
        results.append([output, scales, *(x for x in gradients if x is not None)])
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])


# Rows, what is added up, columns.
PRODUCTS = [(1, 1, 1), (3, 5, 7), (13, 40, 33), (97, 1025, 48), (200, 64, 130), (0, 4, 4)]


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_those_of_torch(size: tuple[int, int, int], transposed: bool) -> None:
    rows, inner, columns = size
    torch.manual_seed(1)
    left, right, bias = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns)
    where, draws = torch.randn(rows, columns), draw_bits(rows * columns, torch.device("cpu"))
    given = right.t().contiguous() if transposed else right
    plain = (left.double() @ right.double()).float()
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(kernels.multiply(left, given, transposed=transposed), plain, **close)
    found = kernels.multiply(left, given, transposed=transposed, scale=0.5, where=where)
    torch.testing.assert_close(found, torch.where(where > 0.0, 0.5 * plain, 0.0), **close)
    mask = DropoutMask(draws, 0, 2.0)
    found = kernels.multiply(left, given, transposed=transposed, bias=bias, relu=True, mask=mask)
    kept = draws.view(rows, columns) >= 0
    torch.testing.assert_close(found, (plain + bias).relu() * kept * 2.0, **close)


@pytest.mark.usefixtures("threads")
def test_products_have_the_same_bits_on_any_number_of_threads_and_rows() -> None:
    torch.manual_seed(1)
    left, right = torch.randn(250, 1100), torch.randn(1100, 40)
    torch.set_num_threads(1)
    alone = kernels.multiply(left, right)
    torch.set_num_threads(2)
    assert torch.equal(kernels.multiply(left, right), alone)
    assert torch.equal(kernels.multiply(left[100:].contiguous(), right), alone[100:])


def gradients_of(module: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """The output of a module, and the gradients of its inputs and parameters."""
    torch.manual_seed(3)
    output = module(*inputs)
    output = output.x if isinstance(output, SublayerOutput) else output
    outward = torch.linspace(-1.0, 1.0, output.numel()).view_as(output)
    return [output, *torch.autograd.grad(output, [*inputs, *module.parameters()], outward)]


def feed_forward_layer(dim: int, inner: int, rate: float) -> FeedForward:
    return FeedForward(ModelConfig(dim=dim, feed_forward_dim=inner, feed_forward_dropout=rate))


class AddNorm(nn.Module):
    """A residual's end as a module of two inputs."""

    def __init__(self, dim: int, rate: float) -> None:
        super().__init__()
        self.residual = Residual(ModelConfig(dim=dim, norm="post", dropout=rate))

    def forward(self, residual: Tensor, x: Tensor) -> Tensor:
        return self.residual.add_and_norm(residual, SublayerOutput(x, None)).exact


@pytest.mark.parametrize("dim", [8, 37, 64])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("form", ["linear", "feed-forward", "residual"])
@pytest.mark.usefixtures("threads")
def test_layers_are_the_references(form: str, rate: float, dim: int) -> None:
    torch.manual_seed(1)
    modules: dict[str, nn.Module] = {
        "linear": Linear(dim, 3 * dim),
        "feed-forward": feed_forward_layer(dim, 50, rate),
        "residual": AddNorm(dim, rate),
    }
    module = modules[form].train()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    count = 2 if form == "residual" else 1
    inputs = [torch.randn(5, 27, dim, requires_grad=True) for _ in range(count)]
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with force_backend("native"):
            results.append(gradients_of(module, inputs))
    state = torch.get_rng_state()
    # torch's own products may add in another order on another number of threads.
    assert_close(results[1], results[0])
    if form == "residual":
        assert_equal(results[1], results[0])
    with force_backend("reference"):
        assert_close(results[0], gradients_of(module, inputs))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("form", ["linear", "feed-forward"])
def test_weights_that_are_views_are_multiplied_by_torch(form: str) -> None:
    module = Linear(16, 20) if form == "linear" else feed_forward_layer(16, 20, 0.0)
    last = module if isinstance(module, Linear) else module.output
    last.weight = nn.Parameter(torch.randn(last.weight.shape[::-1]).t())
    inputs = [torch.randn(5, 16, requires_grad=True)]
    found = gradients_of(module.train(), inputs)
    with force_backend("reference"):
        assert_close(found, gradients_of(module, inputs))


@pytest.mark.parametrize("form", ["feed-forward", "residual"])
def test_layers_pass_on_what_is_not_a_number(form: str) -> None:
    module = feed_forward_layer(16, 20, 0.0) if form == "feed-forward" else AddNorm(16, 0.0)
    inputs = [torch.randn(4, 16) for _ in range(1 if form == "feed-forward" else 2)]
    inputs[-1][2, 5] = torch.nan
    output = module.train()(*inputs)
    output = output.x if isinstance(output, SublayerOutput) else output
    assert output[2].isnan().all()
    assert output[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("columns", [1, 16, 37, 8000])
def test_the_softmax_of_the_loss_is_that_of_torch(columns: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(9, columns) * torch.logspace(-3, 4, 9)[:, None]
    logits[3, 0] = torch.nan
    found = logits.clone()
    normalisers = kernels.softmax_(found)
    torch.testing.assert_close(found, logits.softmax(1), atol=1e-6, rtol=2e-5, equal_nan=True)
    expected = logits.double().logsumexp(1).float()
    torch.testing.assert_close(normalisers, expected, atol=1e-5, rtol=1e-6, equal_nan=True)
