"""Prints the reference of all config keys as Markdown; --write puts it in docs/config.md.

Keys, types and defaults come from the dataclasses. The meaning of a key is its help on the command
line, if it has one, or else the comment beside its field. Options of attention kinds have theirs in
the table of kinds.
"""

import ast
import dataclasses
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from nmt.config.attention_kinds import ALIASES, ATTENTION_KINDS
from nmt.config.config import Config
from nmt.config.scalars import describe_type, type_hints
from nmt.config.schema import item_type

PAGE = Path(__file__).parents[1] / "docs" / "config.md"
BEGIN = "<!-- written by scripts/config_reference.py -->\n"


def comments(section: type) -> dict[str, str]:
    """The comment beside or above each field of a dataclass and of those that it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(owner))
        lines = {
            token.start[0]: (token.string.lstrip("# "), token.line.strip() == token.string)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = _comment_at(node, lines)
    return found


def _comment_at(node: ast.AnnAssign, lines: dict[int, tuple[str, bool]]) -> str:
    """The comment at the end of a statement, or the lines of comments right above it."""
    end = node.end_lineno or node.lineno
    if end in lines:
        return lines[end][0]
    first = node.lineno
    while first - 1 in lines and lines[first - 1][1]:
        first -= 1
    return " ".join(lines[number][0] for number in range(first, node.lineno))


def type_in_words(annotation: Any) -> str:
    """The type of a key."""
    if get_origin(annotation) is tuple:
        return f"{describe_type(get_args(annotation)[0])}, or a list of them"
    if get_origin(annotation) is dict:
        return "a mapping from layers to attention kinds"
    return describe_type(annotation)


def value_in_yaml(value: Any) -> str:
    """A default as it is written in YAML."""
    if value is None or value == {}:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def row(*cells: str) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def heading(paths: list[str]) -> str:
    """The heading of the sections of one type."""
    return ", ".join(f"`{path}`" for path in paths)


def anchor(paths: list[str]) -> str:
    """The name by which links find the heading of sections."""
    return "-".join(paths).replace(".", "")


def default_of(field: "dataclasses.Field[Any]", instance: Any) -> Any:
    """The value of a field that a config leaves out, or MISSING."""
    if instance is not dataclasses.MISSING:
        return getattr(instance, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def section_lines(section: type, paths: list[str], instance: Any) -> Iterator[str]:
    """The docstring and the table of a section, then the sections in it.

    Sections of one type are described once, under the paths of all of them.
    """
    hints, meanings = type_hints(section), comments(section)
    fields = {field.name: field for field in dataclasses.fields(section)}
    fields.pop(getattr(section, "options_field", ""), None)
    prefix = f"{paths[0]}." if paths else ""
    inner: dict[Any, list[str]] = {}
    for name in fields:
        if dataclasses.is_dataclass(item_type(hints[name])):
            inner.setdefault(item_type(hints[name]), []).append(prefix + name)
    if paths:
        yield from (f"## {heading(paths)}", "")
    yield from (inspect.getdoc(section) or "", "")
    yield from (row("key", "type", "default", "meaning"), row(*["---"] * 4))
    for name, field in fields.items():
        of_section = item_type(hints[name])
        if dataclasses.is_dataclass(of_section):
            link = f"[see below](#{anchor(inner[of_section])})"
            kind = "a section" if of_section is hints[name] else "a section, or a list of them"
            yield row(f"`{name}`", kind, "", link)
            continue
        meaning = field.metadata.get("help") or meanings[name]
        assert meaning, f"{section.__name__}.{name}: write its meaning in a comment beside it"
        default = default_of(field, instance)
        shown = "required" if default is dataclasses.MISSING else value_in_yaml(default)
        yield row(f"`{name}`", type_in_words(hints[name]), shown, meaning)
    yield ""
    if hasattr(section, "options_field"):
        yield from option_lines()
    for hint, names in inner.items():
        first = fields[names[0].removeprefix(prefix)]
        yield from section_lines(hint, names, default_of(first, instance))


def option_lines() -> Iterator[str]:
    """The options of each attention kind, which stand beside `kind`."""
    yield from ("These options stand beside `kind`:", "")
    yield from (row("kind", "option", "type", "default", "meaning"), row(*["---"] * 5))
    spellings = {name: alias for alias, name in ALIASES.items()}
    for name, kind in ATTENTION_KINDS.items():
        shown = f"`{name}` (`{spellings[name]}`)" if name in spellings else f"`{name}`"
        if not kind.options:
            yield row(shown, "none", "", "", "")
        for option, described in kind.options.items():
            assert described.meaning, f"{name}: write the meaning of its option {option}"
            default = "required" if described.required else value_in_yaml(described.default)
            words = describe_type(described.type)
            yield row(shown, f"`{option}`", words, default, described.meaning)
    yield ""


def reference() -> str:
    """The part of the page that is generated."""
    return "\n".join(section_lines(Config, [], dataclasses.MISSING)).rstrip() + "\n"


def main() -> None:
    """Print the reference, or write it to the page."""
    if sys.argv[1:] != ["--write"]:
        print(reference(), end="")
        return
    before, begin, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert begin, f"expected a line {BEGIN!r} in {PAGE}"
    PAGE.write_text(f"{before}{begin}\n{reference()}", encoding="utf-8")


if __name__ == "__main__":
    main()
