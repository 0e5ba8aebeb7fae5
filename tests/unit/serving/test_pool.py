"""The workers of a server have the same models."""

import asyncio
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from nmt.errors import UserError
from nmt.serving import pool as module
from nmt.serving.pool import STARTS, Pool


class Worker:
    """Stands for a process; each one that starts loads the next version of the models."""

    versions: ClassVar[Iterator[str]]
    started: ClassVar[list["Worker"]]

    def __init__(self) -> None:
        self.models = {"model": next(self.versions)}
        self.killed = False
        self.started.append(self)

    @classmethod
    async def start(cls, *_: object) -> "Worker":
        return cls()

    def kill(self) -> None:
        self.killed = True

    async def end(self) -> int:
        return 0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    async def wait(*_: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(module, "ServingWorker", Worker)
    Worker.started = []
    waiting: Any = SimpleNamespace(wake=None, next_batch=wait)
    nothing: Any = None
    return Pool(nothing, waiting, nothing, seconds=1.0, on_change=lambda: None)


def start(pool: Pool) -> None:
    async def start_and_stop() -> None:
        await pool.start(3)
        assert len(pool.workers) == 3
        assert not any(worker.killed for worker in Worker.started[-3:])
        await pool.stop()

    asyncio.run(start_and_stop())


def test_workers_that_loaded_different_models_load_them_again(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    Worker.versions = itertools.chain(["old", "new", "new"], itertools.repeat("new"))
    start(pool)
    assert pool.models == {"model": "new"}
    assert all(worker.killed for worker in Worker.started[:3])
    assert "changed while they were loaded" in caplog.text


def test_models_that_never_stay_are_told(pool: Pool) -> None:
    Worker.versions = map(str, itertools.count())
    with pytest.raises(UserError, match="the models change all the time"):
        start(pool)
    assert len(Worker.started) == 3 * STARTS
    assert all(worker.killed for worker in Worker.started)
