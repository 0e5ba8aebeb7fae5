"""Where a run stands: the few numbers that, with weights and optimizer, resume it exactly.

There is no random state to keep: the order of the data is a function of (seed, epoch), and the
dropout masks are a function of (seed, update, batch, first row).
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nmt.errors import IntegrityError

# Sums over updates: for the next log line, and for the next check for divergence.
SUM_NAMES = ("updates", "tokens", "loss", "likelihood", "gradient_norm")
NEEDED = {"update", "epoch", "position"}  # in state.json of every version


@dataclass
class TrainingState:
    """The progress of a run, which state.json holds besides facts about the machine."""

    update: int = 0  # updates done
    epoch: int = 0  # epochs done, which is also the number of the present one
    position: int = 0  # batches of the present epoch already used
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    best_score: float | None = None
    best_update: int = 0
    validations_since_best: int = 0
    lowest_loss: float | None = None  # of any divergence window
    high_windows: int = 0  # divergence windows in a row far above the lowest
    alignment_head: dict[str, Any] | None = None  # which cross-attention head aligns words best
    # the model that the run started from: its path and digests, and its score on validation data
    started_from: dict[str, Any] | None = None
    loss_scale: float = 65536.0  # float16 only
    updates_since_overflow: int = 0
    log_sums: list[float] = field(default_factory=lambda: [0.0] * len(SUM_NAMES))
    watch_sums: list[float] = field(default_factory=lambda: [0.0] * len(SUM_NAMES))

    def to_dict(self) -> dict[str, Any]:
        """The state as a dictionary for state.json; Python's floats survive JSON bit for bit.

        Without a start there is no word of it, so that earlier versions read the state, too.
        """
        values = dataclasses.asdict(self)
        if self.started_from is None:
            del values["started_from"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingState":
        """The state that `to_dict` described, of this version or an earlier one.

        A field that is missing takes its default above, so a field that is added later needs a
        default with which older runs go on as they did. A field that is unknown was written by a
        later version, which may mean something by it: that is an error.
        """
        known = {item.name for item in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise IntegrityError(
                f"state.json was written by a later version of nmt: it has {', '.join(unknown)}, "
                "which this version does not know; go on with the version that wrote it"
            )
        if missing := sorted(NEEDED - set(values)):
            raise IntegrityError(f"state.json is not the state of a run: no {', '.join(missing)}")
        return cls(**values)


def dropout_seed(seed: int, update: int, batch: int, first_row: int = 0) -> int:
    """The seed of the forward pass over a batch, or over its rows from `first_row` on.

    Whole batches have the same masks on every machine and for every number of processes.
    """
    place = [batch, first_row] if first_row else [batch]
    words = np.random.SeedSequence([seed, update, *place]).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1
