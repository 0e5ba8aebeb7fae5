"""Whatever happens to a store, in whatever order: the best of what is whole is found again."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.small_models import (
    crash_at,
    flip_bit,
    leftover_names,
    plain_files,
    quick_directory,
    truncate,
)

from nmt.checkpoint.store import CheckpointStore, verify
from nmt.errors import UserError
from nmt.storage.directories import settled


class StoreMachine(RuleBasedStateMachine):
    """A store against the set of steps that ought to be good."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(dir=quick_directory(Path(tempfile.gettempdir()))))
        self.step = 1
        self.good = {1}
        self.start()
        self.store.save(1, plain_files(1))

    def start(self) -> None:
        """A new process: it remembers nothing."""
        self.store = CheckpointStore(self.directory)
        with self.store.lock():
            pass

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)

    def is_good(self, step: int) -> bool:
        try:
            verify(self.store.path(step))
        except UserError:
            return False
        return True

    @rule(more=st.integers(1, 3))
    def save(self, more: int) -> None:
        self.step += more
        self.store.save(self.step, plain_files(self.step))
        self.good.add(self.step)

    @rule(operation=st.integers(0, 12), again=st.booleans())
    def die_while_saving(self, operation: int, again: bool) -> None:
        step = self.step if again else self.step + 1
        with crash_at(operation) as done:
            self.store.save(step, plain_files(step))
        self.start()
        # It was through before that, or it died after the decisive rename.
        if len(done) <= operation or self.is_good(step):
            self.good.add(step)
        self.step = max(self.good)
        assert leftover_names(self.store.directory) == []

    @rule(keep_last=st.integers(1, 4))
    def prune(self, keep_last: int) -> None:
        expected = sorted(self.good)[-max(2, keep_last) :]
        self.store.prune(keep_last=keep_last)
        self.good &= set(self.store.steps())
        assert sorted(self.good) == expected

    @rule(operation=st.integers(0, 12), keep_last=st.integers(1, 4))
    def die_while_pruning(self, operation: int, keep_last: int) -> None:
        expected = set(sorted(self.good)[-max(2, keep_last) :])
        with crash_at(operation):
            self.store.prune(keep_last=keep_last)
        self.start()
        self.good &= set(self.store.steps())
        assert self.good >= expected

    @precondition(lambda self: len(self.good) >= 2)
    @rule(data=st.data(), cut=st.booleans())
    def damage(self, data: st.DataObject, cut: bool) -> None:
        step = data.draw(st.sampled_from(sorted(self.good)))
        files = sorted(self.store.path(step).iterdir())
        file = data.draw(st.sampled_from(files))
        size = file.stat().st_size
        if cut:
            truncate(file, data.draw(st.integers(0, size - 1)))
        else:
            flip_bit(file, data.draw(st.integers(0, 8 * size - 1)))
        self.good.remove(step)

    @rule()
    def resume(self) -> None:
        self.start()
        self.step = max(self.good)

    @rule(operation=st.integers(0, 20))
    def die_while_replacing_best(self, operation: int) -> None:
        before = (self.directory / "best").exists()
        with crash_at(operation):
            self.store.put("best", plain_files(self.step))
        self.start()
        best = settled(self.directory / "best")
        if before:
            assert best is not None
        if best is not None:
            verify(best)

    @invariant()
    def newest_is_the_highest_good_step(self) -> None:
        if hasattr(self, "good"):
            assert self.store.newest() == self.store.path(max(self.good))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=40, stateful_step_count=25, report_multiple_bugs=False)


@pytest.mark.slow
def test_ten_thousand_events() -> None:
    """250 stories of up to 40 events."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=250, stateful_step_count=40)
    )
