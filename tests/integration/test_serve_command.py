"""nmt-serve in a real process: its answers are those of nmt-translate, whatever happens to it."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPResponse
from pathlib import Path
from urllib import parse, request

import pytest
from support.serving import SECONDS as PATIENCE
from support.serving import ServerProcess, serving
from translation_models import make_directory, random_lines, trained_model

from nmt.cli.serve import main
from nmt.cli.translate import main as nmt_translate

pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'nmt[serve]'")

KEY = "a-key-for-the-tests-of-this-server"
SLOW_KEY = "another-key-for-three-per-minute"
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n%s\r\n'
SECONDS = 8  # the limit of the shared server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of the same languages."""
    directory = tmp_path_factory.mktemp("models")
    return {
        kind: make_directory(directory / kind, *trained_model(kind))
        for kind in ("rela-g", "softmax")
    }


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One server for all tests that do not end it."""
    directory = tmp_path_factory.mktemp("server")
    keys = directory / "keys"
    keys.write_text(f"# clients\ntests {KEY}\nslow {SLOW_KEY} 3\n", encoding="utf-8")
    options = [f"--model={name}={path}" for name, path in models.items()]
    options += ["--workers", "2", "--keys", str(keys), "--max-queue", "50"]
    options += ["--max-seconds", str(SECONDS), "--max-characters", "20000"]
    with serving(directory, *options, key=KEY) as found:
        yield found


def by_command(model: Path, lines: list[str], directory: Path, *options: str) -> list[str]:
    """The output lines of nmt-translate."""
    text, output = directory / "input", directory / "output"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = ["--model", str(model), "--input", str(text), "--output", str(output), *options]
    assert nmt_translate(arguments) == 0
    return output.read_text(encoding="utf-8").split("\n")[:-1]


def wait_until(condition: object) -> None:
    """Wait for a condition, on a busy machine for minutes."""
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_translations_are_those_of_the_command(
    server: ServerProcess, models: dict[str, Path], tmp_path: Path
) -> None:
    lines = ["", *random_lines(40, longest=12), "  ", "a dog"]
    expected = by_command(models["rela-g"], lines, tmp_path)
    assert server.translate(lines) == expected
    with ThreadPoolExecutor(20) as threads:  # lines of several clients share batches
        assert list(threads.map(server.translate, lines)) == expected
    assert server.translate("\n".join(lines)) == "\n".join(expected)
    assert server.translate("\r\n".join(lines[:3]) + "\n") == "\r\n".join(expected[:3]) + "\n"
    other = by_command(models["softmax"], lines, tmp_path)
    assert other != expected
    assert server.translate(lines, model="softmax") == other


def test_alternatives_are_the_n_best_of_the_command(
    server: ServerProcess, models: dict[str, Path], tmp_path: Path
) -> None:
    lines = random_lines(5, longest=8)
    found = by_command(models["rela-g"], lines, tmp_path, "--nbest", "3")
    texts = [line.split(" ||| ")[1] for line in found]
    reply = server.post("/translate", {"q": lines, "target": "de", "alternatives": 2}).json()
    assert reply["translatedText"] == texts[::3]
    assert reply["alternatives"] == [texts[n + 1 : n + 3] for n in range(0, len(texts), 3)]


def test_a_long_document_is_streamed_in_order(
    server: ServerProcess, models: dict[str, Path], tmp_path: Path
) -> None:
    lines = random_lines(600, longest=4)  # more than may wait at a time
    reply = server.post("/translate/stream", {"q": "\n".join(lines), "target": "de"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, end, rest = reply.body.decode().split("\n\n")
    assert (end, rest) == ('event: end\ndata: {"lines": 600}', "")
    found = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [event["line"] for event in found] == list(range(600))
    expected = by_command(models["rela-g"], lines, tmp_path)
    assert [event["translatedText"] for event in found] == expected


def test_requests_of_the_client_of_libretranslate(server: ServerProcess) -> None:
    """Its form bodies to the letter, and its GET request with a body."""
    url = f"http://127.0.0.1:{server.port}/"

    def send(path: str, method: str | None = None, **fields: str) -> object:
        data = parse.urlencode({**fields, "api_key": KEY}).encode()
        asked = request.Request(url + path, data=data, method=method)
        with request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read().decode())

    expected = server.translate("the old man")
    assert send("translate", q="the old man", source="en", target="de") == {
        "translatedText": expected
    }
    answer = send("translate", q="the old man", source="auto", target="de", format="text")
    assert answer == {
        "translatedText": expected,
        "detectedLanguage": {"confidence": 0, "language": "en"},
    }
    assert send("languages", "GET") == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert server.get("/frontend/settings").json()["charLimit"] == 20_000
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % field
        for field in ((b"q", b"the old man"), (b"target", b"de"), (b"api_key", KEY.encode()))
    )
    kind = "multipart/form-data; boundary=x"
    reply = server.ask("POST", "/translate", body + b"--x--\r\n", content_type=kind)
    assert reply.json() == {"translatedText": expected}


def test_attention_has_the_structure_of_the_report(server: ServerProcess) -> None:
    reply = server.post("/attention", {"q": "the old man sees a dog", "model": "rela-g"}).json()
    assert reply["translation"] == server.translate("the old man sees a dog")
    assert reply["nbest"][0]["text"] == reply["translation"]
    words = reply["translation"].split()
    assert [word["text"] for word in reply["target_words"]] == words
    assert all(0 < word["probability"] <= 1 for word in reply["target_words"])
    (model,) = reply["models"]
    assert model["sentences"][0]["target"]["words"] == words
    assert len(model["measures"]["cross"]) == model["layers"]["cross"] == 2
    assert all(source < 6 and target < len(words) for source, target in reply["links"])
    given = server.post("/attention", {"q": "a dog", "target_text": "DOG CAT"}).json()
    assert [word["text"] for word in given["target_words"]] == ["DOG", "CAT"]
    assert server.post("/attention", {"q": "dog " * 200}).status == 400


def test_what_a_request_may_not_ask_for(server: ServerProcess) -> None:
    for status, reason, fields in (
        (400, "q: expected a text or a list of texts", {"q": 1}),
        (400, "q: contains half a surrogate pair", {"q": "\ud800"}),
        (400, "expected one of these pairs: en to de", {"q": "a", "source": "fr"}),
        (400, "model: expected one of rela-g, softmax", {"q": "a", "model": "x"}),
        (400, "alternatives: expected at most 3, got 4", {"q": "a", "alternatives": 4}),
        (400, "format: expected text; markup such as html", {"q": "a", "format": "html"}),
        (413, "expected at most 20,000 characters, got 20,001", {"q": "a" * 20_001}),
        (413, "expected at most 2,000 lines, got 2,001", {"q": "\n" * 2_000}),
        (413, "the body is larger than 2,000,000 bytes", {"q": "a" * 10_000_000}),
    ):
        reply = server.post("/translate", fields)
        assert (reply.status, reason in reply.json()["error"]) == (status, True), reply.body
    for status, body, kind in (
        (400, b'{"q": "\xff"}', "application/json"),
        (400, b"q=%ff&target=de", "application/x-www-form-urlencoded"),
        (400, b"[" * 100_000, "application/json"),
        (400, b'"text"', "application/json"),
        (400, b"--x\r\n", "multipart/form-data"),
        (415, b"text", "text/plain"),
        (415, PART % b"aaa" + b"--x--\r\n", "multipart/form-data; boundary=x; charset=punycode"),
    ):
        reply = server.ask("POST", "/translate", body, content_type=kind)
        assert reply.status == status, reply.body
        assert set(reply.json()) == {"error"}
    reply = server.post("/translate/stream", {"q": ["a", f"b\n{'a' * 20_001}"]})
    assert reply.status == 413
    assert reply.json()["error"] == "q: expected lines of at most 20,000 characters"
    for status, method, path in (
        (404, "GET", "/nothing"),
        (405, "GET", "/translate"),
        (405, "DELETE", "/languages"),
        (501, "POST", "/detect"),
        (404, "GET", "/%2e%2e/app.py"),
    ):
        reply = server.ask(method, path)
        assert reply.status == status, path
        assert set(reply.json()) == {"error"}


def test_keys_and_their_rates(server: ServerProcess) -> None:
    fields = {"q": "a dog", "target": "de"}
    for wrong in ("", "Bearer wrong", "Bearer ", "Basic x"):
        assert server.post("/translate", fields, authorization=wrong).status == 403
    found = [
        server.post("/translate", {**fields, "api_key": SLOW_KEY}, authorization="")
        for _ in range(4)
    ]
    assert [reply.status for reply in found] == [200, 200, 200, 429]
    assert 1 <= int(found[-1].headers["retry-after"]) <= 20
    both = {**fields, "api_key": KEY}
    assert server.post("/translate", both, authorization="Bearer wrong").status == 403
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        head = b"POST /translate HTTP/1.1\r\nAuthorization: Bearer wrong\r\n"
        connection.sendall(head + b"Content-Length: 900\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 403")  # the body is not waited for
    assert server.translate("a dog")


def test_nothing_of_texts_and_keys_is_logged(server: ServerProcess) -> None:
    server.translate("the young woman")
    server.post("/translate", {"q": "a secret", "source": "secret"})
    logged = server.logged()
    records = [json.loads(line) for line in logged.split("\n") if line.startswith("{")]
    assert {"status": 200, "model": "rela-g", "key": "tests", "characters": 15}.items() <= (
        next(each for each in records[::-1] if each["status"] == 200).items()
    )
    for word in ("young", "YOUNG", "secret", KEY, SLOW_KEY):
        assert word not in logged


def test_a_worker_that_is_killed_under_load_is_replaced(server: ServerProcess) -> None:
    lines = random_lines(60, seed=3, longest=12)
    expected = server.translate(lines)
    endings = server.metric("nmt_worker_endings_total")
    killed = server.workers()[0]
    with ThreadPoolExecutor(10) as threads:
        found = threads.map(server.translate, lines * 3)
        os.kill(killed, signal.SIGKILL)
        assert list(found) == expected * 3
    wait_until(lambda: server.metric("nmt_workers") == 2)
    assert server.metric("nmt_worker_endings_total") == endings + 1
    assert killed not in server.workers()


def test_a_worker_is_replaced_as_soon_as_a_process_can_be_started(server: ServerProcess) -> None:
    """The server may open no further file for a while, so that no process can be started."""
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    start, killed = len(server.logged()), server.workers()[0]
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        os.kill(killed, signal.SIGKILL)
        server.wait_for("a worker process cannot start: .*Too many open files", after=start)
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
    wait_until(lambda: server.metric("nmt_workers") == 2)
    assert server.translate("a dog")


def test_a_busy_server_refuses_and_slow_clients_are_left(server: ServerProcess) -> None:
    """The workers are stopped, so that nothing is answered."""
    start = time.monotonic()
    idle, part, head = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(3))
    part.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    head.sendall(b"POST /translate HTTP/1.1\r\nHost:")
    expected = server.translate("a dog")
    workers = server.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(3) as threads, closing(server.connect()) as leaving:
        try:
            late = [
                threads.submit(server.post, "/translate", {"q": text}) for text in ("cat", "tree")
            ]
            time.sleep(1.0)  # both workers have a batch
            large = {"q": "\n" * 59, "target": "de", "api_key": KEY, "ignored": "x" * 300_000}
            fields = json.dumps(large)
            leaving.request("POST", "/translate", fields, {"content-type": "application/json"})
            wait_until(lambda: server.metric("nmt_waiting_lines") == 60)
            refused = server.post("/translate", {"q": "a dog"})
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            leaving.close()
            wait_until(lambda: server.metric("nmt_waiting_lines") == 0)
            assert [reply.result().status for reply in late] == [504, 504]
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
    assert server.translate("a dog") == expected
    for connection in (idle, part, head):
        connection.settimeout(90)
        answer = connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408") if connection is part else answer == b""
        connection.close()
    assert time.monotonic() - start >= SECONDS


def test_bodies_that_are_cut_short_and_what_is_not_http(server: ServerProcess) -> None:
    for text in (
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000,
        b"GET /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: " + b"x" * 70_000,
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            assert b"Traceback" not in connection.recv(10_000)
    assert server.get("/health").json() == {"status": "ok"}
    assert "Traceback" not in server.logged()


def test_few_requests_of_a_connection_may_wait(server: ServerProcess) -> None:
    for count, answered, status in ((16, 16, b"200 OK"), (17, 1, b"400 Bad Request")):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.sendall(count * b"GET /health HTTP/1.1\r\n\r\n")
            answer = b""
            while answer.count(b"HTTP/1.1 " + status) < answered:
                answer += connection.recv(100_000) or pytest.fail(f"only {answer!r}")
            assert answer.count(b"HTTP/1.1 ") == answered


def test_a_body_may_come_in_small_chunks_and_no_upgrade_is_made(server: ServerProcess) -> None:
    body = json.dumps({"q": "the old man " * 900, "target": "de", "api_key": KEY}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunks = b"".join(b"1\r\n" + body[n : n + 1] + b"\r\n" for n in range(len(body)))
    plain = head + b"Content-Length: %d\r\n" % len(body)
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    for text, status, message in (
        (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", 200, b""),
        (plain + upgrade + body, 403, b"without the header Upgrade"),
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(text)
            connection.settimeout(PATIENCE)
            answer = HTTPResponse(connection)
            answer.begin()
            assert answer.status == status
            assert message in answer.read()


def test_requests_in_a_row_end_with_their_client(server: ServerProcess) -> None:
    """Both requests are on one connection; the second waits for the first."""
    body = json.dumps({"q": ["the old man sees a dog"] * 240, "target": "de", "api_key": KEY})
    head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request_ = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    workers = server.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(2 * request_)
            wait_until(lambda: waiting_lines(server) > 0)
        wait_until(lambda: waiting_lines(server) == 0)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)


def waiting_lines(server: ServerProcess) -> int:
    """The lines that wait, by the metrics."""
    (line,) = re.findall(r"^nmt_waiting_lines (\d+)$", server.get("/metrics").body.decode(), re.M)
    return int(line)


def test_reload_then_a_broken_model_then_the_end(models: dict[str, Path], tmp_path: Path) -> None:
    """SIGHUP loses no request and no worker, early as well; SIGTERM answers what has come."""
    path = tmp_path / "model"
    shutil.copytree(models["softmax"], path)
    lines = random_lines(30, seed=5, longest=12)
    old, new = (by_command(models[name], lines, tmp_path) for name in ("softmax", "rela-g"))
    options = ("--model", str(path), "--workers", "1", "--root-path", "/mt", "--log-text")
    early = signal.SIGHUP
    with serving(tmp_path, *options, early=early) as server, ThreadPoolExecutor(4) as threads:
        server.wait_for("reloaded: model")
        assert len(server.workers()) == 1
        assert server.translate(lines) == old
        before = len(server.logged())
        path.rename(tmp_path / "old")
        shutil.copytree(models["rela-g"], path)
        server.process.send_signal(signal.SIGHUP)
        answers = []
        while "reloaded: model" not in server.logged()[before:]:
            answers += threads.map(server.translate, [lines] * 4)
        for answer in answers:  # a slow model may have the lines of a request in two batches
            assert all(line in both for line, *both in zip(answer, old, new, strict=True))
        assert server.translate(lines) == new
        (path / "model.safetensors").write_bytes(b"damaged")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("error: not reloaded, the models and keys of before stay: .*safetensors")
        assert server.translate(lines) == new
        assert f'"translations": {json.dumps(new)}' in server.logged()
        assert server.get("/openapi.json").json()["servers"] == [{"url": "/mt"}]
        # A server without keys is safe from pages whose names lead to this machine.
        for host, status in (("evil.example", 403), ("127.0.0.1.evil.example:80", 403),
                             ("localhost:9", 200), ("[::1]:80", 200)):  # fmt: skip
            assert server.ask("GET", "/models", host=host).status == status
        form = f"q={lines[0].replace(' ', '+')}&source=en&target=de".encode()
        own = f"http://127.0.0.1:{server.port}"
        for headers, status in (
            ({"origin": "https://evil.example"}, 403),
            ({"origin": "null"}, 403),
            ({"origin": own, "sec_fetch_site": "cross-site"}, 403),
            ({"origin": "https://mt.example", "x_forwarded_for": "10.1.1.1"}, 200),
            ({"sec_fetch_site": "cross-site", "x_forwarded_for": "10.1.1.1"}, 403),
            ({"origin": "https://mt.example", "sec_fetch_site": "same-origin"}, 200),
            ({"origin": own}, 200),
            ({}, 200),
        ):
            kind = "application/x-www-form-urlencoded"
            reply = server.ask("POST", "/translate", form, content_type=kind, **headers)
            assert (headers, reply.status) == (headers, status)

        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        accepted = [threads.submit(server.translate, line) for line in lines[:4]]
        time.sleep(1.0)
        threading.Timer(1.0, os.kill, (worker, signal.SIGCONT)).start()
        assert server.stop() == 143
        assert [each.result() for each in accepted] == new[:4]
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")


def test_mistakes_are_one_line(
    models: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(models["softmax"])
    keys = tmp_path / "keys"
    keys.write_text("client short\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for code, message, options in (
            (2, f"--port {port}: Address already in use", ["--model", model, "--port", port]),
            (2, "others can reach this address", ["--model", model, "--host=0.0.0.0"]),
            (2, "--host a..b --port 0: ", ["--model", model, "--host=a..b"]),
            (2, "there is another model softmax; give NAME=DIR", ["--model", model] * 2),
            (2, f"{keys}:1: expected a key of at least", ["--model", model, "--keys", str(keys)]),
            (2, "give NAME=DIR, with a name of letters", ["--model", f"{model}/a b"]),
            (2, "--root-path: expected a path", ["--model", model, "--root-path", "x"]),
            (3, "expected a model or run directory", ["--model", "nowhere", "--workers", "1"]),
        ):  # fmt: skip
            assert main([*options, *([] if "--port" in options else ["--port", "0"])]) == code
            error = capfd.readouterr().err
            assert message in error
            assert error.count("\n") == 1
