"""The values that go into and come out of translation."""

from dataclasses import dataclass
from enum import StrEnum

from nmt.decoding.alignment import AlignmentHead, Attention, Links


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
