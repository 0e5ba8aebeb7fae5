"""The loss of a translation model: label-smoothed cross-entropy of its output layer."""

from torch import Tensor, nn

from nmt.model.transformer import Transformer
from nmt.ops.cross_entropy import cross_entropy


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
        return cross_entropy(
            hidden.flatten(0, 1).index_select(0, positions),  # its backward pass sorts nothing
            self.model.output_weight,
            gold,
            self.smoothing,
        )
