"""The table of attention kinds: one row per kind describes it completely.

A new kind needs a mapping from scores to weights (see nmt/ops/score_mappings.py) and a row here, or
a row in another package (see nmt/config/outside_kinds.py). Config, model, training, decoding,
analysis and benchmarks read the row and test for no kind by name.

This module does not import torch, so that errors in a config are found at once. The functions that
make a mapping import it when they are called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nmt.config.limits import Length, Scale
from nmt.config.scalars import Range

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.ops.score_mappings import ScoreMapping

ALIASES = {"1.5-entmax": "entmax15", "ReLA-i": "rela-i", "ReLA-g": "rela-g"}
SMALLEST_BETA = 1e-6  # keeps a learned alpha above 1 in float32

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """An option of a kind: its type, as for a config key, its default and its meaning."""

    type: Any
    default: Any
    meaning: str = ""  # in the reference of the config
    required: str | None = None  # the expected value, if a config must give it


@dataclass(frozen=True)
class HeadParameter:
    """A learned number per head."""

    name: str  # in the state dict
    initialize: Callable[["Tensor"], object]  # fills the raw parameter [H]
    reported_as: str  # in metrics and analysis
    # Functions of each number of the raw parameter: the value for the mapping, and the value that
    # is reported.
    value: Callable[["Tensor"], "Tensor"] = lambda raw: raw
    report: Callable[["Tensor"], "Tensor"] = lambda raw: raw


@dataclass(frozen=True)
class JoinedHeadsNorm:
    """The norm of the concatenated heads z; with a gate, sigmoid(w z) norm(z)."""

    norm: Literal["rms", "layer", "none"]
    gate: bool
    gain_init: float | Literal["uniform"]  # where the gain starts; "uniform": small, at random


@dataclass(frozen=True)
class AttentionKind:
    """A row of the table; its functions take the values of all options of the kind."""

    mapping: Callable[[Options], "ScoreMapping"]  # scores to weights
    options: Mapping[str, Option] = field(default_factory=dict)
    norm: Callable[[Options], JoinedHeadsNorm] | None = None
    sums_to_one: bool = True
    can_attend_to_nothing: bool = False
    parameters: Callable[[Options], tuple[HeadParameter, ...]] = lambda _options: ()

    def values(self, given: Options) -> dict[str, Any]:
        """The values of all options, given or default."""
        return {name: given.get(name, option.default) for name, option in self.options.items()}


def softmax(_options: Options) -> "ScoreMapping":
    """Softmax."""
    from nmt.ops.score_mappings import Softmax

    return Softmax()


def entmax(options: Options) -> "ScoreMapping":
    """alpha-entmax; alpha is a number or `learned`."""
    from nmt.ops.score_mappings import Entmax

    alpha = options["alpha"]
    return Entmax(None if alpha == "learned" else alpha, package=options["backend"] == "package")


def pointwise(options: Options) -> "ScoreMapping":
    """An activation of each score above a threshold, a number or `learned`."""
    from nmt.ops.score_mappings import Pointwise

    threshold = options["threshold"]
    return Pointwise(options["activation"], None if threshold == "learned" else threshold)


def top_k(options: Options) -> "ScoreMapping":
    """Softmax over the k highest scores."""
    from nmt.ops.score_mappings import TopK

    return TopK(options["k"])


# alpha = 1 + sigmoid(raw). The sigmoid is scaled into [SMALLEST_BETA, 1] rather than clamped, which
# would stop its gradient. The initial values are random, around 1.5.
LEARNED_ALPHA = HeadParameter(
    name="raw_alpha",
    initialize=lambda raw: raw.normal_(),
    reported_as="alpha",
    value=lambda raw: SMALLEST_BETA + (1.0 - SMALLEST_BETA) * raw.sigmoid(),
    report=lambda raw: 1.0 + (SMALLEST_BETA + (1.0 - SMALLEST_BETA) * raw.sigmoid()),
)
# The initial value is the threshold of the paper, 0.
LEARNED_THRESHOLD = HeadParameter(
    name="threshold", initialize=lambda raw: raw.zero_(), reported_as="threshold"
)

ENTMAX_BACKEND = Option(
    Literal["solver", "package"], "solver", "our own solver, or the `entmax` package"
)


def entmax_row(alpha: float) -> AttentionKind:
    """The row of entmax with a fixed alpha."""
    return AttentionKind(
        lambda options: entmax({"alpha": alpha, **options}), options={"backend": ENTMAX_BACKEND}
    )


def rela_row(*, gate: bool, gain_init: float | Literal["uniform"]) -> AttentionKind:
    """A row of rectified linear attention with the defaults of its norm."""
    return AttentionKind(
        pointwise,
        options={
            "activation": Option(
                Literal["relu", "gelu", "leaky_relu", "squared_relu", "identity"],
                "relu",
                "the function of each score that gives its weight",
            ),
            "norm": Option(Literal["rms", "layer", "none"], "rms", "norm of the joined heads"),
            "gate": Option(bool, gate, "whether a sigmoid gate multiplies the norm"),
            "gain_init": Option(
                Scale | Literal["uniform"],
                gain_init,
                "initial gain of the norm; uniform: small random values",
            ),
            "threshold": Option(
                Scale | Literal["learned"],
                0.0,
                "subtracted from each score; learned: one threshold per head, from 0",
            ),
        },
        norm=lambda options: JoinedHeadsNorm(
            options["norm"], options["gate"], options["gain_init"]
        ),
        sums_to_one=False,
        can_attend_to_nothing=True,
        parameters=lambda options: (
            (LEARNED_THRESHOLD,) if options["threshold"] == "learned" else ()
        ),
    )


ATTENTION_KINDS: dict[str, AttentionKind] = {
    "softmax": AttentionKind(softmax),
    "sparsemax": entmax_row(2.0),
    "entmax15": entmax_row(1.5),
    "entmax": AttentionKind(
        entmax,
        options={
            "alpha": Option(
                Annotated[float, Range(1.0, 2.0, open_below=True)] | Literal["learned"],
                1.5,
                "from softmax (near 1) to sparsemax (2); learned: one alpha per head",
                required="a number above 1 and at most 2, or learned",
            ),
            "backend": ENTMAX_BACKEND,
        },
        parameters=lambda options: (LEARNED_ALPHA,) if options["alpha"] == "learned" else (),
    ),
    "rela-i": rela_row(gate=False, gain_init="uniform"),
    "rela-g": rela_row(gate=True, gain_init=1.0),
    "topk": AttentionKind(
        top_k,
        options={
            "k": Option(
                Length,
                8,
                "how many keys each query may attend to",
                required="how many keys each query may attend to",
            )
        },
    ),
}
