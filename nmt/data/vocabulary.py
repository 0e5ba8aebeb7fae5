"""The vocabulary: pieces and their ids; no text can produce the id of a control symbol."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from nmt.config.limits import MAX_PIECES
from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
# The control symbols as they are printed; these strings are never looked up.
CONTROL = ("<pad>", "<s>", "</s>", "<unk>")

COUNT_PATTERN = re.compile("[0-9]{1,18}")
HEADER = "nmt-vocabulary 1"
# Each line of the file is a piece, a tab and its count.
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
ESCAPED = str.maketrans(ESCAPES)
UNESCAPES = {escape[1]: character for character, escape in ESCAPES.items()}


class Vocabulary:
    """The ids and counts of pieces; the first ids are those of the control symbols."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        """Pieces get their ids in the order of `counts`."""
        assert "" not in counts
        self.counts = dict(counts)
        self._pieces = [*CONTROL, *self.counts]
        self._ids = {piece: index for index, piece in enumerate(self.counts, start=len(CONTROL))}

    @classmethod
    def build(cls, counts: Mapping[str, int], *, max_pieces: int | None = None) -> Self:
        """A vocabulary sorted by count, the highest first, and then by piece."""
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

    def piece(self, token_id: int) -> str:
        """The piece with an id, or the printed form of a control symbol."""
        return self._pieces[token_id]

    @property
    def pieces(self) -> list[str]:
        """All pieces in the order of their ids; control symbols in their printed form."""
        return self._pieces

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """The ids of pieces; an unknown piece is UNK."""
        ids = self._ids
        return [ids.get(piece, UNK) for piece in pieces]

    def save(self, path: Path) -> None:
        """Write a header with the number of pieces, and one line per piece with its count."""
        with LineWriter(path) as writer:
            writer.write(f"{HEADER}\t{len(self.counts)}")
            for piece, count in self.counts.items():
                writer.write(f"{piece.translate(ESCAPED)}\t{count}")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file that `save` wrote; raises DataError unless every id is certain."""
        lines = read_text(path)
        head, _, length = next(lines, "").partition("\t")
        if head != HEADER or not COUNT_PATTERN.fullmatch(length):
            raise DataError(f"{path}:1: expected `{HEADER}<tab>number of pieces`: no vocabulary")
        if int(length) > MAX_PIECES:
            raise DataError(f"{path}:1: expected at most {MAX_PIECES} pieces, got {length}")
        counts: dict[str, int] = {}
        for number, line in enumerate(lines, start=2):
            escaped, tab, count = line.partition("\t")
            if not tab or not escaped or not COUNT_PATTERN.fullmatch(count):
                raise DataError(f"{path}:{number}: expected `piece<tab>count`, got {line[:80]!r}")
            try:
                piece = re.sub(r"\\(.?)", lambda match: UNESCAPES[match[1]], escaped)
            except KeyError:
                raise DataError(f"{path}:{number}: bad escape in {escaped[:80]!r}") from None
            if piece in counts:
                raise DataError(f"{path}:{number}: the piece {piece!r} occurs twice")
            counts[piece] = int(count)
            if len(counts) > int(length):
                break
        if len(counts) != int(length):
            raise DataError(f"{path}: expected {length} pieces, got {len(counts)}")
        return cls(counts)
