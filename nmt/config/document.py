"""Parsing YAML text into a tree that knows the line of each value; dangerous features are rejected.

Scalars stay text: the meaning of `1e-4`, `no` or `010` depends on the expected type, which only the
schema knows.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

MAX_CONFIG_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 20_000  # a thousand times a usual file; limits the work on a hostile one

# libyaml reads a megabyte in a tenth of a second; the parser in Python needs minutes.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

NULL_WORDS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True)
class Source:
    """The origin of text: its name in messages, and the directory of its relative paths."""

    name: str
    directory: Path
    has_lines: bool = True


@dataclass(frozen=True)
class Location:
    """A position in a source; line and column count from 1."""

    source: Source
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}" if self.source.has_lines else self.source.name


@dataclass(frozen=True)
class Problem:
    """An error at a place and, unless empty, under a dotted key."""

    place: Location
    key: str
    message: str

    def __str__(self) -> str:
        key = self.key if self.key.isprintable() and len(self.key) <= 200 else quote(self.key)
        return ": ".join(part for part in (str(self.place), key, self.message) if part)


def quote(text: str) -> str:
    """Text in quotes for a message, shortened and without control characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


class UnreadableError(Exception):
    """A document that cannot be read at all."""

    def __init__(self, place: Location, message: str, *, key: str = "") -> None:
        self.problem = Problem(place, key, message)
        super().__init__(str(self.problem))


@dataclass(frozen=True)
class Scalar:
    """A value as it is written; `quoted` tells `"no"` from `no`."""

    place: Location
    text: str
    quoted: bool = False

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text in NULL_WORDS

    @property
    def is_empty(self) -> bool:
        """Whether nothing follows the colon, as in a section whose lines are commented out."""
        return not self.quoted and self.text == ""


@dataclass(frozen=True)
class Items:
    """A YAML sequence."""

    place: Location
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Entry:
    """The value of a key, and the place of the key."""

    place: Location
    node: "Node"


@dataclass(frozen=True)
class MappingNode:
    """A YAML mapping; a `complete` one replaces the mapping it is merged into."""

    place: Location
    entries: dict[str, Entry] = field(default_factory=dict)
    complete: bool = False


Node = Scalar | Items | MappingNode


def read_document(path: Path, source: Source, problems: list[Problem]) -> Node:
    """The tree of a file; duplicate keys are added to `problems`."""
    whole = Location(replace(source, has_lines=False))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(whole, f"cannot read the config file: {reason}") from error
    if len(data) > MAX_CONFIG_BYTES:
        message = f"expected a config file of at most {MAX_CONFIG_BYTES:,} bytes, this is larger"
        raise UnreadableError(whole, message)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Location(source, data.count(b"\n", 0, error.start) + 1)
        message = f"expected UTF-8 text, got invalid bytes ({error.reason})"
        raise UnreadableError(place, message) from None
    return parse_document(text, source, problems)


def parse_document(text: str, source: Source, problems: list[Problem]) -> Node:
    """The tree of a YAML text; raises UnreadableError if the text is not valid."""
    if len(text) > MAX_CONFIG_BYTES:
        message = f"expected at most {MAX_CONFIG_BYTES:,} characters of YAML, this is longer"
        raise UnreadableError(Location(source), message)
    try:
        return _Builder(text, source, problems).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Location(source, mark.line + 1, mark.column + 1) if mark else Location(source)
        if mark is not None and _starts_with_tab(text, mark.line):
            message = "this is not valid YAML: the line is indented with a tab; use spaces"
            raise UnreadableError(place, message) from None
        reasons = [reason for reason in (error.context, error.problem) if reason]
        raise UnreadableError(place, f"this is not valid YAML: {', '.join(reasons)}") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        # Characters that YAML does not allow; only these errors have no mark.
        reason = getattr(error, "reason", "invalid characters")
        raise UnreadableError(Location(source), f"this is not valid YAML: {reason}") from None


def _starts_with_tab(text: str, line: int) -> bool:
    """Whether there is a tab in the indentation of a line, counted from 0."""
    lines = text.split("\n")
    if line >= len(lines):
        return False
    content = lines[line].lstrip()
    return "\t" in lines[line][: len(lines[line]) - len(content)]


class _Builder:
    """Builds the tree from parser events, so that no tag can construct an object."""

    def __init__(self, text: str, source: Source, problems: list[Problem]) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        self.source = source
        self.problems = problems
        self.values = 0

    def document(self) -> Node:
        """The only document of the text; the document of an empty text is an empty scalar."""
        root: Node = Scalar(Location(self.source), "")
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.reject(event, "expected one YAML document, got a second one ('---')")
            elif isinstance(event, yaml.NodeEvent):
                root = self.node(event, ())
        return root

    def node(self, event: Any, keys: tuple[str, ...]) -> Node:
        """The tree that starts with this event; `keys` is its path, with `-` for items of lists."""
        place = self.place(event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            message = "YAML anchors and aliases (&name, *name) are not supported; repeat the value"
            raise self.reject(event, message)
        if event.tag is not None:
            message = (
                f"YAML tags ({quote(event.tag)}) are not supported; quote text to keep it text"
            )
            raise self.reject(event, message)
        if len(keys) >= MAX_DEPTH:
            raise self.reject(event, f"expected at most {MAX_DEPTH} levels of nesting, got more")
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.reject(event, f"expected at most {MAX_VALUES:,} values, got more")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, event.value, quoted=event.style in ("'", '"', "|", ">"))
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(item, (*keys, "-")))
            return Items(place, tuple(items))
        return self.mapping(place, keys)

    def mapping(self, place: Location, keys: tuple[str, ...]) -> MappingNode:
        """The rest of a mapping; the first of two equal keys is kept, and the second reported."""
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, (*keys, "?"))
            if not isinstance(key, Scalar) or key.is_null:
                raise self.reject(event, "expected a word as key, got a list, a mapping or nothing")
            value = self.node(next(self.events), (*keys, key.text))
            earlier = entries.get(key.text)
            if earlier is None:
                entries[key.text] = Entry(key.place, value)
            else:
                lines = f"on line {earlier.place.line} and on line {key.place.line}"
                message = f"key {quote(key.text)} is given twice, {lines}; remove one"
                self.problems.append(Problem(key.place, ".".join(keys), message))
        return MappingNode(place, entries)

    def place(self, event: Any) -> Location:
        return Location(self.source, event.start_mark.line + 1, event.start_mark.column + 1)

    def reject(self, event: Any, message: str) -> UnreadableError:
        return UnreadableError(self.place(event), message)


def resolve_path(text: str, directory: Path) -> Path:
    """The absolute path of text: `~` is the home directory, others are relative to `directory`."""
    joined = os.path.join(os.path.realpath(directory), os.path.expanduser(text))
    return Path(os.path.normpath(joined))
