"""The test sets of the WMT campaigns out of their SGML wrapping: one segment per line, in order."""

import re
from dataclasses import dataclass
from pathlib import Path

from nmt.errors import DataError

SGM_MAX_BYTES = 100_000_000
ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}

TAG = re.compile(r"<(doc|seg)\b([^<>]*)>", re.IGNORECASE)
END = re.compile(r"</seg\s*>", re.IGNORECASE)
ATTRIBUTE = re.compile(r"""\b(docid|id)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
ENTITY = re.compile(r"&(?:([a-z]+)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
WHITE_SPACE = re.compile(r"[ \t\r\n]+")


@dataclass(frozen=True)
class Segment:
    """A sentence of a test set, with the names by which a translation refers to it."""

    document: str
    number: str
    text: str


def read_segments(path: Path) -> list[Segment]:
    """The segments of an .sgm or .xml file in their order."""
    segments: list[Segment] = []
    document = ""
    text = _read(path)
    position = 0
    while (tag := TAG.search(text, position)) is not None:
        position = tag.end()
        attributes = _attributes(tag[2])
        if tag[1].lower() == "doc":
            document = attributes.get("docid") or attributes.get("id", "")
            continue
        end = END.search(text, position)
        following = TAG.search(text, position)
        if end is None or (following is not None and following.start() < end.start()):
            line = text.count("\n", 0, tag.start()) + 1
            raise DataError(f"{path}:{line}: a <seg> that has no </seg>")
        content = WHITE_SPACE.sub(" ", unescape(text[position : end.start()])).strip(" ")
        segments.append(Segment(document, attributes.get("id", ""), content))
        position = end.end()
    if not segments:
        raise DataError(f"{path}: expected <seg> elements, found none")
    return segments


def read_parallel(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """The lines of two wrapped files, which have to hold the same segments in the same order."""
    left, right = read_segments(source), read_segments(target)
    if len(left) != len(right):
        raise DataError(f"{source} has {len(left)} segments but {target} has {len(right)}")
    for one, other in zip(left, right, strict=True):
        if (one.document, one.number) != (other.document, other.number):
            raise DataError(
                f"{source} and {target}: segment {one.number} of {one.document!r} stands where "
                f"the other has {other.number} of {other.document!r}"
            )
    return [segment.text for segment in left], [segment.text for segment in right]


def unescape(text: str) -> str:
    """The text with the five entities of XML and numbered characters replaced, others kept."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return ENTITIES.get(match[1], match[0])
        code = int(match[2]) if match[2] is not None else int(match[3], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF or code == 0:
            return match[0]
        return chr(code)

    return ENTITY.sub(replace, text)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > SGM_MAX_BYTES:
            raise DataError(f"{path}: expected a test set, got more than {SGM_MAX_BYTES} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: invalid UTF-8 (byte {error.start})") from error


def _attributes(text: str) -> dict[str, str]:
    return {
        match[1].lower(): match[2] or match[3] or match[4] or ""
        for match in ATTRIBUTE.finditer(text)
    }
