"""The engine in C against the model it was made of."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.decoding_walks import (
    BEAM,
    POSITIONS,
    engine_walk,
    make_sources,
    torch_walk,
    walk,
)
from support.kernels import every_build, load
from support.transformers import MODELS_IN_C, OUR_MODELS, make_model
from torch import Tensor, nn

from nmt.decoding.decoder import make_decoder
from nmt.decoding.engine import Engine, ModelStructures
from nmt.decoding.engine_step import EngineStep
from nmt.decoding.pack_transformer import linear, pack_transformer
from nmt.decoding.packed_model import PackedModel, quantize, sinusoids
from nmt.decoding.packing import Int8Linear
from nmt.ops.backend import force_backend
from nmt.ops.native.tensors import address
from nmt.storage.arrays import ArrayFile, arrays_writer


@every_build
@pytest.mark.parametrize("name", MODELS_IN_C)
def test_every_kind_computes_what_the_model_does(build: str, name: str) -> None:
    model = make_model(OUR_MODELS[name])
    # Where weights are not normalised, the model itself is that far from its double in float64.
    tolerance = 1e-3 if "squared" in name or "identity" in name else 1e-4
    for found, expected in zip(engine_walk(build, model), torch_walk(model), strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=1e-4)


@every_build
def test_no_step_beyond_the_memory(build: str) -> None:
    """Not another position than there is memory for, and no more hypotheses."""
    engine = Engine(load(build), pack_transformer(make_model(OUR_MODELS["softmax"]), int8=False))
    with torch.inference_mode():
        step = EngineStep(engine, [[4, 5], [6]], beam=2, max_length=1)
        with pytest.raises(ValueError, match="1 to 2 hypotheses, got 3"):
            step(torch.ones(2, 3, dtype=torch.int64))
        for _ in range(2):
            step(torch.ones(2, 2, dtype=torch.int64))
        with pytest.raises(ValueError, match="at most 2 steps"):
            step(torch.ones(2, 2, dtype=torch.int64))


@every_build
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("dim", [20, 36, 64])
def test_norms_and_odd_widths(build: str, norm: str, dim: int) -> None:
    model = make_model(OUR_MODELS["softmax"], norm=norm, dim=dim)
    for found, expected in zip(engine_walk(build, model), torch_walk(model), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@every_build
@pytest.mark.parametrize("int8", [False, True])
def test_threads_change_no_bit(build: str, int8: bool) -> None:
    model = make_model(OUR_MODELS["mixed"], dim=64)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(engine_walk(build, model, int8=int8))
    finally:
        torch.set_num_threads(threads)
    for one in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(one, found[0], strict=True))


def test_weights_are_quantized_as_for_scoring() -> None:
    """The same 8-bit numbers and scales as the layers by which torch scores."""
    layer = nn.Linear(300, 200)
    expected = Int8Linear(layer.weight, layer.bias)
    quantized, scales = quantize(layer.weight.detach().numpy())
    assert np.array_equal(quantized, expected.weight.t().numpy())
    assert np.array_equal(scales, expected.scales.numpy())


def test_positions_beyond_the_table_are_those_of_the_model() -> None:
    model = make_model(OUR_MODELS["softmax"], dim=36)
    packed = pack_transformer(model, int8=False)
    expected = model.target_input.positions(2000)[512:].numpy()
    np.testing.assert_allclose(sinusoids(512, 2000, packed.settings), expected, atol=1e-7)


@every_build
@pytest.mark.parametrize("int8", [False, True])
def test_a_file_gives_the_same_bits(build: str, int8: bool, tmp_path: Path) -> None:
    model = make_model(OUR_MODELS["mixed"], norm="pre")
    packed = pack_transformer(model, int8=int8)
    arrays_writer(packed.arrays)(tmp_path / "model")
    file = ArrayFile(tmp_path / "model")
    found = PackedModel(packed.settings, {name: file.array(name) for name in packed.arrays})
    steps = [
        EngineStep(Engine(load(build), one), make_sources(), beam=BEAM, max_length=POSITIONS)
        for one in (packed, found)
    ]
    with torch.inference_mode():
        for one, other in zip(*map(walk, steps), strict=True):
            assert torch.equal(one, other)


@every_build
def test_a_packed_model_without_an_array_is_refused(build: str) -> None:
    packed = pack_transformer(make_model(OUR_MODELS["rela-g"]), int8=False)
    for name, array in packed.arrays.items():
        others = {key: value for key, value in packed.arrays.items() if key != name}
        if name.endswith((".gain", ".gate", ".bias")) and ".norm." not in name:
            continue  # a layer can do without
        if name not in ("source_embedding", "output.weight"):
            with pytest.raises(ValueError, match=name):
                Engine(load(build), PackedModel(packed.settings, others))
        changed = PackedModel(packed.settings, others | {name: array[..., :-1]})
        with pytest.raises(ValueError, match="expected"):
            Engine(load(build), changed)


def test_the_engine_with_its_search_needs_no_torch() -> None:
    program = "import sys, nmt.decoding.engine_search; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "False\n", done.stderr


def multiply(
    kernels: ctypes.CDLL, layer: nn.Linear, x: Tensor, *, int8: bool, relu: bool = False
) -> Tensor:
    """x through a packed layer."""
    settings = pack_transformer(make_model(OUR_MODELS["softmax"]), int8=int8).settings
    layout = ModelStructures(
        kernels, PackedModel(settings, dict(linear("layer", layer, int8=int8)))
    )
    structure = layout.linear("layer", inputs=layer.in_features, outputs=layer.out_features)
    out = torch.empty(len(x), layer.out_features)
    scratch = torch.empty(len(x) * (2 + layer.in_features))
    kernels.apply_linear(
        ctypes.byref(structure),
        address(x, (len(x), layer.in_features)),
        len(x),
        address(out),
        int(relu),
        address(scratch),
        torch.get_num_threads(),
    )
    return out


@every_build
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 33), (64, 96), (257, 100)])
@pytest.mark.parametrize("rows", [1, 5, 12, 13, 49, 100])
def test_linear_layers(build: str, inputs: int, outputs: int, rows: int) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    kernels = load(build)
    with torch.no_grad():
        torch.testing.assert_close(multiply(kernels, layer, x, int8=False), layer(x))
        rectified = multiply(kernels, layer, x, int8=False, relu=True)
        torch.testing.assert_close(rectified, layer(x).relu())
        near, expected = (
            multiply(kernels, layer, x, int8=True),
            Int8Linear(layer.weight, layer.bias)(x),
        )
    # A number between two 8-bit ones may be rounded either way.
    assert (near - expected).abs().max() <= 0.02 * expected.abs().max()
    torch.testing.assert_close(near, expected, atol=1e-2, rtol=0.0)


@every_build
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_has_the_same_bits_whatever_the_rows_around_it(build: str, int8: bool) -> None:
    torch.manual_seed(1)
    kernels, layer, x = load(build), nn.Linear(300, 70), torch.randn(100, 300)
    whole = multiply(kernels, layer, x, int8=int8)
    for rows in (1, 2, 3, 5, 6, 11, 12, 20, 48, 64):
        assert torch.equal(
            multiply(kernels, layer, x[-rows:].contiguous(), int8=int8), whole[-rows:]
        )


@every_build
@pytest.mark.parametrize("int8", [False, True])
def test_numbers_that_are_not_finite_stay_in_their_row(build: str, int8: bool) -> None:
    layer, x = nn.Linear(64, 40), torch.randn(4, 64)
    x[1, 3], x[2, 5], x[3] = float("nan"), float("inf"), 0.0
    found = multiply(load(build), layer, x, int8=int8)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    torch.testing.assert_close(found[3], layer.bias.detach())


def test_the_backend_chooses_the_engine() -> None:
    model = make_model(OUR_MODELS["softmax"])
    with force_backend("native"):
        assert make_decoder(model, int8=False, keep_model=True).engine is not None
    for backend in ("torch", "reference"):
        with force_backend(backend):
            assert make_decoder(model, int8=False, keep_model=True).engine is None
