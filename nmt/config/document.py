"""YAML text to a tree that remembers where every value stands, with all that is dangerous refused.

Scalars stay text: what `1e-4`, `no` or `010` means depends on what is expected in that place, and
only the schema knows that.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 20_000  # a thousand times a usual file; bounds the work on a hostile one

# libyaml reads a megabyte in a tenth of a second; PyYAML's own parser, its stand-in, needs minutes.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

NULL_WORDS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True)
class Source:
    """Where text comes from: its name in messages, and what its relative paths are relative to."""

    name: str
    directory: Path
    has_lines: bool = True


@dataclass(frozen=True)
class Place:
    """A position in a source; line and column count from 1."""

    source: Source
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}" if self.source.has_lines else self.source.name


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, at a place and (unless empty) under a dotted key."""

    place: Place
    key: str
    message: str

    def __str__(self) -> str:
        key = self.key if self.key.isprintable() and len(self.key) <= 200 else quote(self.key)
        return ": ".join(part for part in (str(self.place), key, self.message) if part)


def quote(text: str) -> str:
    """Somebody's text in quotes, fit for a message: short, and without control characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


class UnreadableError(Exception):
    """A document that cannot be read at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Scalar:
    """One value as it is written; `quoted` tells `"no"` from `no`."""

    place: Place
    text: str
    quoted: bool = False

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text in NULL_WORDS

    @property
    def is_empty(self) -> bool:
        """Nothing after the colon: a section whose lines are all commented out, for instance."""
        return not self.quoted and self.text == ""


@dataclass(frozen=True)
class Items:
    """A YAML sequence."""

    place: Place
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Entry:
    """A key's place and its value."""

    place: Place
    node: "Node"


@dataclass(frozen=True)
class Mapping:
    """A YAML mapping; a `complete` one replaces what it is laid over instead of adding to it."""

    place: Place
    entries: dict[str, Entry] = field(default_factory=dict)
    complete: bool = False


Node = Scalar | Items | Mapping


def read_document(path: Path, source: Source, problems: list[Problem]) -> Node:
    """The tree of a file; what can be survived (duplicate keys) is added to `problems`."""

    def unreadable(message: str, line: int | None = None) -> UnreadableError:
        at = Place(source, line) if line else Place(Source(source.name, source.directory, False))
        return UnreadableError(Problem(at, "", message))

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise unreadable(f"cannot read the config file: {error.strerror}") from error
    except ValueError as error:  # a NUL character in the name
        raise unreadable(f"cannot read the config file: {error}") from error
    if len(data) > MAX_BYTES:
        raise unreadable(f"expected a config file of at most {MAX_BYTES:,} bytes, this is larger")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise unreadable(f"expected UTF-8 text, got invalid bytes ({error.reason})", line) from None
    return parse_document(text, source, problems)


def parse_document(text: str, source: Source, problems: list[Problem]) -> Node:
    """The tree of a YAML text; raises UnreadableError where there is no telling what is meant."""
    if len(text) > MAX_BYTES:
        message = f"expected at most {MAX_BYTES:,} characters of YAML, this is longer"
        raise UnreadableError(Problem(Place(source), "", message))
    builder = _Builder(text, source, problems)
    try:
        return builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
        reasons = [reason for reason in (error.context, error.problem) if reason]
        message = f"this is not valid YAML: {', '.join(reasons)}"
        raise UnreadableError(Problem(place, "", message)) from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        # Characters that YAML does not allow; only these errors come without a mark.
        reason = getattr(error, "reason", "invalid characters")
        message = f"this is not valid YAML: {reason}"
        raise UnreadableError(Problem(Place(source), "", message)) from None


class _Builder:
    """Builds the tree from parser events, so that nothing is ever constructed from a tag."""

    def __init__(self, text: str, source: Source, problems: list[Problem]) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        self.source = source
        self.problems = problems
        self.values = 0

    def document(self) -> Node:
        """The only document of the text; an empty text is an empty scalar."""
        root: Node = Scalar(Place(self.source), "")
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.refuse(event, "expected one YAML document, got a second one ('---')")
            elif isinstance(event, yaml.NodeEvent):
                root = self.node(event, ())
        return root

    def node(self, event: Any, keys: tuple[str, ...]) -> Node:
        """The tree that starts with this event; `keys` lead to it, an item of a list is `-`."""
        place = self.place(event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.refuse(
                event, "YAML anchors and aliases (&name, *name) are not supported; repeat the value"
            )
        if event.tag is not None:
            raise self.refuse(
                event,
                f"YAML tags ({quote(event.tag)}) are not supported; quote text to keep it text",
            )
        if len(keys) >= MAX_DEPTH:
            raise self.refuse(event, f"expected at most {MAX_DEPTH} levels of nesting, got more")
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.refuse(event, f"expected at most {MAX_VALUES:,} values, got more")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, event.value, quoted=event.style in ("'", '"', "|", ">"))
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(item, (*keys, "-")))
            return Items(place, tuple(items))
        return self.mapping(place, keys)

    def mapping(self, place: Place, keys: tuple[str, ...]) -> Mapping:
        """The rest of a mapping; the first of two equal keys is kept and both are reported."""
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, (*keys, "?"))
            if not isinstance(key, Scalar) or key.is_null:
                raise self.refuse(event, "expected a word as key, got a list, a mapping or nothing")
            value = self.node(next(self.events), (*keys, key.text))
            earlier = entries.get(key.text)
            if earlier is None:
                entries[key.text] = Entry(key.place, value)
            else:
                message = (
                    f"key {quote(key.text)} stands twice, on line {earlier.place.line} and on line "
                    f"{key.place.line}; remove one"
                )
                self.problems.append(Problem(key.place, ".".join(keys), message))
        return Mapping(place, entries)

    def place(self, event: Any) -> Place:
        return Place(self.source, event.start_mark.line + 1, event.start_mark.column + 1)

    def refuse(self, event: Any, message: str) -> UnreadableError:
        return UnreadableError(Problem(self.place(event), "", message))


def resolve_path(text: str, directory: Path) -> Path:
    """An absolute path: `~` is the home directory, the rest is relative to `directory`."""
    joined = os.path.join(os.path.realpath(directory), os.path.expanduser(text))
    return Path(os.path.normpath(joined))
