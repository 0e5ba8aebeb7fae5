"""The linear layer of projections."""

from torch import Tensor, nn

from nmt.ops.linear import linear


class Linear(nn.Linear):
    """torch's linear layer, computed by the best implementation for each call."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
