"""The content of a recipe: where a task's data is, how it is cleaned, what it is tested on.

A recipe is a TOML file; its keys are the fields of the classes below. A place is written as
`FILE`, or `ARCHIVE -> MEMBER`, or `PART + PART -> MEMBER` for an archive in several parts.
"""

import dataclasses
import re
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nmt.data.text import Side
from nmt.errors import ConfigError, DataError
from nmt.recipes.archive import check_name
from nmt.recipes.checksums import Expected
from nmt.recipes.cleaning import CleaningRules
from nmt.recipes.download import RemoteFile


@dataclass(frozen=True)
class File:
    """A file of a publisher: its addresses, or what a person has to do to get it."""

    name: str  # below data/downloads, and how it is found in `--data DIR`
    urls: tuple[str, ...] = ()
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    manual: str = ""  # for files that need a registration: where to get them

    @property
    def expected(self) -> Expected:
        """The known size and checksums of the file."""
        return Expected(self.size, self.sha256, self.md5)

    @property
    def remote(self) -> RemoteFile:
        """The file as the downloader knows it."""
        return RemoteFile(self.name, self.urls, self.expected)


@dataclass(frozen=True)
class Corpus:
    """One corpus of the training data: a place for each side, or one for both."""

    name: str
    source: str = ""
    target: str = ""
    both: str = ""  # one file with lines `source SEPARATOR target`
    separator: str = " ||| "
    first: Side = "source"  # the side before the separator
    pairs: int | None = None  # as published

    @property
    def places(self) -> tuple[str, ...]:
        """All places of the corpus."""
        return tuple(place for place in (self.source, self.target, self.both) if place)


@dataclass(frozen=True)
class TextSet:
    """A validation or test set; .sgm is unwrapped, and several places follow each other."""

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    tokenized_target: str = ""  # the reference as its publisher tokenised it, for tokenised BLEU
    lines: int | None = None  # of the official set
    sacrebleu: str = ""  # its name there: an offline copy of SacreBLEU's is used if there is one

    @property
    def raw_places(self) -> tuple[str, ...]:
        """The places of source and target."""
        return (*self.source, *self.target)

    @property
    def places(self) -> tuple[str, ...]:
        """All places of the set."""
        tokenized = (self.tokenized_target,) if self.tokenized_target else ()
        return (*self.raw_places, *tokenized)


@dataclass(frozen=True)
class Recipe:
    """A task: its data, and what the paper says of it."""

    source_language: str
    target_language: str
    files: tuple[File, ...]
    train: tuple[Corpus, ...]
    validation: TextSet
    test: TextSet
    variant: str = "rela-g"  # what is run when no variant is named
    overrides: tuple[str, ...] = ()  # of the config, before those of the command line
    tokenized: bool = False  # the text is tokenised; translations are put together for SacreBLEU
    split_hyphens: bool = False  # in tokenised BLEU, as in Stanford's release of WMT14
    clean: CleaningRules = CleaningRules()  # noqa: RUF009 (frozen)
    paper_pairs: int | None = None
    download_gigabytes: float = 0.0
    disk_gigabytes: float = 0.0

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source_language, self.target_language

    @property
    def places(self) -> list[str]:
        """All places of the training corpora and of the validation and test sets."""
        trained = [place for corpus in self.train for place in corpus.places]
        return [*trained, *self.validation.places, *self.test.places]


@dataclass(frozen=True)
class Place:
    """Where a text is: a file, or a member of an archive of one or more parts."""

    files: tuple[str, ...]
    member: str | None


def parse_place(text: str) -> Place:
    """`FILE`, `ARCHIVE -> MEMBER` or `PART + PART -> MEMBER`."""
    left, arrow, member = text.partition(" -> ")
    return Place(tuple(left.split(" + ")), member if arrow else None)


def load_recipe(path: Path, overrides: tuple[str, ...] = ()) -> Recipe:
    """Read a recipe strictly; `overrides` are `clean.key=value` settings in the form of TOML."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for override in overrides:
        key, _, value = override.partition("=")
        table.setdefault("clean", {})[key.removeprefix("clean.")] = _override_value(value)
    recipe: Recipe = _build(Recipe, table, str(path))
    _check(recipe, path)
    return recipe


def _override_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a word without quotes


def _check(recipe: Recipe, path: Path) -> None:
    known = {file.name for file in recipe.files}
    for text in recipe.places:
        place = parse_place(text)
        for name in place.files:
            if name not in known:
                raise ConfigError(f"{path}: {text!r}: no file {name!r} is listed")
        if place.member is not None:
            _check_path(place.member, f"{path}: {text!r}")
    for text_set in (recipe.validation, recipe.test):
        if len(text_set.source) != len(text_set.target):
            raise ConfigError(f"{path}: {text_set.name!r}: expected as many targets as sources")
    for corpus in recipe.train:
        if bool(corpus.both) == bool(corpus.source and corpus.target):
            message = "expected source and target, or both"
            raise ConfigError(f"{path}: corpus {corpus.name!r}: {message}")
    for file in recipe.files:
        _check_file(file, f"{path}: file {file.name!r}")
    for name in (recipe.validation.name, recipe.test.name, *recipe.languages):
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ConfigError(f"{path}: {name!r}: expected a name of letters, digits, . _ + -")


def _check_file(file: File, where: str) -> None:
    _check_path(file.name, where)
    if bool(file.urls) == bool(file.manual):
        raise ConfigError(f"{where}: expected urls or manual")
    for url in file.urls:
        if not url.startswith("https://") and not (url.startswith("http://") and file.sha256):
            raise ConfigError(f"{where}: {url}: expected an https address, or http and a sha256")
    for name, digits in (("sha256", 64), ("md5", 32)):
        value = getattr(file, name)
        if value is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
            raise ConfigError(f"{where}: {name}: expected {digits} hexadecimal digits")


def _check_path(name: str, where: str) -> None:
    """Raise ConfigError unless a name is a plain relative path, which stays in its directory."""
    try:
        safe = check_name(name) == name
    except DataError:
        safe = False
    if not safe or not name:
        raise ConfigError(f"{where}: expected a relative path without . or .., got {name!a}")


def _build(kind: Any, value: Any, where: str) -> Any:
    """The value that a piece of TOML means where `kind` is expected; errors name the place."""
    if dataclasses.is_dataclass(kind):
        return _build_section(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(
            _build(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(items)
        )
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        return _build(inner[0], value, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where}: expected one of {', '.join(arguments)}, got {value!r}")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _build_section(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table, got {value!r}")
    hints = get_type_hints(kind)
    if unknown := sorted(set(value) - set(hints)):
        raise ConfigError(
            f"{where}: unknown key {unknown[0]!r}; expected some of {', '.join(hints)}"
        )
    values = {name: _build(hints[name], item, f"{where}: {name}") for name, item in value.items()}
    required = {
        field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING
    }
    if missing := sorted(required - set(values)):
        raise ConfigError(f"{where}: the key {missing[0]!r} is missing")
    return kind(**values)
