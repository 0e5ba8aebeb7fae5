"""The linear layer of projections."""

from torch import Tensor, nn

from nmt.ops.linear import linear


class Linear(nn.Linear):
    """torch's layer, computed by the best implementation."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
