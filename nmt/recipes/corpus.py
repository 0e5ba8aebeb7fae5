"""From the files of the publishers to the text that a config names: fetched, unpacked, cleaned."""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.encoding import available_cores
from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError
from nmt.recipes.archive import extract
from nmt.recipes.checksums import ChecksumFile
from nmt.recipes.cleaning import CleaningReport, Part, clean, make_normalizer
from nmt.recipes.download import CHECKSUMS, fetch
from nmt.recipes.recipe import File, Place, Recipe, TextSet, parse_place
from nmt.recipes.sgm import read_parallel, read_segments
from nmt.storage.files import replace_file
from nmt.storage.hashing import bytes_sha256
from nmt.storage.lock import locked_to_write

logger = logging.getLogger(__name__)

MIRROR = "NMT_MIRROR"  # environment: everything is taken from there instead
STAMP = "corpus.json"
UNPACKED = "unpacked"


@dataclass(frozen=True)
class RecipeFiles:
    """The files of the text of a recipe."""

    directory: Path  # data/NAME
    downloads: Path  # shared by all recipes
    languages: tuple[str, str]

    def pair(self, name: str) -> tuple[Path, Path]:
        """The two files of a set, e.g. train.en and train.de."""
        source, target = self.languages
        return self.directory / f"{name}.{source}", self.directory / f"{name}.{target}"

    def tokenized(self, name: str) -> Path:
        """The reference of a set as its publisher tokenised it."""
        return self.directory / f"{name}.tokenized.{self.languages[1]}"


@dataclass(frozen=True)
class Found:
    """A file of a recipe on this machine."""

    path: Path
    sha256: str


def build_corpus(recipe: Recipe, layout: RecipeFiles, *, provided: Path | None) -> None:
    """Make train, validation and test text unless that has been done with the same inputs."""
    if provided is not None and not provided.is_dir():
        raise DataError(f"--data {provided}: expected a directory with files of the recipe")
    layout.directory.mkdir(parents=True, exist_ok=True)
    with locked_to_write(layout.directory):
        sets = [*layout.pair("train"), *layout.pair(recipe.validation.name)]
        sets += layout.pair(recipe.test.name)
        if recipe.test.tokenized_target:
            sets.append(layout.tokenized(recipe.test.name))
        builder = Builder(recipe, layout, provided)
        if builder.is_done(sets):
            logger.info("%s is up to date", layout.directory)
            return
        builder.build()
        builder.write_stamp(sets)
        shutil.rmtree(layout.directory / UNPACKED, ignore_errors=True)


class Builder:
    """One making of the text of a recipe."""

    def __init__(self, recipe: Recipe, layout: RecipeFiles, provided: Path | None) -> None:
        self.recipe = recipe
        self.layout = layout
        self.provided = provided
        self.files = {file.name: file for file in recipe.files}
        self.found: dict[str, Found] = {}
        self.report: CleaningReport | None = None

    def build(self) -> None:
        """Fetch, unpack, clean, unwrap."""
        test = self._sacrebleu_copy(self.recipe.test)
        left = () if test is None else self.recipe.test.raw_places
        places = [parse_place(text) for text in self.recipe.places if text not in left]
        needed = [place for place in places if self._unpacked_by_user(place) is None]
        self._fetch(dict.fromkeys(name for place in needed for name in place.files))
        self._unpack(needed)
        # The small sets first: a mistake in them shows up before the long part.
        self._write_set(self.recipe.validation, None)
        self._write_set(self.recipe.test, test)
        self._clean()

    def _fetch(self, names: Iterable[str]) -> None:
        """Find or download all files; what a person has to fetch is asked for at once, first."""
        names = list(names)
        for name in names:
            if (path := self._on_disk(self.files[name])) is not None:
                self.found[name] = self._verify(self.files[name], path)
        missing = [self.files[name] for name in names if name not in self.found]
        if manual := [file for file in missing if file.manual]:
            lines = [f"  {file.name}: {file.manual}" for file in manual]
            heading = (
                f"{len(manual)} file(s) have to be fetched by hand; put them into "
                f"{self.layout.downloads}, or name their directory with --data DIR:"
            )
            raise DataError("\n".join([heading, *lines]))
        for file in missing:
            path = fetch(file.remote, self.layout.downloads, mirror=os.environ.get(MIRROR))
            self.found[file.name] = self._verify(file, path)

    def _on_disk(self, file: File) -> Path | None:
        """The file where the user put it, or a manual one among the downloads."""
        bases = [each.name.rpartition("/")[2] for each in self.recipe.files]
        base = file.name.rpartition("/")[2]
        names = [file.name] + ([base] if bases.count(base) == 1 else [])
        directories = [self.provided] if self.provided is not None else []
        if file.manual:
            directories.append(self.layout.downloads)
        for directory in directories:
            for name in names:
                if (directory / name).is_file():
                    return directory / name
        return None

    def _verify(self, file: File, path: Path) -> Found:
        downloaded = path == self.layout.downloads / file.name
        key = file.name if downloaded else str(path.absolute())
        self.layout.downloads.mkdir(parents=True, exist_ok=True)
        checksums = ChecksumFile(self.layout.downloads / CHECKSUMS)
        own = not downloaded or bool(file.manual)
        return Found(path, checksums.verify(key, path, file.expected, may_change=own))

    def _unpacked_by_user(self, place: Place) -> Path | None:
        """A member of an archive that lies unpacked in the user's directory."""
        if self.provided is None or place.member is None:
            return None
        path = self.provided / place.member
        return path if path.is_file() else None

    def _unpack(self, places: Iterable[Place]) -> None:
        members: dict[tuple[str, ...], set[str]] = {}
        for place in places:
            if place.member is not None:
                members.setdefault(place.files, set()).add(place.member)
        for files, wanted in members.items():
            directory = self._unpacked(files)
            if directory.is_dir() and all((directory / name).is_file() for name in wanted):
                continue
            shutil.rmtree(directory, ignore_errors=True)
            logger.info("unpacking %s", " + ".join(files))
            extract([self.found[name].path for name in files], wanted, directory)

    def _unpacked(self, files: tuple[str, ...]) -> Path:
        """The directory for the members of an archive; another archive of that name has another."""
        digest = "".join(self.found[name].sha256 for name in files)
        name = files[0].replace("/", "-")
        short = bytes_sha256(digest.encode())[:12]
        return self.layout.directory / UNPACKED / f"{name}-{short}"

    def _path(self, text: str) -> Path:
        """The text file of a place."""
        place = parse_place(text)
        if (path := self._unpacked_by_user(place)) is not None:
            return path
        if place.member is None:
            return self.found[place.files[0]].path
        return self._unpacked(place.files) / place.member

    def _write_set(self, text_set: TextSet, copy: tuple[Path, Path] | None) -> None:
        """Write a validation or test set, its source normalised like the training text."""
        pairs = [copy] if copy is not None else self._paths(text_set)
        read = [read_set(*pair) for pair in pairs]
        source, target = ([line for pair in read for line in pair[side]] for side in (0, 1))
        if text_set.lines is not None and len(source) != text_set.lines:
            logger.warning(
                "%s: expected the %d lines of the official set, got %d; scores cannot be compared",
                text_set.name,
                text_set.lines,
                len(source),
            )
        normalize = make_normalizer(self.recipe.clean, self.recipe.source_language)
        outputs = self.layout.pair(text_set.name)
        for path, lines in zip(outputs, (map(normalize, source), target), strict=True):
            write_lines(path, lines)
        if text_set.tokenized_target:
            tokenized = _lines(self._path(text_set.tokenized_target))
            if len(tokenized) != len(target):
                raise DataError(
                    f"{text_set.tokenized_target}: expected the {len(target)} lines of "
                    f"{text_set.name}, got {len(tokenized)}"
                )
            write_lines(self.layout.tokenized(text_set.name), tokenized)

    def _paths(self, text_set: TextSet) -> list[tuple[Path, Path]]:
        """The text files of a set, source and target."""
        places = zip(text_set.source, text_set.target, strict=True)
        return [(self._path(source), self._path(target)) for source, target in places]

    def _sacrebleu_copy(self, text_set: TextSet) -> tuple[Path, Path] | None:
        """The test set in SacreBLEU's cache, if it is there and the user brought no other."""
        places = [parse_place(text) for text in text_set.raw_places]
        files = {name for place in places for name in place.files}
        brought = any(self._on_disk(self.files[name]) for name in files)
        if not text_set.sacrebleu or brought or any(map(self._unpacked_by_user, places)):
            return None
        folder = Path(os.environ.get("SACREBLEU") or "~/.sacrebleu").expanduser()
        name, pair = text_set.sacrebleu, "-".join(self.recipe.languages)
        stem = folder / name / f"{name.replace('/', '_')}.{pair}"
        source, target = Path(f"{stem}.src"), Path(f"{stem}.ref")
        if not source.is_file() or not target.is_file():
            return None
        logger.info("the test set is SacreBLEU's copy %s.{src,ref}", stem)
        return source, target

    def _clean(self) -> None:
        parts = [
            Part(
                corpus.name,
                source=self._path(corpus.both or corpus.source),
                target=None if corpus.both else self._path(corpus.target),
                separator=corpus.separator,
                first=corpus.first,
            )
            for corpus in self.recipe.train
        ]
        self.report = clean(
            parts,
            self.layout.pair("train"),
            self.recipe.clean,
            languages=self.recipe.languages,
            workers=available_cores(),
        )
        for line in cleaning_lines(self.report, self.recipe):
            logger.info("%s", line)
        for corpus in self.recipe.train:
            read = self.report.parts[corpus.name]["read"]
            if corpus.pairs not in (None, read):
                logger.warning("%s: expected %d pairs, got %d", corpus.name, corpus.pairs, read)

    def is_done(self, outputs: Iterable[Path]) -> bool:
        """Whether the outputs are those of this recipe and these inputs."""
        try:
            stamp = json.loads((self.layout.directory / STAMP).read_bytes())
            same = stamp["recipe"] == self._settings() and stamp["outputs"] == states(outputs)
        except (OSError, ValueError, KeyError):
            return False
        return same and all(self._unchanged(name, sha256) for name, sha256 in stamp["inputs"])

    def _unchanged(self, name: str, sha256: str) -> bool:
        """Whether an input is as it was, or gone: the text is made, downloads may be deleted."""
        file = self.files[name]
        path = self._on_disk(file) or self.layout.downloads / name
        return not path.exists() or self._verify(file, path).sha256 == sha256

    def write_stamp(self, outputs: Iterable[Path]) -> None:
        """Record what the outputs were made of."""
        assert self.report is not None
        stamp = {
            "recipe": self._settings(),
            "inputs": sorted((name, found.sha256) for name, found in self.found.items()),
            "outputs": states(outputs),
            "cleaning": vars(self.report),
        }
        text = json.dumps(stamp, indent=2, ensure_ascii=False)
        replace_file(self.layout.directory / STAMP, f"{text}\n".encode())

    def _settings(self) -> str:
        """A digest of all that the recipe says of the text, and of what the user brought."""
        settings = dataclasses.asdict(self.recipe)
        related = ("source_language", "target_language", "train", "validation", "test", "clean")
        settings = {name: settings[name] for name in related}
        for name in ("validation", "test"):
            settings[name] = as_before(settings[name])
        own = self._user_files() if self.provided is not None else []
        text = json.dumps([settings, own], sort_keys=True)
        return bytes_sha256(text.encode())

    def _user_files(self) -> list[Any]:
        paths = [self._unpacked_by_user(place) for place in map(parse_place, self.recipe.places)]
        return [states([path]) for path in paths if path is not None]


def as_before(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a set in the form that earlier versions digested, where they had one."""
    kept = {name: value for name, value in settings.items() if name != "tokenized_target" or value}
    for side in ("source", "target"):
        if len(kept[side]) == 1:
            kept[side] = kept[side][0]
    return kept


def read_set(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """The lines of both sides of a set, as many on either side."""
    if source.suffix == target.suffix == ".sgm":
        return read_parallel(source, target)
    left, right = _lines(source), _lines(target)
    if len(left) != len(right):
        raise DataError(f"{source} has {len(left)} lines but {target} has {len(right)}")
    return left, right


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file."""
    with LineWriter(path) as writer:
        for line in lines:
            writer.write(line)


def _lines(path: Path) -> list[str]:
    if path.suffix == ".sgm":
        return [segment.text for segment in read_segments(path)]
    return list(read_text(path))


def states(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Size and time of change of files, by which one that was touched shows."""
    result = {}
    for path in paths:
        status = path.stat()
        result[path.name] = [status.st_size, status.st_mtime_ns]
    return result


def cleaning_lines(report: CleaningReport, recipe: Recipe) -> Iterator[str]:
    """The counts of a cleaning in lines, beside those that the paper gives."""
    yield f"{'corpus':<24}{'pairs':>14}{'kept':>14}"
    for name, counts in report.parts.items():
        yield f"{name:<24}{counts['read']:>14,}{counts['kept']:>14,}"
    yield f"{'all':<24}{report.read:>14,}{report.kept:>14,}"
    for reason, count in report.dropped.most_common():
        yield f"  left out {count:>13,}  {reason}"
    if recipe.paper_pairs:
        share = report.kept / recipe.paper_pairs
        yield f"published are {recipe.paper_pairs:,} pairs; these are {share:.1%} of that"


def free_gigabytes(path: Path) -> float:
    """Room on the disk of a path, or of the nearest parent that exists."""
    while not path.exists():
        path = path.parent
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path).free / 1e9
    return float("inf")
