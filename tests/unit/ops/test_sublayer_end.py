"""The end of a sublayer while decoding: what computes it, and why not another implementation."""

import pytest
import torch
from torch import nn

from nmt.ops import sublayer_end
from nmt.ops.half_linear import HalfPrecisionLayer, LastLayer, leaves_layer
from nmt.ops.head_norm import HeadNormArguments


def make_last(width: int, *, norm: str = "rms", dtype: torch.dtype = torch.float32) -> LastLayer:
    layer = nn.Linear(width, width, dtype=dtype)
    return LastLayer(layer, HeadNormArguments(torch.ones(width), None, norm))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (make_last(2048), "expected a width of at most 1024, got 2048"),
        (make_last(32, dtype=torch.bfloat16), "expected float32 or bfloat16, got torch.bfloat16,"),
        (make_last(32, norm="layer"), "expected RMSNorm on the heads, got layer"),
        (make_last(32), "expected tensors on a CUDA device, got cpu"),
    ],
)
def test_the_kernel_says_why_it_cannot_compute_a_call(last: LastLayer, reason: str) -> None:
    x = torch.ones(2, last.layer.in_features)
    with torch.no_grad():
        found = sublayer_end.refuses_one_launch(x, x, last, nn.LayerNorm(x.shape[1]))
    assert found is not None
    assert found.startswith(reason)
    assert "no backward" in str(
        sublayer_end.refuses_one_launch(x[:, :8], x[:, :8], make_last(8), nn.LayerNorm(8))
    )


def test_many_rows_are_left_to_larger_tiles() -> None:
    last, norm = make_last(512), nn.LayerNorm(512)
    few, many = torch.empty(1024, 512), torch.empty(1025, 512)
    assert sublayer_end.slower_in_one_launch(few, few, last, norm) is None
    assert "larger tiles" in str(sublayer_end.slower_in_one_launch(many, many, last, norm))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_it_is_the_norm_of_residual_and_layer(norm: str) -> None:
    torch.manual_seed(1)
    last, layer_norm = make_last(16, norm=norm), nn.LayerNorm(16)
    residual, x = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    with torch.no_grad():
        found = sublayer_end.layer_norm_end(residual, x, last, layer_norm)
        expected = layer_norm(residual + sublayer_end.apply_last(x, last))
    torch.testing.assert_close(found.exact, expected)


def test_a_layer_is_left_to_the_residual_connection_only_on_a_gpu_without_gradients() -> None:
    layer = HalfPrecisionLayer(8, 8)
    with torch.no_grad():
        assert not leaves_layer(layer, torch.ones(1, 8))
    assert not leaves_layer(layer, torch.ones(1, 8))
