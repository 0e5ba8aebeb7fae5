"""How lines of several requests are put together into batches."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")

from nmt.serving.messages import ServedModel
from nmt.serving.service import LINE_END, cut_lines, translate_lines
from nmt.serving.waiting import (
    BATCH_LINES,
    LEAST_LINES,
    BatchKind,
    LineBatch,
    RefusedError,
    WaitingLines,
)

KIND = BatchKind("translate", "model")
MODEL = ServedModel("model", "", "en", "de", "", 4, {}, {}, 4)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def take(waiting: WaitingLines) -> LineBatch:
    batch = await waiting.next_batch(lambda: True)
    assert batch is not None
    return batch


def contents(batch: LineBatch) -> list[Any]:
    return [item.content for item in batch.items]


def test_requests_take_turns() -> None:
    async def work() -> None:
        waiting = WaitingLines(wait=0.0, limit=1000)
        waiting.submit(KIND, [f"long {n}" for n in range(200)])
        waiting.submit(KIND, ["short 0", "short 1"])
        first = contents(await take(waiting))
        assert first[:5] == ["long 0", "short 0", "long 1", "short 1", "long 2"]
        assert len(first) == BATCH_LINES
        assert contents(await take(waiting)) == [f"long {n}" for n in range(126, 200)]
        assert len(waiting) == 0

    run(work())


def test_idle_workers_share_lines_and_kinds_are_not_mixed() -> None:
    async def work() -> None:
        waiting = WaitingLines(wait=0.0, limit=1000)
        idle = [asyncio.create_task(take(waiting)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting.submit(KIND, ["a", "b", "c", "d"])
        assert [contents(await each) for each in idle] == [["a", "b"], ["c", "d"]]
        other = BatchKind("translate", "model", nbest=2)
        waiting.submit(KIND, ["a"])
        waiting.submit(other, ["b"])
        waiting.submit(KIND, ["c"])
        assert contents(await take(waiting)) == ["a", "c"]
        assert (await take(waiting)).kind == other

    run(work())


def test_a_slow_model_gets_about_a_second_of_work() -> None:
    """So that a worker is soon free again when the clients of its lines have gone."""

    async def work() -> None:
        waiting = WaitingLines(wait=0.0, limit=1000)
        waiting.submit(KIND, ["a" * 100] * 110)
        first = await take(waiting)
        assert len(first.items) == 110
        for seconds, expected in ((4.0, 27), (1000.0, LEAST_LINES)):
            for _ in range(10):
                waiting.note_speed(first, seconds)
            submission = waiting.submit(KIND, ["a" * 100] * 60)
            assert len((await take(waiting)).items) == expected
            waiting.withdraw(submission)

    run(work())


def test_lines_of_a_worker_that_ended_are_tried_again_alone_and_twice() -> None:
    async def work() -> None:
        waiting = WaitingLines(wait=0.0, limit=1000)
        submission = waiting.submit(KIND, ["a", "b"])
        waiting.put_back(await take(waiting))
        waiting.submit(KIND, ["c"])
        again = [await take(waiting) for _ in range(3)]
        assert sorted(map(contents, again)) == [["a"], ["b"], ["c"]]
        waiting.put_back(next(batch for batch in again if contents(batch) == ["a"]))
        assert not submission.items[0].answer.done()
        waiting.put_back(await take(waiting))
        with pytest.raises(RefusedError, match="3 workers ended"):
            await submission.items[0].answer
        assert len(waiting) == 0
        assert not submission.items[1].answer.done()

    run(work())


def test_a_full_queue_refuses_and_withdrawn_lines_leave_it() -> None:
    async def work() -> None:
        waiting = WaitingLines(wait=0.0, limit=3)
        submission = waiting.submit(KIND, ["a", "b", "c", "d"])
        with pytest.raises(RefusedError) as refused:
            waiting.submit(KIND, ["e"])
        assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "5"})
        waiting.withdraw(submission)
        assert len(waiting) == 0
        waiting.submit(KIND, ["f"])
        assert contents(await take(waiting)) == ["f"]

    run(work())


def test_a_worker_waits_while_lines_keep_coming() -> None:
    async def work() -> None:
        waiting = WaitingLines(wait=0.05, limit=1000)
        batch = asyncio.create_task(take(waiting))
        for n in range(4):
            waiting.submit(KIND, [n * "x"])
            await asyncio.sleep(0.02)
        assert len((await batch).items) == 4

    run(work())


@pytest.mark.parametrize("text", ["", "a", "\n", "a\r\n\nb\n", "a\rb\r\nc"])
def test_the_lines_of_a_text_are_cut(text: str) -> None:
    assert list(cut_lines(text)) == LINE_END.split(text)[::2]


def test_a_stream_puts_some_lines_into_the_queue_at_a_time() -> None:
    async def work() -> None:
        waiting = WaitingLines(wait=0.0, limit=10_000)
        lines = [str(n) for n in range(2000)]
        most = num_read = 0

        def read() -> Iterator[str]:
            nonlocal num_read
            for line in lines:
                num_read += 1
                yield line

        async def answer() -> None:
            nonlocal most
            while True:
                most = max(most, len(waiting))
                for item in (await take(waiting)).items:
                    item.answer.set_result({"text": item.content})

        worker = asyncio.create_task(answer())
        found = []
        async for one in translate_lines(waiting, MODEL, read(), seconds=9):
            found.append(one["text"])
            assert num_read <= len(found) + 512
        worker.cancel()
        assert found == lines
        assert most <= 512

    run(work())
