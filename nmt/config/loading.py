"""Loading configs from files and the command line, and writing them as YAML."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import nmt
from nmt.config import checks
from nmt.config.config import Config
from nmt.config.document import (
    Entry,
    Location,
    MappingNode,
    Node,
    Problem,
    Scalar,
    Source,
    UnreadableError,
    parse_document,
    quote,
    read_document,
    resolve_path,
)
from nmt.config.outside_kinds import load_named_kinds, needed_references
from nmt.config.schema import Reader, expand, merge, to_yaml
from nmt.config.sections import config_error
from nmt.config.start import with_start

EXTENDS = "extends"
BUILTIN = Path(nmt.__file__).parent / "builtin"


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a file and the files it extends, with overrides `section.key=value`.

    Raises ConfigError with all problems. Paths are relative to the file that contains them, paths
    of overrides to the working directory. If there is no such file, the path may be the name of a
    built-in config, whose run directory is runs/NAME in the working directory. What a config with
    `train.start_from` leaves open of model and codec is as that model has it.
    """
    problems: list[Problem] = []
    if not path.exists() and str(path) in builtin_configs():
        overrides = [f"run_dir=runs/{path}", *overrides]
        path = BUILTIN / f"{path}.yaml"
    try:
        tree = _read_with_bases(path, str(path), problems, [])
    except UnreadableError as error:
        raise config_error(str(path), [*problems, error.problem]) from None
    command_line = Source("command line", Path.cwd(), has_lines=False)
    changes: Node = MappingNode(Location(command_line))
    for override in overrides:
        try:
            change = _parse_override(override, command_line, problems)
            load_named_kinds(change, from_user=True)
        except UnreadableError as error:
            problems.append(error.problem)
            continue
        changes = merge(changes, change, Config, keep_variants=True)
    whole = merge(tree, changes, Config)
    try:
        whole = with_start(whole)
    except UnreadableError as error:
        raise config_error(str(path), [*problems, error.problem]) from None
    return _build(whole, tree.place, problems)


def builtin_configs() -> list[str]:
    """The names of the configs that are part of the package."""
    return sorted(path.stem for path in BUILTIN.glob("*.yaml"))


def parse_config(text: str, *, name: str, directory: Path) -> Config:
    """The config of a YAML text, which cannot extend another; `name` stands for it in messages.

    It loads no code of `kinds` that the user has not named elsewhere: models come with such a text.
    """
    problems: list[Problem] = []
    try:
        tree = parse_document(text, Source(name, directory), problems)
        load_named_kinds(tree, from_user=False)
    except UnreadableError as error:
        raise config_error(name, [error.problem]) from None
    return _build(tree, tree.place, problems)


def dump_config(config: Config) -> str:
    """YAML text with all settings and defaults; `parse_config` returns the same config."""
    return to_yaml(config)


def _build(tree: Node, root: Location, problems: list[Problem]) -> Config:
    """The checked config of a tree, or ConfigError."""
    reader = Reader(Config, problems)
    reader.read(tree)
    for finding in checks.check(reader.built):
        place = _place(finding.keys, reader.places, root)
        problems.append(Problem(place, finding.keys[0], finding.message))
    if problems:
        raise config_error(root.source.name, problems)
    config = reader.built[""]
    assert isinstance(config, Config)
    return dataclasses.replace(config, kinds=needed_references(config.model.attention))


def _place(keys: tuple[str, ...], places: dict[str, Location], root: Location) -> Location:
    """The place of the first of the keys that is set, or of the section it would be in."""
    parts = keys[0].split(".")
    sections = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
    return next((places[key] for key in (*keys, *sections) if key in places), root)


def _read_with_bases(path: Path, name: str, problems: list[Problem], above: list[Path]) -> Node:
    """The tree of a file, merged into that of the file it extends, and so on."""
    if not path.exists() and not above and path.parent == Path():
        known = ", ".join(builtin_configs())
        message = f"there is no such config file, and no built-in config of this name ({known})"
        raise UnreadableError(Location(Source(name, path.parent, has_lines=False)), message)
    source = Source(name, path.parent)
    tree = expand(read_document(path, source, problems), Config)
    if not isinstance(tree, MappingNode):
        message = "expected a mapping of keys such as run_dir, data and model at the top"
        raise UnreadableError(tree.place, message)
    load_named_kinds(tree, from_user=True)
    if EXTENDS not in tree.entries:
        return tree
    entry = tree.entries[EXTENDS]
    base, base_name = _base_path(entry, name)
    seen = [*above, Path(os.path.realpath(path))]
    if Path(os.path.realpath(base)) in seen:
        message = f"{base_name} extends this file in turn; a file cannot extend itself"
        raise UnreadableError(entry.place, message, key=EXTENDS)
    if not base.is_file():
        message = f"there is no file {base_name} (the path is relative to this file)"
        raise UnreadableError(entry.place, message, key=EXTENDS)
    own = {key: value for key, value in tree.entries.items() if key != EXTENDS}
    below = _read_with_bases(base, base_name, problems, seen)
    return merge(below, MappingNode(tree.place, own), Config)


def _base_path(entry: Entry, name: str) -> tuple[Path, str]:
    """The path of the file that `extends` names, and its name in messages."""
    node = entry.node
    if not isinstance(node, Scalar) or node.is_null or "\0" in node.text:
        raise UnreadableError(entry.place, "expected the path of one config file", key=EXTENDS)
    base_name = os.path.join(os.path.dirname(name), os.path.expanduser(node.text))
    return resolve_path(node.text, node.place.source.directory), os.path.normpath(base_name)


def _parse_override(override: str, source: Source, problems: list[Problem]) -> Node:
    """The tree of one `section.key=value`."""
    place = Location(source)
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise UnreadableError(place, f"expected section.key=value, got {quote(override)}")
    try:
        node = parse_document(text, source, problems)
    except UnreadableError as error:
        raise UnreadableError(place, error.problem.message, key=key) from None
    if isinstance(node, Scalar) and not node.quoted and node.text != text.strip(" \t\r\n"):
        message = f"{quote(text)} means {quote(node.text)} in YAML; put the value into quotes"
        raise UnreadableError(place, message, key=key)
    for name in reversed(names):
        node = MappingNode(place, {name: Entry(place, node)})
    return node
