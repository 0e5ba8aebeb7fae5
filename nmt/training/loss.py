"""The loss of a translation model: label-smoothed cross-entropy of its output layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.model.transformer import Transformer
from nmt.ops.cross_entropy import cross_entropy

ALIGNED_WIDTH = 8


class TranslationLoss(nn.Module):
    """The model with its loss on top: what is wrapped for several processes and called in training.

    Padding costs nothing: only the positions that hold a target token reach the output layer.
    """

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(
        self,
        source: Tensor,
        source_visible: Tensor,
        target_input: Tensor,
        positions: Tensor,
        gold: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """`positions` [N]: where in the flattened [B, T] the tokens `gold` [N] are to come."""
        hidden = self.model(source, source_visible, target_input)
        hidden = hidden.flatten(0, 1).index_select(0, positions)  # its backward pass sorts nothing
        weight, bias = self.model.output_weight, self.model.output_bias
        half_weight = self.model.half_output_weight
        if bias is not None:
            hidden, weight = with_bias_column(hidden, weight, bias)
            half_weight = None if half_weight is None else weight.detach().to(half_weight.dtype)
        return cross_entropy(hidden, weight, gold, self.smoothing, half_weight)


def with_bias_column(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """[N, D'] and [V, D'] whose product has the bias [V] in it: a column that meets ones.

    D' is the next width after D at which the rows of matrices in half precision stay aligned.
    """
    room = ALIGNED_WIDTH - hidden.shape[1] % ALIGNED_WIDTH
    ones = torch.ones_like(hidden[:, :1])
    return (
        torch.cat([hidden, functional.pad(ones, (0, room - 1))], dim=1),
        torch.cat([weight, functional.pad(bias[:, None], (0, room - 1))], dim=1),
    )
