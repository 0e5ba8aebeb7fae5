"""Reading one written value as a type: numbers, words and paths with their limits."""

import difflib
import functools
import math
import re
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from nmt.config.document import Items, Node, Scalar, quote, resolve_path
from nmt.errors import UserError

DIGITS = r"[0-9]+(?:_[0-9]+)*"
INTEGER = re.compile(rf"[+-]?{DIGITS}")
DECIMAL = re.compile(rf"[+-]?(?:{DIGITS}(?:\.(?:{DIGITS})?)?|\.{DIGITS})(?:[eE][+-]?[0-9]+)?")
LEADING_ZERO = re.compile(r"[+-]?0[0-9_]")
LARGEST_INTEGER = 2**63 - 1
LARGEST_EXACT_FLOAT = 2**53
UNIONS = (Union, types.UnionType)

# YAML 1.1 has these spellings; here only `true` and `false` are valid, and errors say so.
TRUE_WORDS = frozenset({"true", "yes", "on", "y"})
FALSE_WORDS = frozenset({"false", "no", "off", "n"})


class MismatchError(Exception):
    """A value that is not of the expected type, and a hint how to write it."""

    hint = ""


@dataclass(frozen=True)
class Range:
    """The limits of a number; an open limit is excluded."""

    low: float | None = None
    high: float | None = None
    open_below: bool = False
    open_above: bool = False

    def __contains__(self, value: float) -> bool:
        low, high = -math.inf if self.low is None else self.low, self.high
        above = value > low if self.open_below else value >= low
        return above and (high is None or (value < high if self.open_above else value <= high))

    def __str__(self) -> str:
        limits = []
        if self.low is not None:
            limits.append(f"{'above' if self.open_below else 'at least'} {self.low:,.12g}")
        if self.high is not None:
            limits.append(f"{'below' if self.open_above else 'at most'} {self.high:,.12g}")
        return " and ".join(limits)


@dataclass(frozen=True)
class Names:
    """The words that are allowed, and other spellings of them."""

    names: Collection[str]
    aliases: Mapping[str, str]


@functools.cache
def type_hints(section: type) -> dict[str, Any]:
    """The annotations of the fields of a dataclass, inherited fields first."""
    hints = get_type_hints(section, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def check_fields(section: Any) -> None:
    """Raise UserError for the first number of a dataclass that is outside its limits."""
    kind: type = type(section)
    for name, annotation in type_hints(kind).items():
        value = getattr(section, name)
        limit = limits(annotation)
        if value is not None and limit is not None and value not in limit:
            raise UserError(f"{name}: expected {describe_type(annotation)}, got {value}")


def limits(annotation: Any) -> Range | None:
    """The limits of a number that may also be None, or None if it has no limits."""
    members = get_args(annotation) if get_origin(annotation) in UNIONS else (annotation,)
    for member in members:
        if get_origin(member) is Annotated and isinstance(member.__metadata__[0], Range):
            found: Range = member.__metadata__[0]
            return found
    return None


def read_scalar(scalar: Scalar, annotation: Any) -> Any:
    """The value as the annotated type; raises MismatchError."""
    origin = get_origin(annotation)
    if origin in UNIONS:
        return _read_union(scalar, annotation)
    if scalar.is_null:
        hint = "; write none" if "none" in _choices(annotation) else ""
        raise mismatch(scalar, annotation, hint or "; leave the key out for its default")
    if origin is Annotated:
        return _read_limited(scalar, annotation)
    if origin is Literal:
        return _read_choice(scalar, annotation, get_args(annotation), {})
    if annotation is bool:
        return _read_bool(scalar)
    if annotation is int:
        return _read_int(scalar)
    if annotation is float:
        return _read_float(scalar)
    if annotation is Path:
        return _read_path(scalar)
    assert annotation is str, f"no rule for {annotation}"
    return scalar.text


def mismatch(node: Node, annotation: Any, hint: str = "") -> MismatchError:
    """The error with the expected type and the value found."""
    error = MismatchError(f"expected {describe_type(annotation)}, got {show(node)}{hint}")
    error.hint = hint
    return error


def _read_union(scalar: Scalar, annotation: Any) -> Any:
    members = get_args(annotation)
    choices = _choices(annotation)
    if scalar.is_null and type(None) in members:
        if "none" in choices:
            # `norm: null` may mean "no norm" or "the default norm".
            raise mismatch(scalar, annotation, "; write none, or leave the key out for its default")
        return None
    errors = []
    for member in members:
        if member is type(None):
            continue
        try:
            return read_scalar(scalar, member)
        except MismatchError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise mismatch(scalar, annotation, next((e.hint for e in errors if e.hint), ""))


def _read_limited(scalar: Scalar, annotation: Any) -> Any:
    inner, limit = get_args(annotation)
    if isinstance(limit, Names):
        return _read_choice(scalar, annotation, tuple(limit.names), limit.aliases)
    value = read_scalar(scalar, inner)
    if value not in limit:
        raise mismatch(scalar, annotation)
    return value


def _read_choice(
    scalar: Scalar, annotation: Any, names: tuple[str, ...], aliases: Mapping[str, str]
) -> str:
    name = aliases.get(scalar.text, scalar.text)
    if name in names:
        return name
    guess = nearest(scalar.text, (*names, *aliases))
    raise mismatch(scalar, annotation, f"; did you mean {guess!r}?" if guess else "")


def _read_bool(scalar: Scalar) -> bool:
    if not scalar.quoted:
        if scalar.text in ("true", "false"):
            return scalar.text == "true"
        for word, spellings in (("true", TRUE_WORDS), ("false", FALSE_WORDS)):
            if scalar.text.lower() in spellings:
                raise mismatch(scalar, bool, f"; write {word}")
    raise mismatch(scalar, bool, _quotes_hint(scalar, scalar.text in ("true", "false")))


def _read_int(scalar: Scalar) -> int:
    if scalar.quoted or not INTEGER.fullmatch(scalar.text):
        try:
            number = _read_float(scalar)
        except MismatchError:
            number = math.nan
        if number.is_integer() and abs(number) <= LARGEST_EXACT_FLOAT:
            return int(number)
        raise mismatch(scalar, int, _number_hint(scalar))
    if LEADING_ZERO.match(scalar.text):
        raise mismatch(scalar, int, _number_hint(scalar))
    digits = scalar.text.replace("_", "")
    if len(digits) > 20 or abs(int(digits)) > LARGEST_INTEGER:
        raise mismatch(scalar, int, "; it is too large")
    return int(digits)


def _read_float(scalar: Scalar) -> float:
    if scalar.quoted or not DECIMAL.fullmatch(scalar.text) or LEADING_ZERO.match(scalar.text):
        raise mismatch(scalar, float, _number_hint(scalar))
    number = float(scalar.text.replace("_", ""))
    if math.isinf(number):
        raise mismatch(scalar, float, "; it is too large")
    return number


def _number_hint(scalar: Scalar) -> str:
    if DECIMAL.fullmatch(scalar.text) and LEADING_ZERO.match(scalar.text):
        return "; write it without the leading zero"
    if scalar.text.lower().lstrip("+-.") in ("nan", "inf"):
        return "; it must be finite"
    return _quotes_hint(scalar, DECIMAL.fullmatch(scalar.text) is not None)


def _quotes_hint(scalar: Scalar, would_do_without: bool) -> str:
    return "; remove the quotes" if scalar.quoted and would_do_without else ""


def _read_path(scalar: Scalar) -> Path:
    if not scalar.text.strip() or "\0" in scalar.text:
        raise mismatch(scalar, Path)
    path = resolve_path(scalar.text, scalar.place.source.directory)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise mismatch(scalar, Path, "; its name is not valid UTF-8") from None
    return path


def nearest(word: str, names: Iterable[str], *, least: float = 0.6) -> str | None:
    """The name that is most similar to a misspelt word, or None if none is similar enough."""
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(name.lower().replace("-", "_"), name)
    match = difflib.get_close_matches(word[:60].lower().replace("-", "_"), plain, n=1, cutoff=least)
    return plain[match[0]] if match else None


def _choices(annotation: Any) -> tuple[str, ...]:
    """All words that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Literal:
        return get_args(annotation)
    if origin in UNIONS:
        return tuple(word for member in get_args(annotation) for word in _choices(member))
    return ()


def describe_type(annotation: Any) -> str:
    """The expected type in words."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, limit = get_args(annotation)
        if isinstance(limit, Names):
            return f"one of {', '.join(limit.names)}"
        return f"{describe_type(inner)} ({limit})"
    if origin is Literal:
        names = get_args(annotation)
        return f"one of {', '.join(names)}" if len(names) > 1 else str(names[0])
    if origin in UNIONS:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return " or ".join(describe_type(member) for member in members)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(annotation, "a path")


def show(node: Node) -> str:
    """The value in the file in a few words."""
    if not isinstance(node, Scalar):
        return "a list" if isinstance(node, Items) else "a mapping"
    if node.is_null:
        return "nothing" if node.is_empty else node.text
    return f"the text {quote(node.text)}" if node.quoted else quote(node.text)
