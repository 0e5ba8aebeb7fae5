"""Dropout as a module, which knows whether the model is in training."""

from torch import Tensor, nn

from nmt.ops.dropout import dropout


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` in training mode and scales up the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def active_rate(self) -> float:
        """The dropout rate in the current mode: 0 outside training."""
        return self.rate if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        rate = self.active_rate
        return x if rate == 0.0 else dropout(x, rate)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """The residual plus x after dropout."""
        rate = self.active_rate
        return residual + x if rate == 0.0 else dropout(x, rate, residual)

    def extra_repr(self) -> str:
        return f"{self.rate}"
