"""Keys of clients, each with the requests per minute that it allows.

A line of the file is `NAME KEY [REQUESTS_PER_MINUTE]`; `#` begins a comment at the start of a line
or after white space, and is part of a key elsewhere. Logs and metrics have the names, never the
keys.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.data.text import read_text
from nmt.errors import DataError
from nmt.serving.waiting import RefusedError

KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
COMMENT = re.compile(r"(^|\s)#.*")
LEAST_LENGTH = 16  # characters of a key
MAX_RATE = 1_000_000


@dataclass
class Key:
    """A client, and how many requests it may send now."""

    name: str
    digest: bytes  # SHA-256 of the key
    per_minute: int | None  # None: no limit
    allowance: float = 0.0
    updated: float = 0.0

    def take(self) -> None:
        """Count a request, or refuse it if there were too many."""
        if self.per_minute is None:
            return
        now = time.monotonic()
        gained = (now - self.updated) * self.per_minute / 60.0
        self.allowance = min(self.per_minute, self.allowance + gained)
        self.updated = now
        if self.allowance < 1.0:
            seconds = int((1.0 - self.allowance) * 60.0 / self.per_minute) + 1
            raise RefusedError(
                429,
                f"too many requests: {self.per_minute} per minute are allowed",
                retry_after=str(seconds),
            )
        self.allowance -= 1.0


class Keys:
    """The keys of all clients."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = keys

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """The keys of a file."""
        keys: dict[str, Key] = {}
        for number, line in enumerate(read_text(path), 1):
            fields = COMMENT.sub("", line).split()
            if not fields:
                continue
            key = read_key(fields, f"{path}:{number}")
            if key.name in keys:
                raise DataError(f"{path}:{number}: there is another key of the name {key.name}")
            if same := [other.name for other in keys.values() if other.digest == key.digest]:
                raise DataError(f"{path}:{number}: the key of {key.name} is that of {same[0]}, too")
            keys[key.name] = key
        if not keys:
            raise DataError(f"{path}: expected lines `NAME KEY [REQUESTS_PER_MINUTE]`, found none")
        return cls(list(keys.values()))

    def check(self, given: str | None) -> str:
        """Count a request of a client, or refuse it; the name of the key."""
        if not given:
            raise RefusedError(403, "this server needs an API key: send it as api_key")
        digest = hashlib.sha256(given.encode(errors="surrogatepass")).digest()
        # Compare with all keys, each in constant time: how long it takes tells nothing.
        found = [key for key in self.keys if hmac.compare_digest(key.digest, digest)]
        if not found:
            raise RefusedError(403, "this API key is not valid")
        found[0].take()
        return found[0].name


def read_key(fields: Sequence[str], place: str) -> Key:
    """The key of a line; messages never show it."""
    expected = f"{place}: expected `NAME KEY [REQUESTS_PER_MINUTE]`"
    if len(fields) not in (2, 3) or KEY_NAME.fullmatch(fields[0]) is None:
        raise DataError(expected)
    if len(fields[1]) < LEAST_LENGTH:
        raise DataError(f"{place}: expected a key of at least {LEAST_LENGTH} characters")
    rate = None
    if len(fields) == 3:
        digits = len(str(MAX_RATE))
        is_short = fields[2].isdecimal() and len(fields[2]) <= digits
        if not is_short or not 1 <= int(fields[2]) <= MAX_RATE:
            raise DataError(f"{expected}, with 1 to {MAX_RATE:,} requests")
        rate = int(fields[2])
    digest = hashlib.sha256(fields[1].encode()).digest()
    return Key(fields[0], digest, rate, allowance=float(rate or 0), updated=time.monotonic())
