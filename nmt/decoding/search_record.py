"""The host's record of a search: what each step chose, what has finished, and which sentences end.

Steps are kept as backpointers; the tokens of a hypothesis are looked up when it is a result.

Shapes: B sentences in the batch, K hypotheses per sentence, N wanted results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.config.search_options import SearchOptions
from nmt.data.ragged import Integers

# With `likely`, hypotheses are taken to end within this share of their length, or this many tokens.
LIKELY_SHARE = 0.25
LIKELY_TOKENS = 2

# Sentences that are over leave the batch when at least this share of it is over.
LEAVE_SHARE = 0.05

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Symbols:
    """The tokens that begin and end an output, and those that are never chosen."""

    start: int
    end: int
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """A finished output, without start and end token."""

    tokens: tuple[int, ...]
    log_probability: float  # of all tokens and the end token
    score: float  # log probability over length penalty


@dataclass(frozen=True)
class ChosenStep:
    """The choices of one step, [B, K] each."""

    rows: Integers | None  # [B] of the step before that are in this one; None: all
    finished_parents: Integers
    finished_scores: Scores  # -inf: none
    live_parents: Integers
    live_tokens: Integers
    live_scores: Scores


class FinishedHypothesis(NamedTuple):
    """Where a finished hypothesis is to be found: the end of a live one after `length` tokens."""

    score: float
    log_probability: float
    length: int
    row: int
    parent: int


class SearchRecord:
    """Follows a search step by step; its rows are the sentences of the last step added."""

    def __init__(
        self, options: SearchOptions, max_lengths: Sequence[int], num_sentences: int
    ) -> None:
        size = len(max_lengths)
        self.options = options
        self.steps: list[ChosenStep] = []
        self.endings: list[list[FinishedHypothesis]] = [[] for _ in range(num_sentences)]
        self.any_finished = False
        self.sentences = np.arange(size)  # [B] position in the results
        self.over = self.sentences >= num_sentences  # [B] nothing more is wanted
        self.num_finished = np.zeros(size, dtype=np.int64)
        self.best = np.full((size, options.num_compared), -np.inf)  # finished, in falling order
        self.longest = np.array(max_lengths, dtype=np.int64) + 1  # with the end token
        self.divisor = cache(options.divisor)
        self.least_penalty = np.array([self.divisor(limit + 1) for limit in max_lengths])

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is wanted of any sentence."""
        return bool(self.over.all())

    def add(self, chosen: ChosenStep) -> None:
        """Add the step after the last one: its finished hypotheses, and who is over by it."""
        if chosen.rows is not None:
            self._select(chosen.rows)
        length = len(self.steps)  # of the outputs that ended in this step
        self.steps.append(chosen)
        ended = (chosen.finished_scores > -np.inf) & ~self.over[:, None]
        if ended.any():
            self._finish(chosen, ended, length)
        self._mark_over(chosen.live_scores.max(axis=1), length)

    def leaving(self, batch_multiple: int) -> Integers | None:
        """The rows to keep if enough sentences are over, their number a multiple; else None."""
        size, num_over = len(self.over), int(self.over.sum())
        if num_over < max(1.0, LEAVE_SHARE * size):
            return None
        going_on = np.flatnonzero(~self.over)
        keep = -(-len(going_on) // batch_multiple) * batch_multiple
        if keep >= size:
            return None
        filling = np.flatnonzero(self.over)[: keep - len(going_on)]
        return np.concatenate([going_on, filling])

    def results(self) -> list[list[Hypothesis]]:
        """The `nbest` best finished hypotheses of each sentence, best first."""
        return [
            [
                Hypothesis(self._tokens(ending), ending.log_probability, ending.score)
                for ending in sorted(endings, key=lambda one: -one.score)[: self.options.nbest]
            ]
            for endings in self.endings
        ]

    def _select(self, rows: Integers) -> None:
        for name in ("sentences", "over", "num_finished", "best", "longest", "least_penalty"):
            setattr(self, name, getattr(self, name)[rows])

    def _finish(self, chosen: ChosenStep, ended: npt.NDArray[np.bool_], length: int) -> None:
        """Store the hypotheses that ended after `length` tokens, and their scores."""
        scores = np.where(ended, chosen.finished_scores, -np.inf)
        scores /= self.divisor(length + 1)
        self.any_finished = True
        self.num_finished += ended.sum(axis=1)
        both = np.concatenate([self.best, scores], axis=1)
        both.sort(axis=1)
        self.best = both[:, : -self.options.num_compared - 1 : -1]
        rows, ranks = ended.nonzero()
        columns = zip(
            self.sentences[rows].tolist(),
            scores[rows, ranks].tolist(),
            chosen.finished_scores[rows, ranks].tolist(),
            rows.tolist(),
            chosen.finished_parents[rows, ranks].tolist(),
            strict=True,
        )
        for sentence, score, log_probability, row, parent in columns:
            ending = FinishedHypothesis(score, log_probability, length, row, parent)
            self.endings[sentence].append(ending)

    def _mark_over(self, live: Scores, length: int) -> None:
        """Mark the sentences of which nothing better can come after `length + 1` tokens.

        A log probability only falls, so what a live hypothesis can reach at most is its present one
        over the penalty of the longest output it may become (of the shortest, for a negative
        power; of its present length, with `current`).
        """
        options = self.options
        self.over = self.over | (live == -np.inf)
        if not self.any_finished:
            return
        if options.sampling is not None or options.beam == 1:
            self.over |= self.num_finished >= options.width
            return
        if options.early_stop == "narrow":
            return
        enough = self.num_finished >= options.num_compared
        if options.early_stop == "full":
            self.over |= enough
            return
        soonest = max(length + 2, options.min_length + 1)  # with the end token
        divisor: Scores | float = self.least_penalty
        if options.early_stop == "current":
            divisor = self.divisor(length + 1)
        elif options.length_penalty < 0.0:
            divisor = self.divisor(soonest)
        elif options.early_stop == "likely":
            ahead = soonest + max(LIKELY_TOKENS, int(LIKELY_SHARE * soonest))
            likely = self.divisor(ahead)
            divisor = np.where(self.longest > ahead, likely, self.least_penalty)
        reached = np.minimum(live, 0.0) / divisor
        self.over |= enough & (self.best[:, -1] >= reached)

    def _tokens(self, ending: FinishedHypothesis) -> tuple[int, ...]:
        """The tokens of a finished hypothesis, from its last one back."""
        tokens = []
        row, parent = ending.row, ending.parent
        for position in reversed(range(ending.length)):
            later = self.steps[position + 1].rows
            row = row if later is None else int(later[row])
            step = self.steps[position]
            tokens.append(int(step.live_tokens[row, parent]))
            parent = int(step.live_parents[row, parent])
        return tuple(reversed(tokens))
