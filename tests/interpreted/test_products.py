"""The last product of a sublayer with the norms around it, against its definition in float64."""

import pytest
import torch
from support.transformers import OUR_MODELS
from torch import Tensor, nn
from torch.nn import functional

from nmt.config.config import ModelConfig
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.ops.half_linear import LastLayer
from nmt.ops.head_norm import HeadNormArguments
from nmt.ops.sublayer_end import MOST_ELEMENTS, layer_norm_end
from nmt.ops.triton import products

# Rows, inputs and outputs: tiles of 16, 32 and 64 rows; widths that are no power of two; inputs
# that are divided among programs, and some that fill no whole step.
SHAPES = [(1, 16, 16), (37, 64, 64), (140, 100, 48), (5, 1024, 20), (9, 520, 130), (70, 2048, 512)]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}


def make_inputs(shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """x, weight, its bias, residual, and gain and bias of the norm."""
    rows, inputs, outputs = shape
    weight = torch.randn(outputs, inputs) / inputs**0.5
    sizes = [(rows, inputs), weight, (outputs,), (rows, outputs), (outputs,), (outputs,)]
    made = [one if isinstance(one, Tensor) else torch.randn(one) for one in sizes]
    return [tensor.to(dtype) for tensor in made]


def by_definition(tensors: list[Tensor], gain: Tensor | None, gate: Tensor | None) -> Tensor:
    x, weight, x_bias, residual, norm_gain, norm_bias = (tensor.double() for tensor in tensors)
    z = x if gain is None else functional.rms_norm(x, x.shape[-1:], gain.double(), 1e-8)
    z = z if gate is None else z * torch.sigmoid(gate.double() * x)
    total = residual + functional.linear(z, weight, x_bias)
    return functional.layer_norm(total, norm_gain.shape, norm_gain, norm_bias, 1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("norm", ["none", "rms", "gated"])
@pytest.mark.parametrize("shape", SHAPES)
def test_product_and_norms(shape: tuple[int, int, int], norm: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensors = make_inputs(shape, dtype)
    gain = None if norm == "none" else torch.randn(shape[1])
    gate = torch.randn(shape[1]) if norm == "gated" else None
    expected = by_definition(tensors, gain, gate)
    for _ in range(2):  # counters are left as they were
        found = products.product_norm(*tensors, gain, gate, 1e-5)
        assert found.dtype == dtype
        assert (found - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


def test_heads_that_attend_to_nothing_add_nothing() -> None:
    tensors = make_inputs((3, 64, 64), torch.float32)
    tensors[0][1] = 0.0
    found = products.product_norm(*tensors, torch.randn(64), torch.randn(64), 1e-5)
    _, _, x_bias, residual, gain, bias = tensors
    expected = functional.layer_norm((residual + x_bias)[1], (64,), gain, bias, 1e-5)
    torch.testing.assert_close(found[1], expected)


def test_a_row_that_is_not_a_number_spoils_no_other() -> None:
    tensors = make_inputs((20, 64, 64), torch.float32)
    tensors[0][4, 7] = torch.nan
    found = products.product_norm(*tensors, None, None, 1e-5)
    assert found.isnan().any(1).nonzero().flatten().tolist() == [4]


def test_no_multiprocessor_of_many_is_idle_while_rows_are_few() -> None:
    for rows in (4, 100, 400):
        for inputs in (512, 2048):
            tiles = products.choose_tiles(rows, inputs, 512)
            assert tiles.rows * tiles.parts <= products.MOST_SUMMED
            assert inputs // tiles.parts >= products.LEAST_PART
    assert products.choose_tiles(4, 2048, 512).parts == 8
    assert products.choose_tiles(400, 512, 512) == products.ProductTiles(64, 64, 2)


def test_one_launch_is_chosen_for_few_rows() -> None:
    layer, norm = nn.Linear(64, 64), nn.LayerNorm(64)
    last = LastLayer(layer, HeadNormArguments(torch.ones(64), None, "rms"))
    few, many = torch.randn(2, 64), torch.empty(MOST_ELEMENTS // 64 + 1, 64)
    with torch.no_grad():
        assert layer_norm_end.choose(few, few, last, norm).name == "one kernel in Triton"
        chosen = layer_norm_end.choose(many, many, last, norm)
        assert chosen.name == "product of torch, norms in Triton"
        apart = chosen.run(few, few, last, norm).exact
        with force_backend("reference"):
            expected = layer_norm_end(few, few, last, norm).exact
        torch.testing.assert_close(layer_norm_end(few, few, last, norm).exact, expected)
        torch.testing.assert_close(apart, expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("kind", ["softmax", "rela-g", "rela-i"])
def test_steps_of_a_model_are_those_of_the_reference(kind: str, norm: str) -> None:
    torch.manual_seed(1)
    config = ModelConfig(
        dim=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=2,
        feed_forward_dim=64,
        norm=norm,
        attention=OUR_MODELS[kind],
    )
    model = Transformer(config, source_vocabulary_size=9, target_vocabulary_size=9).eval()
    source, visible = torch.randint(4, 9, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    found = []
    for backend in ("auto", "reference"):
        with torch.no_grad(), force_backend(backend):
            cache = model.start(model.encode(source, visible), visible, beam=1, max_length=3)
            tokens = torch.tensor([[4], [5]])
            found.append(torch.stack([model.step(tokens, cache) for _ in range(3)]))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
