"""A web server on loopback for tests of downloads: it can cut, refuse, change and redirect."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Served:
    """The files of the server, its behaviour, and the requests it had."""

    files: dict[str, bytes] = field(default_factory=dict)
    version: str = "1"  # goes into the ETag
    ranges: bool = True  # honour Range
    validators: bool = True  # send an ETag
    check_if_range: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes of a body to send before hanging up
    failures: list[int] = field(default_factory=list)  # statuses to answer with first
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range
    sent: int = 0
    url: str = ""


def make_handler(served: Served) -> type[http.server.BaseHTTPRequestHandler]:
    """A handler class around what is served."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            served.requests.append((self.path, wanted))
            if served.failures:
                self.send_error(served.failures.pop(0))
                return
            if self.path in served.redirects:
                self.send_response(302)
                self.send_header("Location", served.redirects[self.path])
                self.end_headers()
                return
            if self.path not in served.files:
                self.send_error(404)
                return
            self.answer(served.files[self.path], wanted)

        def answer(self, content: bytes, wanted: str | None) -> None:
            etag = f'"{served.version}"'
            condition = self.headers.get("If-Range", etag)
            start = 0
            if wanted and served.ranges and (condition == etag or not served.check_if_range):
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                last = len(content) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
            else:
                self.send_response(200)
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            if served.validators:
                self.send_header("ETag", etag)
            self.end_headers()
            if served.cuts:
                body = body[: served.cuts.pop(0)]
            self.wfile.write(body)
            served.sent += len(body)

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


@contextmanager
def serve(served: Served) -> Iterator[Served]:
    """Serve on a free port until the context ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), make_handler(served))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
