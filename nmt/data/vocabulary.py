"""Pieces of text and their numbers; the control symbols are numbers that no text can produce."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from nmt.config.limits import MAX_PIECES
from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
# How the control symbols are shown; these strings are never looked up.
CONTROL = ("<pad>", "<s>", "</s>", "<unk>")

NUMBER = re.compile("[0-9]{1,18}")
HEADER = "nmt-vocabulary 1"
# The file has one piece a line and a tab before its count.
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
UNESCAPES = {escape[1]: character for character, escape in ESCAPES.items()}


class Vocabulary:
    """A numbering of pieces that begins after the control symbols, with the counts of pieces."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        """Pieces get their numbers in the order of `counts`."""
        assert "" not in counts
        self.counts = dict(counts)
        self._pieces = [*CONTROL, *self.counts]
        self._ids = {piece: number for number, piece in enumerate(self.counts, start=len(CONTROL))}

    @classmethod
    def build(cls, counts: Mapping[str, int], *, max_pieces: int | None = None) -> Self:
        """The most frequent pieces first, equally frequent ones by their characters."""
        order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(dict(order[:max_pieces]))

    def __len__(self) -> int:
        """The number of pieces and control symbols."""
        return len(self._pieces)

    def __contains__(self, piece: object) -> bool:
        return piece in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and list(self.counts.items()) == list(
            other.counts.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def id(self, piece: str) -> int:
        """The number of a piece of text, UNK for one that is not known."""
        return self._ids.get(piece, UNK)

    def piece(self, number: int) -> str:
        """The piece with a number; control symbols as they are shown."""
        return self._pieces[number]

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """The numbers of pieces, without control symbols (but for UNK)."""
        ids = self._ids
        return [ids.get(piece, UNK) for piece in pieces]

    def save(self, path: Path) -> None:
        """Write one piece a line with its count, after a line that says how many there are."""
        with LineWriter(path) as writer:
            writer.write(f"{HEADER}\t{len(self.counts)}")
            for piece, count in self.counts.items():
                writer.write(f"{_escape(piece)}\t{count}")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; anything doubtful is an error, for every id must be exact."""
        lines = read_text(path)
        head, _, length = next(lines, "").partition("\t")
        if head != HEADER or not NUMBER.fullmatch(length):
            raise DataError(f"{path}:1: expected `{HEADER}<tab>number of pieces`: no vocabulary")
        if int(length) > MAX_PIECES:
            raise DataError(f"{path}:1: expected at most {MAX_PIECES} pieces, got {length}")
        counts: dict[str, int] = {}
        for number, line in enumerate(lines, start=2):
            escaped, tab, count = line.partition("\t")
            if not tab or not escaped or not NUMBER.fullmatch(count):
                raise DataError(f"{path}:{number}: expected `piece<tab>count`, got {line[:80]!r}")
            try:
                piece = _unescape(escaped)
            except (KeyError, IndexError):
                raise DataError(f"{path}:{number}: bad escape in {escaped[:80]!r}") from None
            if piece in counts:
                raise DataError(f"{path}:{number}: the piece {piece!r} is there twice")
            counts[piece] = int(count)
            if len(counts) > int(length):
                break
        if len(counts) != int(length):
            raise DataError(f"{path}: expected {length} pieces, got {len(counts)}")
        return cls(counts)


def _escape(piece: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in piece)


def _unescape(escaped: str) -> str:
    parts = escaped.split("\\")
    # After the first part every part begins with the character that follows a backslash; an
    # empty one means the backslash was doubled, and the next part is plain.
    text = [parts[0]]
    index = 1
    while index < len(parts):
        part = parts[index]
        if part:
            text.append(UNESCAPES[part[0]] + part[1:])
            index += 1
        else:
            text.append("\\" + parts[index + 1])
            index += 2
    return "".join(text)
