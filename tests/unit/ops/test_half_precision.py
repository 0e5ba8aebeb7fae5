"""Products in half precision: the kernels are the reference, and the weights stay in float32."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nmt.config.config import ModelConfig
from nmt.model.layers import FeedForward
from nmt.model.linear import Linear
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.ops.cross_entropy import cross_entropy
from nmt.ops.dropout import draw_mask
from nmt.ops.half_linear import HalfPrecisionLayer, SublayerOutput
from nmt.ops.native import bfloat16
from nmt.training.half_copies import HalfCopies

needs_products = pytest.mark.skipif(
    bfloat16.missing_products() is not None, reason=str(bfloat16.missing_products())
)
# Rows, inner side, columns: fewer than a vector, odd, beyond a panel, beyond a block.
SIZES = [(1, 1, 1), (5, 7, 3), (13, 33, 35), (100, 64, 48), (97, 1025, 31), (49, 2101, 97)]
every_size = pytest.mark.parametrize("size", SIZES, ids=str)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def matrices(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Two matrices in bfloat16, and their product in float64."""
    rows, inner, columns = size
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(rows, inner, generator=generator).bfloat16()
    right = torch.randn(inner, columns, generator=generator).bfloat16()
    return left, right, left.double() @ right.double()


def assert_close(found: Tensor, expected: Tensor, error: float = 3e-6) -> None:
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found.double(), expected.double(), atol=error * scale, rtol=0)


@needs_products
@every_size
def test_products_sum_in_float32(size: tuple[int, int, int]) -> None:
    left, right, expected = matrices(size)
    assert_close(bfloat16.multiply(left, right), expected)
    assert_close(bfloat16.multiply(left, right.t().contiguous(), transposed=True), expected)
    assert_close(bfloat16.multiply(left, right, rounded=True), expected, error=4e-3)
    gradient, sums = bfloat16.weight_gradient(left.t().contiguous(), right)
    assert_close(gradient, expected)
    assert_close(sums, left.double().sum(1))
    more, _ = bfloat16.weight_gradient(left.t().contiguous(), right, out=gradient)
    assert_close(more, 2 * expected)


@needs_products
@every_size
@pytest.mark.usefixtures("threads")
def test_products_do_not_depend_on_threads(size: tuple[int, int, int]) -> None:
    left, right, _ = matrices(size)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        gradient, sums = bfloat16.weight_gradient(left.t().contiguous(), right)
        results.append((bfloat16.multiply(left, right), gradient, sums))
    for one in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, results[0], strict=True))


@needs_products
def test_what_follows_a_product() -> None:
    left, right, expected = matrices((37, 20, 45))
    bias = torch.linspace(-3.0, 3.0, 45)
    torch.manual_seed(1)
    mask = draw_mask(expected.numel(), 0.4)
    assert mask is not None
    kept = (mask.bits.view(37, 45) >= mask.least_kept) * mask.keep_scale
    found = bfloat16.multiply(left, right, bias=bias, relu=True, mask=mask, scale=0.5)
    assert_close(found, (0.5 * expected + bias).relu() * kept)
    where = found.bfloat16()
    chosen = bfloat16.multiply(left, right, where=where, rounded=True)
    assert_close(chosen, torch.where(where > 0, expected, 0.0), error=4e-3)


@needs_products
def test_rounding_is_that_of_torch() -> None:
    x = torch.randn(9, 1001) * torch.logspace(-30, 30, 1001)
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, 0.0])
    assert torch.equal(bfloat16.round_rows(x), x.bfloat16())
    assert bfloat16.round_rows(torch.full((1, 3), torch.nan)).isnan().all()


def with_copies(layer: HalfPrecisionLayer) -> None:
    layer.half_weight = layer.weight.detach().bfloat16()
    layer.half_bias = layer.bias.detach().bfloat16()


def layers() -> dict[str, torch.nn.Module]:
    torch.manual_seed(2)
    config = ModelConfig(dim=34, heads=2, feed_forward_dim=70, feed_forward_dropout=0.0)
    found: dict[str, torch.nn.Module] = {"linear": Linear(34, 51), "ff": FeedForward(config)}
    for module in found.values():
        for layer in module.modules():
            if isinstance(layer, HalfPrecisionLayer):
                torch.nn.init.normal_(layer.bias)
                with_copies(layer)
    return found


@needs_products
@pytest.mark.parametrize("name", ["linear", "ff"])
def test_layers_by_the_kernels_are_the_reference(name: str) -> None:
    module = layers()[name]
    torch.manual_seed(3)
    x = torch.randn(3, 7, 34, requires_grad=True)
    tensors = [x, *module.parameters()]
    results = []
    for backend in ("native", "reference"):
        with force_backend(backend):
            output = module(x)
            output = output.x if isinstance(output, SublayerOutput) else output
        assert output.dtype == torch.float32
        outward = torch.linspace(-1.0, 1.0, output.numel()).view_as(output)
        results.append([output, *torch.autograd.grad(output, tensors, outward)])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == torch.float32
        # One rounding to bfloat16 of the hidden units may fall to the other side.
        assert_close(found, expected, error=1e-5 if name == "linear" else 1e-2)


def test_layers_whose_copies_are_joined_are_the_layers() -> None:
    sizes = ModelConfig(dim=8, heads=2, encoder_layers=1, decoder_layers=3, feed_forward_dim=16)
    model = Transformer(sizes, source_vocabulary_size=9, target_vocabulary_size=9)
    layers = model.memory_layers()
    parameters = [one for layer in layers for one in (layer.weight, layer.bias)]
    x, outward = torch.randn(5, 7, 8, requires_grad=True), torch.randn(3, 5, 7, 16)
    results = []
    with HalfCopies(model, torch.bfloat16):
        assert model.half_memory_layers is not None
        joint = torch.stack(model.half_memory_layers.multiply(x, layers)).float()
        with force_backend("reference"):
            for outputs in (joint, torch.stack([layer(x) for layer in layers])):
                grads = torch.autograd.grad(outputs, [x, *parameters], outward)
                results.append([outputs, *grads])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, error=1e-2)


@needs_products
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_by_the_kernels_is_the_reference(smoothing: float) -> None:
    torch.manual_seed(4)
    hidden = torch.randn(50, 17, requires_grad=True)
    weight = torch.randn(101, 17, requires_grad=True)
    target, half_weight = torch.randint(101, (50,)), weight.detach().bfloat16()
    results = []
    for backend in ("native", "torch", "reference"):
        with force_backend(backend):
            losses = cross_entropy(hidden, weight, target, smoothing, half_weight)
        results.append([*losses, *torch.autograd.grad(losses[0], (hidden, weight))])
    for other in results[1:]:
        for found, expected in zip(results[0], other, strict=True):
            assert_close(found, expected, error=5e-3)


def test_copies_follow_the_weights_and_go() -> None:
    sizes = ModelConfig(dim=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward_dim=16)
    model = Transformer(sizes, source_vocabulary_size=9, target_vocabulary_size=9)
    copies = HalfCopies(model, torch.bfloat16)
    layer = next(one for one in model.modules() if isinstance(one, HalfPrecisionLayer))
    names = set(model.state_dict())
    with torch.no_grad():
        layer.weight.fill_(1.0 + 2**-12)
    with copies:
        assert layer.half_weight is not None
        assert (layer.half_weight == 1.0).all()
        assert model.half_output_weight is not None
        assert set(model.state_dict()) == names
    assert (layer.half_weight, model.half_output_weight) == (None, None)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    with copies:
        assert layer.half_weight is not None
        assert (layer.half_weight == 2.0).all()
