"""Downloads over https that can be trusted: checked, resumed when cut, there whole or not at all.

While it is under way the file is NAME.part; beside it NAME.part.json says which file of which
server that is. It is continued only when the server still has the very same one.
"""

import contextlib
import http.client
import ipaddress
import json
import logging
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from nmt.errors import DataError, IntegrityError, LockedError, StorageError
from nmt.progress import progress_bar
from nmt.recipes.checksums import ChecksumFile, Expected
from nmt.storage.files import install_file, storage_errors
from nmt.storage.lock import take_lock

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
DOWNLOAD_MAX_BYTES = 100 << 30  # of a file whose size nobody says
MOST_ATTEMPTS = 1000  # in all; those that bring no byte are counted apart
CHECKSUMS = "checksums.json"
RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
NOTHING_KNOWN = Expected()


@dataclass(frozen=True)
class RemoteFile:
    """A file, the addresses that have it, and what is known of it."""

    name: str  # a path below the directory of downloads
    urls: tuple[str, ...]
    expected: Expected = NOTHING_KNOWN


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server (seconds), and how often to try in vain."""

    timeout: float = 30.0
    attempts: int = 5
    pause: float = 1.0  # before the second attempt; it doubles


@dataclass(frozen=True)
class Note:
    """Which file a partial download is a part of."""

    url: str
    total: int | None
    etag: str | None
    last_modified: str | None

    @property
    def validator(self) -> str | None:
        """The validator to send in order to continue; None if continuing is not safe."""
        if self.total is None:
            return None
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified


class UnavailableError(Exception):
    """This address will not give the file."""


class CutError(Exception):
    """The connection ended too early; another attempt may help."""


def fetch(
    file: RemoteFile,
    directory: Path,
    *,
    mirror: str | None = None,
    patience: Patience | None = None,
) -> Path:
    """The path of the file in `directory`, downloaded unless it is there and right.

    With `mirror` the file https://HOST/PATH is taken from MIRROR/HOST/PATH.
    """
    path = directory / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial(path) as part:
        checksums = ChecksumFile(directory / CHECKSUMS)
        if path.exists():
            try:
                checksums.verify(file.name, path, file.expected)
                return path
            except IntegrityError as error:
                logger.warning("%s; it is downloaded again", error)
                path.unlink()
        urls = [_mirrored(url, mirror) for url in file.urls]
        _download_from_any(file, path, part, urls, checksums, patience or Patience())
    return path


def _download_from_any(
    file: RemoteFile,
    path: Path,
    part: BinaryIO,
    urls: list[str],
    checksums: ChecksumFile,
    patience: Patience,
) -> None:
    """Try the addresses in turn, the one of an earlier partial download first."""
    problems: list[str] = []
    wrong: IntegrityError | None = None
    note = _read_note(path)
    for url in sorted(urls, key=lambda url: note is None or url != note.url):
        partial = _beside(path, ".part")
        try:
            _download(url, path, part, file.expected, patience)
            checksums.verify(file.name, partial, file.expected, url=url)
        except UnavailableError as error:
            problems.append(f"{url}: {error}")
            logger.warning("%s: %s", url, error)
            continue
        except IntegrityError as error:
            # What is wrong must not lie around to be taken for right, nor to be continued.
            part.truncate(0)
            _beside(path, ".part.json").unlink(missing_ok=True)
            wrong = IntegrityError(f"{url}: not the right file, deleted ({error})")
            logger.warning("%s", wrong)
            continue
        install_file(partial, path)
        _beside(path, ".part.json").unlink(missing_ok=True)
        logger.info("downloaded %s from %s", path, url)
        return
    if wrong is not None:
        raise wrong
    reasons = "; ".join(problems) or "no address is known"
    raise DataError(
        f"{file.name} cannot be downloaded ({reasons}); try again later, or put the file at {path}"
    )


def _download(url: str, path: Path, part: BinaryIO, expected: Expected, patience: Patience) -> None:
    """Bring `part` to its full length from one address, in as many attempts as it takes."""
    check_address(url, expected)
    in_vain = 0
    for _ in range(MOST_ATTEMPTS):
        before = part.seek(0, os.SEEK_END)
        try:
            _attempt(url, path, part, expected, patience)
            return
        except CutError as error:
            if part.seek(0, os.SEEK_END) > before:
                in_vain = 0
                logger.info("%s: %s; continuing at byte %d", url, error, part.tell())
                continue
            in_vain += 1
            if in_vain >= patience.attempts:
                raise UnavailableError(f"{error} ({in_vain} attempts)") from error
            time.sleep(min(patience.pause * 2 ** (in_vain - 1), 60.0))
    raise UnavailableError(f"the connection was cut {MOST_ATTEMPTS} times")


def _attempt(url: str, path: Path, part: BinaryIO, expected: Expected, patience: Patience) -> None:
    """One request: continue what is there if the server has the same file, else begin anew."""
    note = _read_note(path)
    offset = part.seek(0, os.SEEK_END)
    headers = {"User-Agent": "nmt", "Accept-Encoding": "identity"}
    continued = note is not None and note.url == url and note.validator and offset
    if note is not None and continued:
        if offset == note.total:
            return
        headers |= {"Range": f"bytes={offset}-", "If-Range": str(note.validator)}
    with _open(urllib.request.Request(url, headers=headers), patience) as response:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            if note is None or not continued or not _continues(response, note, offset):
                part.truncate(0)
                raise CutError("the server has another file now, beginning anew")
        elif response.status == http.HTTPStatus.OK:
            part.truncate(0)
            offset = 0
            note = _describe(response, url)
            noted = _beside(path, ".part.json")
            with storage_errors(noted):
                noted.write_text(json.dumps(asdict(note)), encoding="utf-8")
        else:
            raise UnavailableError(f"status {response.status}")
        if None not in (note.total, expected.size) and note.total != expected.size:
            raise IntegrityError(f"expected {expected.size} bytes, the server has {note.total}")
        _copy(response, part, note.total, name=path.name, offset=offset)


def _copy(
    response: IO[bytes], part: BinaryIO, total: int | None, *, name: str, offset: int
) -> None:
    """Append the body to `part`, as it arrives."""
    part.seek(offset)
    most = DOWNLOAD_MAX_BYTES if total is None else total
    with progress_bar(total=total, unit="B", description=name, initial=offset) as bar:
        while True:
            try:
                chunk = response.read(CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise CutError(f"the connection was cut ({_reason(error)})") from error
            if not chunk:
                break
            if part.tell() + len(chunk) > most:
                part.truncate(0)
                raise UnavailableError(f"sent more than the {most} bytes announced")
            try:
                part.write(chunk)
                part.flush()
            except OSError as error:
                raise StorageError(f"{name}: cannot be written ({error.strerror})") from error
            bar.update(len(chunk))
    if total is not None and part.tell() < total:
        raise CutError(f"the connection was cut at byte {part.tell()} of {total}")


def _open(request: urllib.request.Request, patience: Patience) -> Any:
    """Send a request; errors come as CutError or UnavailableError."""
    handlers: list[urllib.request.BaseHandler] = [_CarefulRedirects()]
    if is_loopback(request.full_url):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=patience.timeout)
    except urllib.error.HTTPError as error:
        error.close()
        message = f"status {error.code} {error.reason}"
        if error.code in RETRY_STATUS:
            raise CutError(message) from None
        raise UnavailableError(message) from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise CutError(f"no answer ({_reason(error)})") from None


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but never from https to something less."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        new, old = urllib.parse.urlsplit(newurl).scheme, req.type
        if new != "https" and (new, old) != ("http", "http"):
            raise UnavailableError(f"leads to {newurl}: expected an https address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_address(url: str, expected: Expected) -> None:
    """Raise DataError for an address that is not https.

    Plain http is enough for a file with a known SHA-256, and on this machine.
    """
    parts = urllib.parse.urlsplit(url)
    plain_is_safe = expected.sha256 is not None or is_loopback(url)
    if not parts.hostname or parts.scheme not in ("https", "http" if plain_is_safe else "https"):
        raise DataError(f"{url}: expected an https address")


def is_loopback(url: str) -> bool:
    """Whether an address is on this very machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _mirrored(url: str, mirror: str | None) -> str:
    """The address of a file at a mirror."""
    if mirror is None:
        return url
    if not mirror.startswith("https://") and not is_loopback(mirror):
        raise DataError(f"the mirror {mirror}: expected an https address")
    parts = urllib.parse.urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{mirror.rstrip('/')}/{parts.netloc}{parts.path}{query}"


def _describe(response: Any, url: str) -> Note:
    length = response.headers.get("Content-Length")
    total = int(length) if length is not None and length.isdecimal() else None
    return Note(url, total, response.headers.get("ETag"), response.headers.get("Last-Modified"))


def _continues(response: Any, note: Note, offset: int) -> bool:
    """Whether a partial answer is the rest of the file that the note describes."""
    match = re.fullmatch(
        r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", "").strip()
    )
    if match is None or int(match[1]) != offset or int(match[3]) != note.total:
        return False
    etag = response.headers.get("ETag", note.etag)
    last_modified = response.headers.get("Last-Modified", note.last_modified)
    return bool(etag == note.etag and last_modified == note.last_modified)


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[BinaryIO]:
    """The partial file, for this process alone; removed when nothing is in it."""
    partial = _beside(path, ".part")
    file = _open_alone(partial, path)
    try:
        yield file
    finally:
        if _is_at(file, partial) and file.seek(0, os.SEEK_END) == 0:
            partial.unlink()
        file.close()


def _open_alone(partial: Path, path: Path) -> BinaryIO:
    while True:
        file = open(partial, "ab+")  # noqa: SIM115 (closed by _partial)
        if not take_lock(file.fileno(), path):
            file.close()
            raise LockedError(f"{path}: another process is downloading it; wait for it")
        if _is_at(file, partial):
            return file
        file.close()  # another process finished and renamed it between our two steps


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _read_note(path: Path) -> Note | None:
    try:
        return Note(**json.loads(_beside(path, ".part.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(inner) or type(inner).__name__
