"""Strict conversion between trees of YAML values and frozen dataclasses.

A dataclass is a section. Its fields are the keys, and their annotations are the types:

    bool, int, float, str, Path, Literal["a", "b"]     with Annotated[..., Range(...) or Names(...)]
    X | Y | None, tuple[X, ...], dict[int or str, X], another dataclass

Class variables describe a section further. `shorthand` names the field or fields that a bare value
sets: `cross: softmax` means `cross: {kind: softmax}`. `variant` names the field that decides which
other fields apply; a file that changes it does not inherit their values. `options` has, for each
value of the variant, the fields that only some variants have. If the section has an
`options_field`, its options are not fields: `options` has their types, and the section takes them
as keyword arguments and stores those that are not None in that field.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from nmt.config.document import Entry, Items, Location, MappingNode, Node, Problem, Scalar, quote
from nmt.config.scalars import MismatchError, describe_type, nearest, read_scalar, show, type_hints

MOST_SUGGESTIONS = 100  # similar names are searched for the first unknown keys only
INVALID = object()  # stands for a value with a reported problem


class Reader:
    """Converts a tree to an instance of `root` and collects all problems."""

    def __init__(self, root: type, problems: list[Problem]) -> None:
        self.root = root
        self.problems = problems
        self.places: dict[str, Location] = {}  # the place of each dotted key that is set
        self.built: dict[str, Any] = {}  # by dotted key, each section without a problem
        self._reported: set[tuple[Location, str]] = set()

    def read(self, node: Node) -> None:
        """Fill `built`; it has the instance under the empty key if there was no problem."""
        self._section(node, self.root, "", None)

    def report(self, place: Location, key: str, message: str) -> None:
        # A bare value that sets several fields is reported once, not once per field.
        if (place, message) not in self._reported:
            self._reported.add((place, message))
            self.problems.append(Problem(place, key, message))

    def _value(self, node: Node, annotation: Any, key: str, default: Any) -> Any:
        """The value of `node` as the annotated type, or INVALID."""
        if dataclasses.is_dataclass(annotation):
            return self._section(node, annotation, key, default)
        if get_origin(annotation) is tuple:
            optional = isinstance(default, tuple)
            return self._tuple(node, get_args(annotation)[0], key, optional=optional)
        if get_origin(annotation) is dict:
            names, items = get_args(annotation)
            return self._dict(node, names, items, key)
        try:
            if not isinstance(node, Scalar):
                raise MismatchError(f"expected {describe_type(annotation)}, got {show(node)}")
            return read_scalar(node, annotation)
        except MismatchError as error:
            self.report(node.place, key, str(error))
            return INVALID

    def _tuple(self, node: Node, annotation: Any, key: str, *, optional: bool) -> Any:
        items = node.items if isinstance(node, Items) else (node,)
        if not items and optional:
            return ()
        if not items:
            is_section = dataclasses.is_dataclass(annotation)
            expected = "at least one item" if is_section else describe_type(annotation)
            self.report(node.place, key, f"expected {expected}, got an empty list")
        values = []
        for index, item in enumerate(items):
            inner = key
            if isinstance(node, Items) and dataclasses.is_dataclass(annotation):
                inner = f"{key}[{index}]"
                self.places[inner] = item.place
            values.append(self._value(item, annotation, inner, None))
        return INVALID if INVALID in values or not items else tuple(values)

    def _dict(self, node: Node, names: Any, annotation: Any, key: str) -> Any:
        if not isinstance(node, MappingNode):
            kind = "whole numbers" if names is int else "names"
            self.report(node.place, key, f"expected a mapping from {kind}, got {show(node)}")
            return INVALID
        values: dict[Any, Any] = {}
        for name, entry in node.entries.items():
            inner = _join(key, name)
            self.places[inner] = entry.place
            number = self._value(Scalar(entry.place, name), names, key, None)
            if number is not INVALID and number in values:
                self.report(entry.place, key, f"{number} is given twice; remove one")
            values[number] = self._value(entry.node, annotation, inner, None)
        return INVALID if INVALID in (*values, *values.values()) else values

    def _section(self, node: Node, section: Any, key: str, default: Any) -> Any:
        """An instance of `section`; missing keys are taken from `default` if it is given."""
        node = expand(node, section)
        if not isinstance(node, MappingNode):
            names = ", ".join(section_keys(section))
            message = f"expected a mapping with some of the keys {names}; got {show(node)}"
            self.report(node.place, key, message)
            return INVALID
        keys = section_keys(section, _chosen_variant(node, section, default))
        values: dict[str, Any] = {}
        guessed = set()
        for name, entry in node.entries.items():
            if name not in keys:
                guessed.add(self._unknown(entry.place, key, name, list(keys)))
                continue
            inner = _join(key, name)
            self.places[inner] = entry.place
            values[name] = self._value(
                entry.node, keys[name].type, inner, keys[name].default(default)
            )
        for name in keys:
            if name in values:
                continue
            value = values[name] = keys[name].default(default)
            if value is dataclasses.MISSING:
                values[name] = INVALID
                if name not in guessed:
                    self.report(node.place, _join(key, name), f"missing; {name!r} has no default")
            elif dataclasses.is_dataclass(value):
                self.built[_join(key, name)] = value
        for name in _foreign_options(section, values):
            if name in node.entries and values[name] not in (None, INVALID):
                message = _foreign_message(section, values, name)
                self.report(node.entries[name].place, _join(key, name), message)
                values[name] = INVALID
        if INVALID in values.values():
            return INVALID
        self.built[key] = section(**values)
        return self.built[key]

    def _unknown(self, place: Location, key: str, name: str, known: list[str]) -> str | None:
        """Report an unknown key; returns the known key that is most similar."""
        message = f"unknown key {quote(name)}"
        if len(self.problems) > MOST_SUGGESTIONS:
            self.report(place, key, message)
            return None
        guess = nearest(name, known)
        self.report(place, key, f"{message}; {self._hint(name, guess, known)}")
        return guess

    def _hint(self, name: str, guess: str | None, known: list[str]) -> str:
        """The key that was probably meant by an unknown one: of its section, or of another."""
        if guess is not None:
            return f"did you mean {guess!r}?"
        paths = {path.split(".")[-1]: path for path in reversed(list(_paths(self.root)))}
        elsewhere = paths.get(nearest(name, paths, least=0.85) or "")
        if elsewhere is None:
            return f"expected one of {', '.join(known)}"
        if "." not in elsewhere:
            return f"{elsewhere!r} is a key of the top level"
        return f"did you mean {elsewhere!r}?"


def expand(node: Node, section: Any) -> Node:
    """The mapping that a shorthand stands for; other nodes are returned unchanged."""
    if not isinstance(section, type) or not dataclasses.is_dataclass(section):
        return node
    if isinstance(node, Scalar) and node.is_empty:
        return MappingNode(node.place)
    names = _shorthand(section)
    if not names:
        return node
    if isinstance(node, Scalar):
        return MappingNode(
            node.place, {name: Entry(node.place, node) for name in names}, complete=True
        )
    # `attention: {kind: x, option: y}` sets each of several sections to the same.
    if isinstance(node, MappingNode) and len(names) > 1 and _is_of_each(node, section, names[0]):
        return MappingNode(node.place, {name: Entry(node.place, node) for name in names})
    return node


def _is_of_each(node: MappingNode, section: Any, name: str) -> bool:
    """Whether a mapping has the keys of the sections that a shorthand sets, not of their parent."""
    inner = type_hints(section)[name]
    if not _shorthand(inner):
        return False
    keys = section_keys(inner)
    return _shorthand(inner)[0] in node.entries or (
        bool(node.entries) and node.entries.keys() <= keys.keys()
    )


def merge(base: Node, over: Node, annotation: Any, *, keep_variants: bool = False) -> Node:
    """`over` merged into `base`: mappings are merged key by key, any other value is replaced.

    Where `over` changes the variant of a section, it replaces the whole section of `base`, whose
    options belong to the other variant. With `keep_variants` they are kept.
    """
    if isinstance(over, MappingNode) or (isinstance(over, Scalar) and over.is_empty):
        over = expand(over, annotation)
    if not isinstance(over, MappingNode) or over.complete:
        return over
    base = expand(base, annotation)
    if not isinstance(base, MappingNode):
        return over
    if not keep_variants and _changes_variant(base, over, annotation):
        return over
    entries = dict(base.entries)
    for name, entry in over.entries.items():
        if name in entries:
            inner, below = _inner_type(annotation, name), entries[name].node
            merged = merge(below, entry.node, inner, keep_variants=keep_variants)
            entry = Entry(entry.place, merged)
        entries[name] = entry
    # A key that is missing from the result is missing from a file, not from the command line.
    place = over.place if over.place.source.has_lines else base.place
    return MappingNode(place, entries, base.complete)


def _changes_variant(base: MappingNode, over: MappingNode, section: Any) -> bool:
    variant = getattr(section, "variant", None)
    if variant is None or variant not in over.entries:
        return False
    return bool(_chosen_variant(base, section) != _chosen_variant(over, section))


def _chosen_variant(mapping: MappingNode, section: Any, default: Any = None) -> Any:
    """The variant that a mapping chooses: the name of an alias, and an invalid name unchanged."""
    variant = getattr(section, "variant", None)
    if variant is None:
        return None
    key = section_keys(section)[variant]
    if variant not in mapping.entries:
        return key.default(default)
    node = mapping.entries[variant].node
    if not isinstance(node, Scalar):
        return node
    try:
        return read_scalar(node, key.type)
    except MismatchError:
        return node.text


class _Dumper(yaml.SafeDumper):
    """Writes text with unprintable characters in double quotes, the style that can escape them."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(instance: Any) -> str:
    """The YAML text of a dataclass: all keys that are not None, in the order of the fields."""
    text = yaml.dump(
        _plain(instance), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    return str(text)


def _plain(value: Any) -> Any:
    """The value as dictionaries, lists and scalars, with shorthands where they say everything."""
    if dataclasses.is_dataclass(value):
        keys = section_keys(type(value), getattr(value, getattr(value, "variant", ""), None))
        values = {name: key.of(value) for name, key in keys.items()}
        for name in _foreign_options(type(value), values):
            if values[name] == keys[name].default(None):
                del values[name]
        plain = {name: _plain(v) for name, v in values.items()}
        plain = {name: v for name, v in plain.items() if v not in (None, {}, [])}
        names = _shorthand(type(value))
        first = plain.get(names[0]) if names else None
        if isinstance(first, str) and plain == dict.fromkeys(names, first):
            return first
        return plain
    if isinstance(value, tuple):
        return _plain(value[0]) if len(value) == 1 else [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items())}
    return str(value) if isinstance(value, Path) else value


def _shorthand(section: Any) -> tuple[str, ...]:
    names = getattr(section, "shorthand", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _foreign_options(section: Any, values: dict[str, Any]) -> list[str]:
    """The keys that the chosen variant does not have."""
    options = getattr(section, "options", {})
    if not options or values[section.variant] not in options:
        return []
    own = options[values[section.variant]]
    return sorted(set().union(*options.values()) - set(own))


def _foreign_message(section: Any, values: dict[str, Any], name: str) -> str:
    chosen = values[section.variant]
    having = [variant for variant, names in section.options.items() if name in names]
    own = ", ".join(sorted(section.options[chosen])) or "none"
    return (
        f"{section.variant} {chosen!r} has no option {name!r} (its own: {own}); "
        f"it belongs to {', '.join(having)}"
    )


def _inner_type(annotation: Any, name: str) -> Any:
    if dataclasses.is_dataclass(annotation):
        key = section_keys(annotation).get(name)
        return None if key is None else key.type
    return get_args(annotation)[1] if get_origin(annotation) is dict else None


@dataclasses.dataclass(frozen=True)
class _Key:
    """A key of a section: a field, or an option that is stored in `options_field`."""

    name: str
    type: Any
    field: Any = None
    options_field: str | None = None

    def default(self, instance: Any) -> Any:
        """The value if the key is missing, or MISSING."""
        if instance is not None and instance is not dataclasses.MISSING:
            return self.of(instance)
        if self.field is None:
            return None
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return self.field.default

    def of(self, instance: Any) -> Any:
        """The value in an instance."""
        if self.options_field is None:
            return getattr(instance, self.name)
        return getattr(instance, self.options_field).get(self.name)


def section_keys(section: Any, chosen: Any = None) -> dict[str, _Key]:
    """The keys of a section; options have the types of the chosen variant."""
    options_field = getattr(section, "options_field", None)
    hints = type_hints(section)
    keys: dict[str, _Key] = {}
    for field in dataclasses.fields(section):
        if field.name != options_field:
            keys[field.name] = _Key(field.name, hints[field.name], field)
            continue
        variants = list(section.options)
        if chosen in variants:
            variants.insert(0, chosen)
        for variant in variants:
            for name, annotation in section.options[variant].items():
                keys.setdefault(name, _Key(name, annotation, options_field=options_field))
    return keys


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _paths(section: Any, key: str = "") -> Iterator[str]:
    """The dotted names of all keys below a section, parents first."""
    for name, described in section_keys(section).items():
        yield _join(key, name)
        inner = item_type(described.type)
        if dataclasses.is_dataclass(inner):
            yield from _paths(inner, _join(key, name))


def item_type(annotation: Any) -> Any:
    """The type of the items of a list; any other type unchanged."""
    return get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
