"""A name means one thing in the whole package, and its prose is that of the field."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
CODE = [
    path
    for room in ("nmt", "scripts", "recipes", "tests")
    for path in sorted((PROJECT / room).rglob("*.py"))
]
PAGES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("recipes/**/*.md")]
# "one word a line" should be "one word per line", and so on.
UNUSUAL = re.compile(
    r"\b(?:parted by|pulled? back|as ever|so many|quicker|quickest|complains? of|kernels suit"
    r"|(?:tokens|words|layers?|characters|minutes) an? (?:update|word|line|side|variant|head))\b"
)
# Every module may have these for itself.
OWN = {"DESCRIPTION", "EPILOG"}
# Constants that a Triton kernel reads have to be `tl.constexpr` there, and floats elsewhere.
MIRRORED = {"LARGEST_WEIGHT", "SERIES_BELOW"}


def is_type_variable(node: ast.expr | None) -> bool:
    """Whether a value is TypeVar(...), which means something in its module only."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TypeVar"
    )


def public_names(tree: ast.Module) -> Iterator[str]:
    """The classes, type aliases and constants that a module defines: all but what is lower case."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name[0].isupper() and not is_type_variable(value):
                    yield name
            case ast.AnnAssign(target=ast.Name(id=name)) if name[0].isupper():
                yield name


def test_no_two_modules_define_the_same_name() -> None:
    places = defaultdict(set)
    for path in sorted((PROJECT / "nmt").rglob("*.py")):
        for name in public_names(ast.parse(path.read_text(encoding="utf-8"))):
            places[name].add(str(path.relative_to(PROJECT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert set(twice) - OWN == MIRRORED, twice


def docstrings(tree: ast.Module) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_docstrings_open_with_the_thing_that_they_describe() -> None:
    for path in CODE:
        for text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            assert not text.startswith("What "), f"{path}: {text}"


def test_prose_has_the_words_of_the_field() -> None:
    for path in (*CODE, *PAGES):
        if path != Path(__file__):
            found = UNUSUAL.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found}"
