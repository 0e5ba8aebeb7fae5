"""The values that go into and come out of translation."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from nmt.config.search_options import DecodeConfig, SearchOptions
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.decoding.alignment import AlignmentHead, Attention, Links
from nmt.decoding.search_record import Symbols

Precision = Literal["auto", "float32", "bfloat16"]

SYMBOLS = Symbols(start=BOS, end=EOS, never=(PAD, BOS, UNK))


class Failure(StrEnum):
    """Why there is no result for a line."""

    NON_FINITE = "the model computes numbers that are not finite for it"
    OUT_OF_MEMORY = "there is not enough memory for it"
    UNREADABLE = "it cannot be read"


@dataclass(frozen=True)
class Translation:
    """The result for one line."""

    text: str
    score: float = 0.0  # log probability over length penalty; NaN for a failed line
    alignment: Links | None = None  # (source word, target word) from 0, when asked for
    log_probability: float = 0.0  # of all tokens and the end token
    ids: tuple[int, ...] = ()  # target vocabulary ids, without the end token
    nbest: tuple["Translation", ...] = ()  # all that were asked for, best first, if several
    attention: Attention | None = None  # when asked for
    failure: Failure | None = None  # why the text is empty
    num_dropped: int = 0  # subwords cut off at the end of an over-long source

    @property
    def failed(self) -> bool:
        """Whether the line has no translation."""
        return self.failure is not None


@dataclass(frozen=True)
class Details:
    """The results that are wanted besides the text."""

    alignment: AlignmentHead | None = None
    attention: tuple[str, ...] = ()  # types of attention


NO_DETAILS = Details()


@dataclass(frozen=True)
class Line:
    """A line to translate, with its number (from 0) in the whole input and a forced beginning.

    `problem` says what is wrong with a line that could not be read; its text is empty.
    """

    number: int
    text: str
    prefix: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Sentence:
    """A line as token ids: one source for each model, all with EOS."""

    line: Line
    sources: tuple[list[int], ...]
    prefix: list[int]
    num_dropped: int
    unknown: tuple[str, ...] = ()  # pieces of the prefix that have no id

    @property
    def length(self) -> int:
        """The length of the longest source."""
        return max(len(source) for source in self.sources)

    def output_limit(self, options: SearchOptions) -> int:
        """The most tokens of its translation."""
        return options.output_limit(len(self.sources[0]) - 1, len(self.prefix))


@dataclass(frozen=True)
class PairScore:
    """The log probability of a target, given its source."""

    tokens: tuple[float, ...]  # log probability of each subword, the end token last
    num_dropped: int = 0  # subwords cut off at the end of an over-long source
    failure: Failure | None = None  # why the score is of no use
    attention: Attention | None = None  # when asked for

    @property
    def log_probability(self) -> float:
        """The log probability of the whole target."""
        return sum(self.tokens)

    def score(self, options: DecodeConfig) -> float:
        """The score that search would have reported with these options."""
        return self.log_probability / options.divisor(len(self.tokens))
