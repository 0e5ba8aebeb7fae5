"""The linear layer of projections."""

from torch import Tensor

from nmt.ops.half_linear import HalfPrecisionLayer
from nmt.ops.linear import linear


class Linear(HalfPrecisionLayer):
    """torch's linear layer, computed by the best implementation for each call."""

    def full_precision(self, x: Tensor) -> Tensor:
        """The layer in float32."""
        return linear(x, self.weight, self.bias)
