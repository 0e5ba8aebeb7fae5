"""Checksums of downloads: known beforehand, or recorded on first use and then always verified."""

import datetime
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.errors import DataError, IntegrityError
from nmt.storage.files import replace_file
from nmt.storage.lock import LockFile

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Expected:
    """The known size and checksums of a file; None means unknown."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None  # some publishers give no other


@dataclass(frozen=True)
class Sums:
    """The measured size and checksums of a file."""

    size: int
    sha256: str
    md5: str


def measure(path: Path) -> Sums:
    """Read a file once for its size and both of its sums."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            sha256.update(chunk)
            md5.update(chunk)
            size += len(chunk)
    return Sums(size, sha256.hexdigest(), md5.hexdigest())


class ChecksumFile:
    """A JSON file of the sums of files that were found to be right, by name.

    Where nobody publishes a sum, the one of the first download is what later ones have to match.
    Size and time of change are kept too, so that a file that nobody touched is not read again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def verify(
        self,
        name: str,
        path: Path,
        expected: Expected,
        *,
        url: str | None = None,
        may_change: bool = False,
    ) -> str:
        """Check a file, record it, and return its SHA-256; IntegrityError says what differs.

        A file that `may_change` (it is the user's own) need not be the one of the first time.
        """
        record = self._read().get(name)
        status = os.stat(path)
        state = (status.st_size, status.st_mtime_ns)
        if record is not None and (record["size"], record["modified"]) == state:
            sums = Sums(record["size"], record["sha256"], record["md5"])
        else:
            sums = measure(path)
        for what in ("size", "sha256", "md5"):
            wanted, found = getattr(expected, what), getattr(sums, what)
            if wanted is not None and wanted != found:
                raise IntegrityError(f"{path}: expected {what} {wanted}, got {found}")
        fixed = not may_change and expected.sha256 is None
        if fixed and record is not None and record["sha256"] != sums.sha256:
            raise IntegrityError(
                f"{path}: expected the file recorded on {record['recorded']} (sha256 "
                f"{record['sha256']}), got another one ({sums.sha256}); if its publisher changed "
                f"it, remove {name!r} from {self.path}"
            )
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        verified = {
            "size": sums.size,
            "sha256": sums.sha256,
            "md5": sums.md5,
            "modified": status.st_mtime_ns,
            "recorded": record["recorded"] if record else today,
            "url": url or (record or {}).get("url"),
        }
        if verified != record:
            self._record(name, verified)
        if fixed and record is None and expected.md5 is None:
            logger.warning(
                "%s: no checksum is published; %d bytes with sha256 %s are recorded in %s and "
                "expected from now on",
                name,
                sums.size,
                sums.sha256,
                self.path,
            )
        return sums.sha256

    def _read(self) -> dict[str, Any]:
        try:
            records = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DataError(f"{self.path}: expected JSON ({error}); remove the file") from None
        if not isinstance(records, dict) or not all(map(_is_record, records.values())):
            raise DataError(f"{self.path}: expected an object of checksums; remove the file")
        return records

    def _record(self, name: str, record: dict[str, Any]) -> None:
        with LockFile(self.path.with_name(f".{self.path.name}.lock")) as lock:
            lock.acquire(wait=True)  # another recipe may record its own downloads
            records = {**self._read(), name: record}
            replace_file(self.path, json.dumps(records, indent=2, sort_keys=True).encode() + b"\n")


def _is_record(value: Any) -> bool:
    texts = ("sha256", "md5", "recorded")
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in texts)
        and all(isinstance(value.get(name), int) for name in ("size", "modified"))
    )
