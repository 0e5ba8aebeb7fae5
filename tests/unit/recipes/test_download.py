"""Downloads end with the right file or with none, whatever the server does."""

import fcntl
import hashlib
import io
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.client import HTTPMessage
from pathlib import Path

import pytest
from support.web_server import Served, serve

from nmt.errors import DataError, IntegrityError, LockedError
from nmt.recipes.checksums import Expected
from nmt.recipes.download import (
    Patience,
    RemoteFile,
    UnavailableError,
    _CarefulRedirects,
    check_address,
    fetch,
)

CONTENT = random.Random(1).randbytes(50_000)
OTHER = random.Random(2).randbytes(50_000)
QUICK = Patience(timeout=5.0, attempts=3, pause=0.001)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server() -> Iterator[Served]:
    with serve(Served({"/a.tgz": CONTENT, "/b.tgz": OTHER})) as served:
        yield served


def remote(server: Served, *paths: str, **expected: object) -> RemoteFile:
    urls = tuple(f"{server.url}{path}" for path in paths or ("/a.tgz",))
    return RemoteFile("x/a.tgz", urls, Expected(**expected))  # type: ignore[arg-type]


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "x").iterdir() if path.name != "a.tgz")


def test_a_file_comes_whole_and_once(server, tmp_path):
    file = remote(server, size=len(CONTENT), sha256=sha256(CONTENT))
    path = fetch(file, tmp_path, patience=QUICK)
    assert path == tmp_path / "x/a.tgz"
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path) == []
    assert fetch(file, tmp_path, patience=QUICK) == path
    assert len(server.requests) == 1


def test_fifty_cuts_are_survived_without_sending_anything_twice(server, tmp_path):
    server.cuts = [random.Random(3).randrange(1, 1_000) for _ in range(50)]
    path = fetch(remote(server), tmp_path, patience=QUICK)
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 51
    assert server.sent == len(CONTENT)


def test_a_later_call_goes_on_where_the_first_was_cut(server, tmp_path):
    server.cuts = [20_000, 0, 0, 0]
    with pytest.raises(DataError, match=r"cannot be downloaded .*3 attempts"):
        fetch(remote(server), tmp_path, patience=QUICK)
    assert (tmp_path / "x/a.tgz.part").read_bytes() == CONTENT[:20_000]
    assert not (tmp_path / "x/a.tgz").exists()
    server.requests.clear()
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT
    assert server.requests == [("/a.tgz", "bytes=20000-")]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "weakness", [{"ranges": False}, {"validators": False}], ids=["no ranges", "no validator"]
)
def test_a_server_that_cannot_go_on_is_asked_for_all_again(server, tmp_path, weakness):
    for name, value in weakness.items():
        setattr(server, name, value)
    server.cuts = [30_000, 40_000]
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT


@pytest.mark.parametrize("careless", [False, True], ids=["If-Range honoured", "If-Range ignored"])
@pytest.mark.parametrize("size", [50_000, 30_000, 70_000])
def test_a_file_that_changes_is_never_mixed_with_the_old_one(server, tmp_path, size, careless):
    server.check_if_range = not careless
    server.cuts = [20_000, 0, 0, 0]
    with pytest.raises(DataError):
        fetch(remote(server), tmp_path, patience=QUICK)
    new = random.Random(4).randbytes(size)
    server.files["/a.tgz"], server.version = new, "2"
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == new


def test_a_wrong_file_is_deleted(server, tmp_path):
    file = remote(server, sha256=sha256(OTHER))
    with pytest.raises(IntegrityError, match="expected sha256") as caught:
        fetch(file, tmp_path, patience=QUICK)
    assert caught.value.exit_code == 7
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "x/a.tgz").exists()


def test_a_wrong_size_is_refused_before_the_body(server, tmp_path):
    with pytest.raises(IntegrityError, match="expected 7 bytes"):
        fetch(remote(server, size=7), tmp_path, patience=QUICK)
    assert leftovers(tmp_path) == []


def test_another_mirror_helps_against_a_wrong_or_missing_file(server, tmp_path):
    file = remote(server, "/gone.tgz", "/b.tgz", "/a.tgz", sha256=sha256(CONTENT))
    assert fetch(file, tmp_path, patience=QUICK).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/gone.tgz", "/b.tgz", "/a.tgz"]


def test_busy_servers_are_asked_again(server, tmp_path):
    server.failures = [503, 429]
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT


def test_plain_http_needs_a_known_sum():
    check_address("http://x.org/a", Expected(sha256=sha256(CONTENT)))
    with pytest.raises(DataError, match="expected an https address"):
        check_address("http://x.org/a", Expected(size=3, md5="0" * 32))


@pytest.mark.parametrize("text", ["[]", "{", '{"x/a.tgz": {"size": 3}}', '{"x/a.tgz": 1}'])
def test_a_damaged_record_of_sums_is_one_line(server, tmp_path, text):
    (tmp_path / "checksums.json").write_text(text)
    with pytest.raises(DataError, match=r"checksums\.json: expected .*; remove the file"):
        fetch(remote(server), tmp_path, patience=QUICK)


RECORD = """
import sys
from pathlib import Path
from nmt.recipes.checksums import ChecksumFile, Expected
directory, name = Path(sys.argv[1]), sys.argv[2]
for number in range(20):
    path = directory / f"{name}{number}"
    path.write_bytes(path.name.encode())
    ChecksumFile(directory / "checksums.json").verify(path.name, path, Expected())
"""


def test_two_processes_record_their_sums_in_one_file(tmp_path):
    commands = [[sys.executable, "-c", RECORD, str(tmp_path), name] for name in "ab"]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert len(json.loads((tmp_path / "checksums.json").read_bytes())) == 40


def test_the_first_use_is_recorded_and_holds(server, tmp_path, caplog):
    path = fetch(remote(server), tmp_path, patience=QUICK)
    (said,) = [record.message for record in caplog.records if "no checksum" in record.message]
    assert f"x/a.tgz: no checksum is published; 50000 bytes with sha256 {sha256(CONTENT)}" in said
    record = json.loads((tmp_path / "checksums.json").read_bytes())["x/a.tgz"]
    assert (record["sha256"], record["size"]) == (sha256(CONTENT), len(CONTENT))
    path.unlink()
    server.files["/a.tgz"], server.version = OTHER, "2"
    with pytest.raises(IntegrityError, match=r"recorded on .* remove 'x/a.tgz' from"):
        fetch(remote(server), tmp_path, patience=QUICK)
    assert not path.exists()
    server.files["/a.tgz"], server.version = CONTENT, "3"
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT


def test_a_file_that_was_damaged_on_disk_is_fetched_again(server, tmp_path):
    path = fetch(remote(server, sha256=sha256(CONTENT)), tmp_path, patience=QUICK)
    path.write_bytes(CONTENT[:-1] + b"x")
    fetch(remote(server, sha256=sha256(CONTENT)), tmp_path, patience=QUICK)
    assert path.read_bytes() == CONTENT


def test_the_message_names_every_address(server, tmp_path):
    with pytest.raises(DataError, match=r"/gone: status 404.*/lost: status 404") as caught:
        fetch(remote(server, "/gone", "/lost"), tmp_path, patience=QUICK)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "x/a.tgz") in str(caught.value)


@pytest.mark.parametrize("place", ["file:///etc/hostname", "ftp://127.0.0.1/x"])
def test_redirections_lead_nowhere_but_to_web_servers(server, tmp_path, place):
    server.redirects["/a.tgz"] = place
    with pytest.raises(DataError):
        fetch(remote(server), tmp_path, patience=QUICK)
    assert leftovers(tmp_path) == []
    server.redirects["/a.tgz"] = "/b.tgz"
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == OTHER


def test_https_is_never_left_for_http():
    request = urllib.request.Request("https://example.org/a")
    redirects = _CarefulRedirects()
    with pytest.raises(UnavailableError, match="expected an https address"):
        redirects.redirect_request(request, io.BytesIO(), 302, "", HTTPMessage(), "http://x.org/a")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://x/y", "x.tgz", "http://x.org/a"])
def test_other_addresses_are_refused(tmp_path, url):
    with pytest.raises(DataError, match="expected an https address"):
        fetch(RemoteFile("a", (url,)), tmp_path)


def test_a_mirror_has_hosts_as_directories(server, tmp_path):
    server.files["/www.example.org/a/b.tgz"] = CONTENT
    file = RemoteFile("b.tgz", ("https://www.example.org/a/b.tgz",))
    assert fetch(file, tmp_path, mirror=server.url, patience=QUICK).read_bytes() == CONTENT
    with pytest.raises(DataError, match="expected an https address"):
        fetch(file, tmp_path / "other", mirror="http://example.org", patience=QUICK)


def test_two_processes_do_not_write_one_file(server, tmp_path):
    (tmp_path / "x").mkdir()
    with (tmp_path / "x/a.tgz.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process"):
            fetch(remote(server), tmp_path, patience=QUICK)
    assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT
