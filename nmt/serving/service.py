"""Translates texts with the workers: which model, line by line, and back together."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nmt.serving.bodies import AttentionRequest, ModelChoice, TranslationRequest
from nmt.serving.messages import ServedModel
from nmt.serving.pool import Pool
from nmt.serving.waiting import Answer, BatchKind, RefusedError, Submission

LINE_END = re.compile(r"(\r?\n)")


@dataclass(frozen=True)
class TranslatedText:
    """A text and its translations, the best one first."""

    translations: Sequence[str]
    warnings: Sequence[str]


class Service:
    """The models that are served."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @property
    def models(self) -> dict[str, ServedModel]:
        """The models by name, in the order of the command line."""
        return self.pool.models

    def choose(self, choice: ModelChoice) -> ServedModel:
        """The model of that name, or the first one for these languages."""
        if choice.model is not None and choice.model not in self.models:
            names = ", ".join(self.models)
            raise RefusedError(400, f"model: expected one of {names}, got {choice.model!r}")
        fitting = [
            model
            for model in self.models.values()
            if choice.model in (None, model.name)
            and (choice.source or "auto").lower() in ("auto", model.source.lower())
            and (choice.target or model.target).lower() == model.target.lower()
        ]
        if not fitting:
            offered = ", ".join(f"{each.source} to {each.target}" for each in self.models.values())
            raise RefusedError(
                400,
                f"{choice.source or 'auto'} to {choice.target or 'any'} is not supported: expected "
                f"{offered}",
            )
        pairs = {(model.source, model.target) for model in fitting}
        if len(pairs) > 1:
            raise RefusedError(400, "source and target: several models fit, name both languages")
        return fitting[0]

    def submit_translation(
        self, model: ServedModel, lines: Sequence[str], alternatives: int
    ) -> Submission:
        """Lines in the queue."""
        if alternatives >= model.beam:
            raise RefusedError(
                400, f"alternatives: expected at most {model.beam - 1}, got {alternatives}"
            )
        kind = BatchKind("translate", model.name, nbest=alternatives + 1)
        return self.pool.waiting.submit(kind, lines)

    async def translate(
        self, model: ServedModel, request: TranslationRequest
    ) -> list[TranslatedText]:
        """The translations of all texts of a request."""
        parts = [LINE_END.split(text) for text in request.texts]
        lines = [line for pieces in parts for line in pieces[::2]]
        submission = self.submit_translation(model, lines, request.alternatives)
        try:
            answers = iter(await asyncio.gather(*(item.answer for item in submission.items)))
        finally:
            self.pool.waiting.withdraw(submission)
        return [
            join_lines(pieces, [next(answers) for _ in pieces[::2]], request.alternatives + 1)
            for pieces in parts
        ]

    async def attention(self, model: ServedModel, request: AttentionRequest) -> dict[str, Any]:
        """The attention of a sentence pair."""
        item = {"source": request.text, "target": request.target_text}
        submission = self.pool.waiting.submit(BatchKind("attention", model.name), [item])
        try:
            return await submission.items[0].answer
        finally:
            self.pool.waiting.withdraw(submission)


def join_lines(pieces: Sequence[str], answers: Sequence[Answer], count: int) -> TranslatedText:
    """The translations of a text from those of its lines; `pieces` are lines and line ends."""
    translations = []
    for rank in range(count):
        chosen = [answer["nbest"][min(rank, len(answer["nbest"]) - 1)] for answer in answers]
        ends = [*pieces[1::2], ""]
        texts = (one["text"] + end for one, end in zip(chosen, ends, strict=True))
        translations.append("".join(texts))
    warnings = [
        f"line {number}: too long, its last {answer['num_dropped']} subwords are left out"
        for number, answer in enumerate(answers, 1)
        if answer["num_dropped"]
    ]
    return TranslatedText(list(dict.fromkeys(translations)), warnings)
