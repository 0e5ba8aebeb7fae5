"""The translation of large files on a Ray cluster."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nmt.config.search_options import SearchOptions
from nmt.decoding.lines import OnBadLine, TranslatedLine, bad_line, number_lines
from nmt.decoding.ray_cluster import Blocks
from nmt.decoding.streaming import LineSource
from nmt.decoding.text_blocks import read_block
from nmt.decoding.translation import Details
from nmt.decoding.translator import Translator
from nmt.decoding.workers import WorkerSettings


@dataclass(frozen=True)
class TranslationJob:
    """Translates lines: the text, with the directory that its paths are relative to, and how."""

    directory: Path
    paths: tuple[Path, ...]  # the source and, if they are given, the prefixes
    settings: WorkerSettings
    options: SearchOptions
    details: Details

    def load(self, device: str) -> Callable[[Blocks], Iterator[TranslatedLine]]:
        """The translation of blocks."""
        return functools.partial(self.translate, self.settings.load(device))

    def translate(self, translator: Translator, blocks: Blocks) -> Iterator[TranslatedLine]:
        """The lines of blocks with their translations, in order."""
        sources = [
            LineSource(read_block(self.directory / path, block), str(path))
            for path, block in zip(self.paths, blocks, strict=True)
        ]
        numbered = number_lines(sources[0], sources[1] if sources[1:] else None, "skip")
        lines = [replace(line, number=blocks[0].first + line.number) for line in numbered]
        found = dict(translator.translate_lines(lines, self.options, self.details))
        for position, line in enumerate(lines):
            yield TranslatedLine(line, found[position])


def check_lines(
    answers: Iterable[TranslatedLine], on_bad_line: OnBadLine
) -> Iterator[TranslatedLine]:
    """The answers; raises for a line that could not be read, if that is an error."""
    for answer in answers:
        if answer.line.problem and on_bad_line == "error":
            raise bad_line(answer.line.problem)
        yield answer
