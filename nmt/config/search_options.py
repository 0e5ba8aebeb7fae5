"""The options of search: the one place that declares them, with defaults, limits and help.

The `decode` section of a configuration holds those that are a model's own. The command line takes
its flags, help and limits from the fields here.
"""

import math
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
    Power,
    Ratio,
    Seed,
    Share,
)
from nmt.config.scalars import check_fields
from nmt.errors import UserError

EarlyStop = Literal["likely", "exact"]


def shown(help_text: str, metavar: str = "N", *, flag: str = "") -> dict[str, str]:
    """How the command line offers a field; `flag` is its name there, if it is another one."""
    return {"help": help_text, "metavar": metavar, "flag": flag}


def command_line_fields(section: type) -> list[tuple[str, "Field[Any]"]]:
    """The fields of a dataclass that the command line offers, with the names of their flags."""
    offered = [one for one in fields(section) if "help" in one.metadata]
    return [(one.metadata["flag"] or one.name, one) for one in offered]


@dataclass(frozen=True)
class Sampling:
    """Draw tokens instead of taking the best."""

    temperature: PositiveFloat = field(
        default=1.0,
        metadata=shown(
            "draw outputs at random; below 1 sharpens the probabilities, above 1 flattens them",
            "TEMPERATURE",
            flag="sample",
        ),
    )
    top_k: NonNegativePieces = field(
        default=0, metadata=shown("of the K most probable subwords only (0: all)", "K")
    )
    top_p: Share = field(
        default=1.0,
        metadata=shown("of the most probable subwords that make up the share P only", "P"),
    )
    seed: Seed = field(default=1, metadata=shown("of the random numbers (default: 1)"))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class DecodeConfig:
    """Search options of a model: the defaults of nmt-translate and of validation."""

    beam: Beam = field(default=4, metadata=shown("hypotheses kept; 1 is greedy search"))
    length_penalty: Power = field(default=0.6, metadata=shown("higher prefers longer outputs", "P"))
    batch_tokens: BatchTokens = field(
        default=4096, metadata=shown("source subwords translated together, with padding")
    )
    max_length_ratio: Ratio = field(
        default=2.0, metadata=shown("output subwords at most R times the ...", "R")
    )
    max_length_extra: NonNegativeLength = field(default=50, metadata=shown("... source's plus N"))
    early_stop: EarlyStop = field(
        default="likely",
        metadata=shown(
            "end a beam when none of it would score better a quarter longer at no cost, or at the "
            "maximum length (exact: slower, and the same output but for about one line in ten "
            "thousand)",
            "",
        ),
    )


@dataclass(frozen=True)
class SearchOptions(DecodeConfig):
    """All options of search, for one call; those of `decode` come from the model."""

    nbest: Beam = field(
        default=1,
        metadata=shown(
            "N best (or samples) per line, as `number ||| text ||| log_probability= X ||| score`, "
            "numbers from 0",
        ),
    )
    min_length: NonNegativeLength = field(default=0, metadata=shown("output subwords at least"))
    max_length: Length | None = field(
        default=None, metadata=shown("output subwords at most, whatever the source")
    )
    sampling: Sampling | None = None  # draw `nbest` outputs instead of searching for the best
    fast: bool = False  # let the last bits of a score depend on the batch

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sampling is None and self.nbest > self.beam:
            raise UserError(f"nbest: expected at most the beam ({self.beam}), got {self.nbest}")

    @classmethod
    def of(cls, config: DecodeConfig) -> "SearchOptions":
        """The options of a model."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(DecodeConfig)})

    @property
    def width(self) -> int:
        """The number of hypotheses of a sentence held at a time."""
        return self.nbest if self.sampling is not None else self.beam

    def output_limit(self, source_length: int, prefix_length: int = 0) -> int:
        """The most subwords of an output, without the end token; its prefix always fits."""
        limit = math.floor(self.max_length_ratio * source_length + self.max_length_extra)
        limit = min(limit, self.max_length or MAX_POSITIONS, MAX_POSITIONS)
        return max(limit, prefix_length)
