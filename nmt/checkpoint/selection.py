"""The model of a run directory that is used: the one with the better score on validation data."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmt.checkpoint.average import AVERAGE_OF, VALIDATION_SCORE
from nmt.checkpoint.model_directory import STATE, WEIGHTS_FILE, is_needed, read_config
from nmt.checkpoint.packed import is_packed
from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import Config
from nmt.errors import IntegrityError, NoCheckpointError, UserError
from nmt.storage.directories import settled
from nmt.storage.manifest import MANIFEST, SealedDirectory

logger = logging.getLogger(__name__)

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "loss": False, "perplexity": False}


@dataclass(frozen=True)
class ValidationScore:
    """The score of a model, and the conditions under which it can be compared with another."""

    metric: str
    value: float
    conditions: tuple[Any, ...]

    def comparable(self, other: "ValidationScore") -> bool:
        """Whether both are scores of the same kind on the same data."""
        return (self.metric, self.conditions) == (other.metric, other.conditions)

    def better_than(self, other: "ValidationScore") -> bool:
        """Whether this is the better one of two comparable scores."""
        return is_better(self.value, other.value, metric=self.metric)


def is_better(score: float, other: float, *, metric: str) -> bool:
    """Whether a score is better than another one of the same metric."""
    return score > other if HIGHER_IS_BETTER[metric] else score < other


def score_meaning(config: Config) -> tuple[Any, ...]:
    """The settings that the validation scores of a run depend on."""
    validate = config.validate
    if validate.metric in ("loss", "perplexity"):
        return validate.metric, validate.corpus
    search = replace(config.decode, beam=validate.beam or 1, batch_tokens=1)
    return validate.metric, validate.corpus, validate.sentences, search


def validation_score(path: Path) -> ValidationScore | None:
    """The score that `best` or a measured average records, or None if it has none."""
    try:
        directory = SealedDirectory(path)
        state, config = directory.read_json(STATE), read_config(directory)
        of_average = AVERAGE_OF in state
        value = state[VALIDATION_SCORE] if of_average else state["training"]["best_score"]
        conditions = (*score_meaning(config), state["data_fingerprint"])
        return ValidationScore(config.validate.metric, float(value), conditions)
    except (UserError, KeyError, TypeError, ValueError):
        return None


def find_model(path: Path) -> Path:
    """The model directory that `path` is, or the one of a run directory that should be used.

    That is the one of `average` and `best` with the better score on the validation set; `average`
    if one of them has no score; else the newest good checkpoint. The log says which and why. An
    `average` or `best` that turns out to be damaged is an error when it is loaded: another model in
    its place would be a surprise.
    """
    if is_packed(path):
        raise UserError(
            f"{path}: a packed model can only translate, with nmt-translate, nmt-serve or "
            "nmt.Translator; use the model that it was exported from"
        )
    if (path / MANIFEST).exists() or (path / WEIGHTS_FILE).exists():
        return path
    average, best = settled(path / "average"), settled(path / "best")
    if average is not None and best is not None:
        return better_of(average, best)
    found = average or best or newest_model(CheckpointStore(path))
    logger.info("model: %s", found)
    return found


def better_of(average: Path, best: Path) -> Path:
    """The one with the better score, or `average` if they cannot be compared."""
    scores = validation_score(average), validation_score(best)
    if scores[0] is None or scores[1] is None or not scores[0].comparable(scores[1]):
        logger.info("model: %s", average)
        return average
    ours, other = (average, scores[0]), (best, scores[1])
    if scores[1].better_than(scores[0]):
        ours, other = other, ours
    logger.info(
        "model: %s, with %s %.2f on the validation set (%s: %.2f)",
        ours[0],
        ours[1].metric,
        ours[1].value,
        other[0].name,
        other[1].value,
    )
    return ours[0]


def newest_model(store: CheckpointStore) -> Path:
    """The checkpoint of the highest step that verifies but for what only training needs."""
    steps = store.steps()
    for step in reversed(steps):
        try:
            directory = SealedDirectory(store.path(step))
            directory.verify([name for name in directory.entries if is_needed(name)])
        except (IntegrityError, NoCheckpointError) as error:
            logger.warning("checkpoint of step %d is not used: %s", step, error)
        else:
            return store.path(step)
    if steps:
        raise NoCheckpointError(
            f"{store.directory}: none of the {len(steps)} checkpoints is intact"
        )
    raise NoCheckpointError(
        f"{store.run_dir}: expected a model directory, or a run directory with average, best or "
        "checkpoints in it"
    )
