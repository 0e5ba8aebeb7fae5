"""The options of search with their defaults, limits and help, declared in one place.

The `decode` section of a config holds the options that belong to a model. The command line takes
its flags, help and limits from the fields here.
"""

import math
import sys
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

from nmt.config.limits import (
    MAX_POSITIONS,
    BatchTokens,
    Beam,
    Length,
    NonNegativeLength,
    NonNegativePieces,
    PositiveFloat,
    PositiveShare,
    Power,
    Ratio,
    Seed,
)
from nmt.config.scalars import check_fields
from nmt.errors import UserError

EarlyStop = Literal["likely", "exact", "narrow", "current", "full"]
Normalization = Literal["gnmt", "length"]

# With these, the end of an output that has reached the maximum length costs nothing.
FREE_END: tuple[EarlyStop, ...] = ("current", "full")


def shown(help_text: str, metavar: str = "N", *, flag: str = "") -> dict[str, str]:
    """Metadata of a field that is a command-line option; `flag` is its name if it differs."""
    return {"help": help_text, "metavar": metavar, "flag": flag}


def command_line_fields(section: type) -> list[tuple[str, "Field[Any]"]]:
    """The fields of a dataclass that are command-line options, with the names of their flags."""
    offered = [one for one in fields(section) if "help" in one.metadata]
    return [(one.metadata["flag"] or one.name, one) for one in offered]


@dataclass(frozen=True)
class Sampling:
    """Sampling of tokens instead of search."""

    temperature: PositiveFloat = field(
        default=1.0,
        metadata=shown(
            "sample outputs; below 1 sharpens the probabilities, above 1 flattens them",
            "TEMPERATURE",
            flag="sample",
        ),
    )
    top_k: NonNegativePieces = field(
        default=0, metadata=shown("sample from the K most probable subwords only (0: all)", "K")
    )
    top_p: PositiveShare = field(
        default=1.0,
        metadata=shown(
            "sample from the most probable subwords with a total probability of P only", "P"
        ),
    )
    seed: Seed = field(default=1, metadata=shown("seed of the random numbers (default: 1)"))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class DecodeConfig:
    """Search options of a model: the defaults of nmt-translate and of validation."""

    beam: Beam = field(default=4, metadata=shown("hypotheses kept; 1 is greedy search"))
    length_penalty: Power = field(default=0.6, metadata=shown("higher prefers longer outputs", "P"))
    normalization: Normalization = field(
        default="gnmt",
        metadata=shown(
            "the length penalty divides the log probability of n subwords by ((5 + n) / 6)^P "
            "(gnmt), or by n^P as Marian and Hugging Face do (length)",
            "",
        ),
    )
    batch_tokens: BatchTokens = field(
        default=4096,
        metadata=shown(
            "source subwords per batch, with padding; nmt-translate fills the memory of a GPU "
            "instead, if this is not given on its command line"
        ),
    )
    max_length_ratio: Ratio = field(
        default=2.0, metadata=shown("an output has at most R times the source's subwords ...", "R")
    )
    max_length_extra: NonNegativeLength = field(
        default=50, metadata=shown("... plus N more subwords")
    )
    early_stop: EarlyStop = field(
        default="likely",
        metadata=shown(
            "when the search of a sentence ends. likely: no hypothesis would win even if it became "
            "a quarter longer at no cost. exact: none could win even at the maximum length "
            "(slower; one line in ten thousand differs). narrow: finished hypotheses fill the beam "
            "(as in Marian). full: as many are finished as the beam is wide (early_stopping=True "
            "of Hugging Face). current: besides, no other is better at its current length "
            "(early_stopping=False)",
            "",
        ),
    )

    def divisor(self, length: int) -> float:
        """The divisor of the log probability of an output of this length (with the end token)."""
        base = float(length) if self.normalization == "length" else (5.0 + length) / 6.0
        try:
            return max(float(base**self.length_penalty), sys.float_info.min)
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class SearchOptions(DecodeConfig):
    """All options of search for one call; those of `decode` come from the model."""

    nbest: Beam = field(
        default=1,
        metadata=shown(
            "print the N best outputs (or N samples) per line, as "
            "`number ||| text ||| log_probability= X ||| score`; the number is that of the line, "
            "from 0"
        ),
    )
    min_length: NonNegativeLength = field(
        default=0, metadata=shown("minimum length of an output in subwords")
    )
    max_length: Length | None = field(
        default=None, metadata=shown("maximum length of an output in subwords, for any source")
    )
    sampling: Sampling | None = None  # sample `nbest` outputs instead of searching for the best
    fill_memory: bool = False  # of a GPU, whatever `batch_tokens` says
    fast: bool = False  # the last bits of a score may depend on the batch

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sampling is None and self.nbest > self.beam:
            raise UserError(f"nbest: expected at most the beam ({self.beam}), got {self.nbest}")
        if self.max_length is not None and self.min_length > self.max_length:
            raise UserError(
                f"min_length: expected at most the maximum length ({self.max_length}), got "
                f"{self.min_length}"
            )

    @classmethod
    def of(cls, config: DecodeConfig) -> "SearchOptions":
        """The options of a model."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(DecodeConfig)})

    @property
    def width(self) -> int:
        """The number of hypotheses per sentence."""
        return self.nbest if self.sampling is not None else self.beam

    @property
    def num_compared(self) -> int:
        """The number of finished hypotheses that one has to rank among for search to go on."""
        return self.beam if self.early_stop in FREE_END else self.nbest

    def output_limit(self, source_length: int, prefix_length: int = 0) -> int:
        """The maximum length of an output in subwords without EOS; a prefix always fits."""
        limit = math.floor(self.max_length_ratio * source_length + self.max_length_extra)
        limit = min(limit, self.max_length or MAX_POSITIONS, MAX_POSITIONS)
        return max(limit, prefix_length)
