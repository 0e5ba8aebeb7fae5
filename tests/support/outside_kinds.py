"""An attention kind as another package would define it: a mapping and a row.

Its weights are (score - threshold)_+ ^ power, so a query can attend to nothing; every head learns
its threshold, and the joined heads are normed. Nothing of it is known to nmt.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn import functional

from nmt.config.attention_kinds import AttentionKind, HeadParameter, JoinedHeadsNorm, Option
from nmt.config.scalars import Range
from nmt.ops.native.interface import RowMap
from nmt.ops.score_mappings import LARGEST_WEIGHT, ScoreMapping, Softmax, TopK


@dataclass(frozen=True)
class RectifiedPower(ScoreMapping):
    """(score - threshold)_+ ^ power."""

    power: float

    def weights(self, scores: Tensor, visible: Tensor | None, *parameters: Tensor) -> Tensor:
        (threshold,) = parameters
        scores = scores - threshold.to(scores.dtype)[:, None, None]
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)
        return scores.clamp(0.0, LARGEST_WEIGHT ** (1.0 / self.power)) ** self.power


rectified_power = AttentionKind(
    mapping=lambda options: RectifiedPower(options["power"]),
    options={
        "power": Option(Annotated[float, Range(1.0, 4.0)], 2.0, required="a number from 1 to 4")
    },
    norm=lambda _options: JoinedHeadsNorm("rms", gate=False, gain_init=1.0),
    sums_to_one=False,
    can_attend_to_nothing=True,
    parameters=lambda _options: (
        HeadParameter(
            name="raw_threshold",
            initialize=lambda raw: raw.fill_(-1.0),
            reported_as="softplus_threshold",
            value=functional.softplus,
            report=functional.softplus,
        ),
    ),
)


@dataclass(frozen=True)
class Leaking(ScoreMapping):
    """A mistake: hidden keys get a weight, and the weights do not sum to one."""

    def weights(self, scores: Tensor, _visible: Tensor | None, *_parameters: Tensor) -> Tensor:
        return scores.sigmoid()


leaking = AttentionKind(mapping=lambda _options: Leaking())


@dataclass(frozen=True)
class SharpSoftmax(Softmax):
    """A mapping that extends one of nmt's: softmax of doubled scores."""

    def weights(self, scores: Tensor, visible: Tensor | None, *_parameters: Tensor) -> Tensor:
        return super().weights(2.0 * scores, visible)


sharp_softmax = AttentionKind(mapping=lambda _options: SharpSoftmax())


@dataclass(frozen=True)
class WrongSoftmax(SharpSoftmax):
    """A mistake: the kernels in C are said to compute it."""

    row_map = RowMap.SOFTMAX


@dataclass(frozen=True)
class WrongTopK(TopK):
    """The same mistake with a mapping that only the engine in C computes."""

    row_map = RowMap.TOP_K

    def weights(self, scores: Tensor, visible: Tensor | None, *_parameters: Tensor) -> Tensor:
        return super().weights(2.0 * scores, visible)


wrong_softmax = AttentionKind(mapping=lambda _options: WrongSoftmax())
wrong_topk = AttentionKind(mapping=lambda _options: WrongTopK(3))
softmax = leaking  # there is a kind of this name
number = 3
