"""Reads a YAML text as a dataclass (see schema.py), with all its problems in one error."""

from pathlib import Path
from typing import TypeVar

from nmt.config.document import Problem, Source, UnreadableError, parse_document
from nmt.config.schema import Reader
from nmt.errors import ConfigError

MOST_PROBLEMS_SHOWN = 100

Section = TypeVar("Section")


def parse_section(text: str, section: type[Section], *, name: str) -> Section:
    """The instance of a dataclass that a YAML text describes, whose paths are not resolved.

    Raises ConfigError with all problems; `name` stands for the text in messages.
    """
    problems: list[Problem] = []
    try:
        tree = parse_document(text, Source(name, Path()), problems)
    except UnreadableError as error:
        raise config_error(name, [error.problem]) from None
    reader = Reader(section, problems)
    reader.read(tree)
    if problems:
        raise config_error(name, problems)
    built: Section = reader.built[""]
    return built


def config_error(name: str, problems: list[Problem]) -> ConfigError:
    """One line for one problem; for several a heading and one line per problem, sorted by file."""
    if len(problems) == 1:
        return ConfigError(str(problems[0]))
    files: dict[str, int] = {name: 0}
    for problem in problems:
        files.setdefault(problem.place.source.name, len(files))
    problems = sorted(
        problems, key=lambda problem: (files[problem.place.source.name], problem.place.line)
    )
    lines = [f"  {problem}" for problem in problems[:MOST_PROBLEMS_SHOWN]]
    if len(problems) > MOST_PROBLEMS_SHOWN:
        lines.append(f"  ... and {len(problems) - MOST_PROBLEMS_SHOWN} more")
    return ConfigError("\n".join([f"{len(problems)} problems in {name}:", *lines]))
