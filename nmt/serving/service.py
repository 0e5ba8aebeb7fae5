"""Translates texts with the workers: which model, line by line, and back together."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from nmt.serving.bodies import AttentionRequest, ModelChoice
from nmt.serving.messages import ServedModel
from nmt.serving.waiting import Answer, BatchKind, RefusedError, Submission, WaitingLines

LINE_END = re.compile(r"(\r?\n)")
STREAM_WINDOW = 256  # lines of a stream that are in the queue at a time
BUSY_PAUSE = 0.05  # seconds until a stream tries again to put lines into a full queue


@dataclass(frozen=True)
class TranslatedText:
    """The translations of a text, the best one first."""

    translations: Sequence[str]
    warnings: Sequence[str]


def choose_model(models: Mapping[str, ServedModel], choice: ModelChoice) -> ServedModel:
    """The model of that name, or the first one for these languages."""
    if choice.model is not None and choice.model not in models:
        raise RefusedError(400, f"model: expected one of {', '.join(models)}")
    source, target = (choice.source or "auto").lower(), (choice.target or "").lower()
    fitting = [
        model
        for model in models.values()
        if choice.model in (None, model.name)
        and source in ("auto", model.source.lower())
        and target in ("", model.target.lower())
    ]
    if not fitting:
        offered = ", ".join(dict.fromkeys(f"{x.source} to {x.target}" for x in models.values()))
        raise RefusedError(400, f"source and target: expected one of these pairs: {offered}")
    if len({(model.source, model.target) for model in fitting}) > 1:
        raise RefusedError(400, "source and target: several models fit; name both languages")
    return fitting[0]


def check_alternatives(model: ServedModel, alternatives: int) -> None:
    """Raise for more alternatives than the search finds."""
    if alternatives >= model.beam:
        raise RefusedError(
            400, f"alternatives: expected at most {model.beam - 1}, got {alternatives}"
        )


async def translate_texts(
    waiting: WaitingLines, model: ServedModel, texts: Sequence[str], alternatives: int
) -> list[TranslatedText]:
    """The translations of all texts."""
    check_alternatives(model, alternatives)
    parts = [LINE_END.split(text) for text in texts]
    lines = [line for pieces in parts for line in pieces[::2]]
    submission = waiting.submit(BatchKind("translate", model.name, alternatives + 1), lines)
    try:
        answers = iter([await item.answer for item in submission.items])
    finally:
        waiting.withdraw(submission)
    return [
        join_lines(pieces, [next(answers) for _ in pieces[::2]], alternatives + 1)
        for pieces in parts
    ]


def join_lines(pieces: Sequence[str], answers: Sequence[Answer], count: int) -> TranslatedText:
    """The translations of a text from those of its lines; `pieces` are lines and line ends."""
    ends = [*pieces[1::2], ""]
    translations = []
    for rank in range(count):
        chosen = [answer["nbest"][min(rank, len(answer["nbest"]) - 1)] for answer in answers]
        parts = [one["text"] + end for one, end in zip(chosen, ends, strict=True)]
        translations.append("".join(parts))
    warnings = [
        warning
        for number, answer in enumerate(answers, 1)
        if (warning := length_warning(number, answer))
    ]
    return TranslatedText(list(dict.fromkeys(translations)), warnings)


def length_warning(number: int, answer: Answer) -> str:
    """The warning about a line that was too long for the model, or nothing."""
    dropped = answer["num_dropped"]
    return f"line {number}: too long, its last {dropped} subwords are left out" if dropped else ""


def cut_lines(text: str) -> Iterator[str]:
    """The lines of a text, one at a time: as objects they may take 25 times its memory."""
    start = 0
    for end in LINE_END.finditer(text):
        yield text[start : end.start()]
        start = end.end()
    yield text[start:]


async def translate_lines(
    waiting: WaitingLines, model: ServedModel, lines: Iterable[str], *, seconds: float
) -> AsyncIterator[Answer]:
    """The answers to any number of lines, in order, each as soon as those before it are there.

    The next lines are put into the queue before the answers to those before are read, but never
    all of them. Each answer may take `seconds`.
    """
    unread = iter(lines)
    windows = iter(lambda: list(islice(unread, STREAM_WINDOW)), [])
    kind = BatchKind("translate", model.name)
    submissions: deque[Submission] = deque()
    try:
        for window in chain(windows, [None]):  # after the last one there are only answers
            if window is not None:
                async with asyncio.timeout(seconds):
                    while submissions and waiting.full:
                        await asyncio.sleep(BUSY_PAUSE)
                submissions.append(waiting.submit(kind, window))
            if len(submissions) > (window is not None):
                for item in submissions[0].items:
                    async with asyncio.timeout(seconds):
                        answer = await item.answer
                    yield answer
                waiting.withdraw(submissions.popleft())
    finally:
        for submission in submissions:
            waiting.withdraw(submission)


async def find_attention(
    waiting: WaitingLines, model: ServedModel, request: AttentionRequest
) -> dict[str, Any]:
    """The attention of a sentence pair."""
    item = {"source": request.text, "target": request.target_text}
    submission = waiting.submit(BatchKind("attention", model.name), [item])
    try:
        return await submission.items[0].answer
    finally:
        waiting.withdraw(submission)
