"""A reader of tar archives that trusts nothing: it lists members and hands out bytes, no more.

Python's own module can be led to write outside its target and to loop for ever by a crafted
archive. All that is read here is the ustar header with the two usual extensions for long names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from nmt.errors import DataError

BLOCK = 512
MOST_HEADER_BYTES = 1 << 20  # of an extended header; names are far shorter
CHUNK = 1 << 18

REGULAR = frozenset({b"0", b"\0", b"7"})
EXTENDED, GLOBAL, LONG_NAME, LONG_LINK, DIRECTORY = b"x", b"g", b"L", b"K", b"5"
WITHOUT_DATA = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})  # links, devices, directories, pipes


@dataclass(frozen=True)
class TarMember:
    """One member: its name as written, whether it is a regular file, and its size in bytes."""

    name: str
    is_file: bool
    is_directory: bool
    size: int


class TarReader:
    """Walks through an uncompressed tar stream from its beginning to its end, once."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._left = 0  # bytes of the current member that nobody has read
        self._padding = 0

    def members(self) -> Iterator[TarMember]:
        """The members in their order; the data of one can be read until the next is asked for."""
        long_name: str | None = None
        extended: dict[str, str] = {}
        while (header := self._next_header()) is not None:
            kind = header[156:157]
            size = self._number(header[124:136])
            if kind in (LONG_NAME, LONG_LINK, EXTENDED, GLOBAL):
                content = self._small_content(size)
                if kind == LONG_NAME:
                    long_name = _text(content.rstrip(b"\0"))
                elif kind == EXTENDED:
                    extended = self._records(content)
                elif kind == GLOBAL:
                    self._refuse_global(self._records(content))
                continue
            if "size" in extended:
                size = self._decimal(extended["size"])
            name = extended.get("path") or long_name or self._short_name(header)
            long_name, extended = None, {}
            directory = kind == DIRECTORY or (kind == b"\0" and name.endswith("/"))
            self._begin(0 if kind in WITHOUT_DATA else size)
            yield TarMember(name, kind in REGULAR and not directory, directory, size)
        while self._stream.read(CHUNK):
            pass  # to the end: only there can a compressed stream prove that it is whole

    def read(self) -> bytes:
        """The next piece of the current member; empty at its end."""
        if self._left == 0:
            return b""
        piece = self._exactly(min(self._left, CHUNK))
        self._left -= len(piece)
        return piece

    def _begin(self, size: int) -> None:
        self._left = size
        self._padding = -size % BLOCK

    def _skip_rest(self) -> None:
        while self.read():
            pass
        self._exactly(self._padding)
        self._padding = 0

    def _next_header(self) -> bytes | None:
        """The header of the next member, None at the end."""
        self._skip_rest()
        header = self._stream.read(BLOCK)
        if not header or header == bytes(BLOCK):
            return None
        if len(header) < BLOCK:
            header += self._exactly(BLOCK - len(header))
        written = self._number(header[148:156])
        blanked = header[:148] + b" " * 8 + header[156:]
        signed = sum(blanked) - 256 * sum(byte > 127 for byte in blanked)  # some old writers
        if written not in (sum(blanked), signed):
            raise DataError(f"{self._name}: no tar archive, or a damaged one")
        return header

    def _small_content(self, size: int) -> bytes:
        if size > MOST_HEADER_BYTES:
            raise DataError(f"{self._name}: a header of {size} bytes; this is no usual archive")
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        return content

    def _records(self, content: bytes) -> dict[str, str]:
        """The `LENGTH KEY=VALUE` records of an extended header that matter here."""
        records: dict[str, str] = {}
        while content and content[0] != 0:
            match = re.match(rb"([0-9]{1,7}) ([^=]{1,200})=", content)
            end = int(match[1]) if match else 0
            if match is None or not match.end() < end <= len(content) or content[end - 1] != 10:
                raise DataError(f"{self._name}: a damaged extended header")
            if match[2].startswith(b"GNU.sparse"):
                raise DataError(f"{self._name}: holds sparse files, which are not supported")
            if match[2] in (b"path", b"size"):
                value = _text(content[match.end() : end - 1])
                records[match[2].decode()] = value
            content = content[end:]
        return records

    def _refuse_global(self, records: dict[str, str]) -> None:
        if records:
            raise DataError(f"{self._name}: one name for all members; this is no usual archive")

    def _short_name(self, header: bytes) -> str:
        name = header[:100].split(b"\0", 1)[0]
        prefix = header[345:500].split(b"\0", 1)[0]
        if prefix and header[257:263] == b"ustar\0":
            name = prefix + b"/" + name
        return _text(name)

    def _number(self, field: bytes) -> int:
        """A number in octal, or in GNU's binary form for large ones; never negative."""
        if field[0] == 0x80:
            return int.from_bytes(field[1:], "big")
        digits = field.strip(b" \0")
        if not re.fullmatch(rb"[0-7]*", digits):
            raise DataError(f"{self._name}: no tar archive, or a damaged one")
        return int(digits or b"0", 8)

    def _decimal(self, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise DataError(f"{self._name}: a damaged extended header")
        return int(text)

    def _exactly(self, size: int) -> bytes:
        pieces = []
        while size > 0:
            piece = self._stream.read(min(size, CHUNK))
            if not piece:
                raise DataError(f"{self._name}: the archive is cut short")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")  # members in other encodings are never ones we want
