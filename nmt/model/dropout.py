"""Dropout in one place, so that every use of it can be made cheaper at once."""

from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` in training mode and scales up the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        return functional.dropout(x, self.rate, training=True)

    def extra_repr(self) -> str:
        return f"{self.rate}"
