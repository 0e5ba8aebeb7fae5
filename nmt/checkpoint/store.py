"""The checkpoints of a run: saved whole, verified, never all lost."""

import itertools
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nmt.errors import IntegrityError, NoCheckpointError, StorageError, UserError
from nmt.storage.directories import Writer, recover, remove_directory, replace_directory
from nmt.storage.lock import locked
from nmt.storage.manifest import MANIFEST, SealedDirectory, file_identity

logger = logging.getLogger(__name__)

STEP_NAME = re.compile(r"step-(\d{8,12})")
LEAST_KEPT = 2  # one may turn out to be damaged

Signature = frozenset[tuple[str, tuple[int, ...]]]


def verify(path: Path) -> None:
    """Check every bit of a model directory; an IntegrityError names the file that is not right."""
    SealedDirectory(path).verify()


class CheckpointStore:
    """The directories `checkpoints/step-*`, `best` and `average` of one run."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.directory = run_dir / "checkpoints"
        # What verification found, for as long as the files do not change.
        self._results: dict[int, tuple[Signature, UserError | None]] = {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run directory against other trainers; put in order what a crash left."""
        with locked(self.run_dir):
            recover(self.directory, exclusive=True)
            # Another command may be writing `average` at this moment, so the dead are told apart.
            for name in ("best", "config.yaml", "result.json", "metrics.jsonl"):
                recover(self.run_dir, name=name, exclusive=True)
            recover(self.run_dir, name="average", exclusive=False)
            yield

    def path(self, step: int) -> Path:
        """The path of the checkpoint of `step`, whether it exists or not."""
        return self.directory / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, good or not, in rising order."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.directory}: {error.strerror}") from error
        found = {int(match[1]) for match in map(STEP_NAME.fullmatch, names) if match}
        return sorted(step for step in found if self.path(step).name in names)

    def save(self, step: int, files: Mapping[str, Writer]) -> Path:
        """Write the checkpoint of `step`; after a StorageError all is as it was before."""
        path = self.path(step)
        replace_directory(path, files)
        self._results[step] = (signature(path), None)
        return path

    def put(self, name: str, files: Mapping[str, Writer]) -> Path:
        """Write `best` or `average`, in the place of the one before."""
        assert name in ("best", "average"), name
        replace_directory(self.run_dir / name, files)
        return self.run_dir / name

    def good_steps(self) -> Iterator[int]:
        """The steps whose checkpoints verify, newest first; others are warned of, once."""
        for step in reversed(self.steps()):
            present = signature(self.path(step))
            known, problem = self._results.get(step, (None, None))
            if known != present:
                problem = self._check(step)
                self._results[step] = (present, problem)
            if problem is None:
                yield step

    def _check(self, step: int) -> UserError | None:
        try:
            verify(self.path(step))
        except (IntegrityError, NoCheckpointError) as error:
            if self.path(step).is_dir():  # and not deleted by a run in progress meanwhile
                logger.warning("checkpoint of step %d is not used: %s", step, error)
            return error
        return None

    def newest(self) -> Path | None:
        """The checkpoint of the highest step that verifies; None in a run that has none at all.

        Damaged checkpoints and no good one: NoCheckpointError, and nothing is touched.
        """
        steps = self.steps()
        newest = next(self.good_steps(), None)
        if newest is None and steps:
            raise NoCheckpointError(
                f"{self.directory}: none of the {len(steps)} checkpoints is intact; "
                "restore one from a copy, or start again with another run_dir"
            )
        return None if newest is None else self.path(newest)

    def prune(self, *, keep_last: int, passing: Collection[int] = ()) -> list[int]:
        """Delete what is older than the `keep_last` newest good ones; return the steps deleted.

        Steps in `passing` do not count and go, but for the newest of all.
        Damaged checkpoints do not count either, and two good ones always stay.
        """
        newest = next(self.good_steps(), None)
        regular = (step for step in self.good_steps() if step not in passing or step == newest)
        kept = list(itertools.islice(regular, max(keep_last, LEAST_KEPT)))
        if len(kept) < LEAST_KEPT:
            kept = list(itertools.islice(self.good_steps(), LEAST_KEPT))
        if len(kept) < LEAST_KEPT:
            return []
        gone = {step for step in passing if step < kept[0]} - set(kept)
        deleted = [step for step in self.steps() if step < kept[-1] or step in gone]
        for step in deleted:
            self.remove(step)
        return deleted

    def remove(self, step: int) -> None:
        """Delete one checkpoint."""
        remove_directory(self.path(step))
        self._results.pop(step, None)


def signature(path: Path) -> Signature:
    """A signature that changes when any file of a directory is written, truncated or replaced."""
    try:
        with os.scandir(path) as entries:
            found = {item.name: file_identity(item.stat(follow_symlinks=False)) for item in entries}
    except OSError:
        return frozenset()
    return frozenset(found.items()) if MANIFEST in found else frozenset()
