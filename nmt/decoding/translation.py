"""The values that go into and come out of translation."""

from dataclasses import dataclass

from nmt.config.config import DecodeConfig
from nmt.decoding.alignment import AlignmentHead, Attention, Links
from nmt.decoding.choices import Sampling
from nmt.decoding.ensemble import LENGTH_MULTIPLE
from nmt.decoding.search import EarlyStop
from nmt.errors import UserError


@dataclass(frozen=True)
class Translation:
    """What became of one line."""

    text: str
    score: float = 0.0  # log probability over length penalty; NaN for a failed line
    alignment: Links | None = None  # (source word, target word) from 0, when asked for
    log_probability: float = 0.0  # of all tokens and the end token
    ids: tuple[int, ...] = ()  # target vocabulary numbers, without the end token
    nbest: tuple["Translation", ...] = ()  # all that were asked for, best first, if several
    attention: Attention | None = None  # when asked for
    failed: bool = False  # the model gave no usable number; the text is empty
    num_dropped: int = 0  # subwords cut off at the end of an over-long source


@dataclass(frozen=True)
class Options:
    """How to translate; the defaults of a model come from its `decode` section."""

    beam: int = 4
    nbest: int = 1
    length_penalty: float = 0.6
    batch_tokens: int = 4096  # source positions of a batch, padding included
    max_length_ratio: float = 2.0  # output subwords <= ratio * source subwords + extra
    max_length_extra: int = 50
    max_length: int | None = None  # output subwords at most, whatever the source
    min_length: int = 0
    early_stop: EarlyStop = "likely"  # when a beam ends, see search.py
    sampling: Sampling | None = None  # draw `nbest` outputs instead of searching
    alignment: AlignmentHead | None = None
    attention: bool = False
    fast: bool = False  # let the last bit of a score depend on the batch

    def __post_init__(self) -> None:
        if self.sampling is None and self.nbest > self.beam:
            raise UserError(f"nbest: expected at most the beam ({self.beam}), got {self.nbest}")

    @classmethod
    def of(cls, config: DecodeConfig) -> "Options":
        """What a configuration asks for."""
        return cls(
            beam=config.beam,
            length_penalty=config.length_penalty,
            batch_tokens=config.batch_tokens,
            max_length_ratio=config.max_length_ratio,
            max_length_extra=config.max_length_extra,
            early_stop=config.early_stop,
        )

    @property
    def width(self) -> int:
        """Hypotheses of a sentence held at a time."""
        return self.nbest if self.sampling is not None else self.beam

    @property
    def length_multiple(self) -> int:
        """What source lengths are padded to a multiple of."""
        return 1 if self.fast else LENGTH_MULTIPLE


@dataclass(frozen=True)
class Line:
    """A line to translate, with its number (from 0) in the whole input and a forced beginning."""

    number: int
    text: str
    prefix: str = ""
