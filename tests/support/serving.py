"""The real nmt-serve in a process of its own, and a small client."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "nmt.cli.serve")
SECONDS = 240  # that the server may take for anything on a busy machine


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class ServerProcess:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, key: str) -> None:
        self.process = process
        self.log = log
        self.key = key
        self.port = int(self.wait_for(r"serving at http://127\.0\.0\.1:(\d+)")[1])

    def wait_for(self, pattern: str, *, after: int = 0) -> "re.Match[str]":
        """The first match in what the server has logged after this many characters."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found = re.search(pattern, self.logged()[after:])
            if found:
                return found
            assert self.process.poll() is None, self.logged()
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in {self.logged()}")

    def logged(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request on a connection of its own; `content_type` is Content-Type."""
        connection = self.connect()
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, fields: Any, **headers: str) -> Reply:
        """A request with a JSON body, and the key of the tests."""
        body = json.dumps(fields).encode()
        headers.setdefault("authorization", f"Bearer {self.key}")
        return self.ask("POST", path, body, content_type="application/json", **headers)

    def translate(self, text: str | list[str], **fields: Any) -> Any:
        """The translation of a text, or of a list of texts."""
        reply = self.post("/translate", {"q": text, "source": "en", "target": "de", **fields})
        assert reply.status == 200, reply.body
        return reply.json()["translatedText"]

    def workers(self) -> list[int]:
        """The ids of the worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(number) for number in children.read_text().split()]

    def metric(self, name: str) -> float:
        """The value of one of the counters, with its labels."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").body.decode(), re.M)
        assert found, name
        return float(found[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextmanager
def serving(
    directory: Path, *options: str, key: str = "", early: signal.Signals | None = None
) -> Iterator[ServerProcess]:
    """A server on a free port, which is ended with the context; requests have the key.

    The signal `early` is sent while the server loads its models.
    """
    log = directory / "serve.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        if early is not None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not children.read_text():
                time.sleep(0.01)
            process.send_signal(early)
        yield ServerProcess(process, log, key)
    finally:
        process.kill()
        process.wait()
