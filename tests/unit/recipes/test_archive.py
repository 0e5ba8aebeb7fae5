"""Archives: what is wanted comes out byte for byte; nothing else is written, wherever it points."""

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nmt.errors import DataError
from nmt.recipes.archive import extract

WANTED = "training/europarl.en"
TEXT = "".join(f"line {number}\n" for number in range(2000)).encode()
LIMIT = 1 << 20
TYPES = {
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "character": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "directory": tarfile.DIRTYPE,
}


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, size, 0o777
    return info


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar archive whose headers need not be honest."""
    content = b"".join(
        info.tobuf(form, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)
        for info, data in members
    )
    return content + bytes(1024)


def file(name: str, data: bytes = TEXT) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, size=len(data)), data


def honest_tar() -> bytes:
    return tar(
        (entry("training", tarfile.DIRTYPE), b""),
        file("training/other.en", b"other"),
        file(f"./{WANTED}"),
        (entry("training/link", tarfile.SYMTYPE, "other.en"), b""),
    )


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def zip_link(name: str, target: str) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target.encode()


def long_tar() -> bytes:
    long = "/".join(["deep" * 20] * 5)
    return tar(file(f"{long}/x", b"x"), file(WANTED))


HONEST: dict[str, Callable[[], bytes]] = {
    "a.tar": honest_tar,
    "a.tgz": lambda: gzip.compress(honest_tar()),
    "a.tar.gz": lambda: gzip.compress(honest_tar()[:3000]) + gzip.compress(honest_tar()[3000:]),
    "a.tar.xz": lambda: lzma.compress(honest_tar()),
    "a.tar.bz2": lambda: bz2.compress(honest_tar()),
    "a.zip": lambda: zipped(("training/", b""), ("x", b"x"), (WANTED, TEXT)),
    "gnu-long.tar": long_tar,
    "pax.tar": lambda: tar(file("ä" * 120, b"x"), file(WANTED), form=tarfile.PAX_FORMAT),
}


@pytest.mark.parametrize("name", HONEST)
def test_wanted_members_come_out_and_nothing_else(tmp_path, name):
    (tmp_path / name).write_bytes(HONEST[name]())
    extract([tmp_path / name], [WANTED], tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if not path.is_dir()]
    assert files == [tmp_path / "out" / WANTED]
    assert files[0].read_bytes() == TEXT
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out"])


def test_a_tar_of_the_system_is_read(tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / WANTED).write_bytes(TEXT)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.add(tmp_path / "training", "training")
    extract([tmp_path / "a.tgz"], [WANTED], tmp_path / "out")
    assert (tmp_path / "out" / WANTED).read_bytes() == TEXT


def test_a_single_compressed_file_and_an_archive_in_parts(tmp_path):
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(TEXT))
    extract([tmp_path / "train.en.gz"], ["train.en"], tmp_path / "one")
    assert (tmp_path / "one/train.en").read_bytes() == TEXT
    for suffix in ("tgz", "zip"):
        whole = HONEST[f"a.{suffix}"]()
        parts = [tmp_path / f"a.{suffix}.00", tmp_path / f"a.{suffix}.01"]
        parts[0].write_bytes(whole[:700])
        parts[1].write_bytes(whole[700:])
        extract(parts, [WANTED], tmp_path / suffix)
        assert (tmp_path / suffix / WANTED).read_bytes() == TEXT


def negative_size() -> bytes:
    header = bytearray(entry("x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 11 + b"\x00"
    return with_checksum(header) + tar(file(WANTED))


def with_checksum(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def pax(records: dict[str, str], *rest: tuple[tarfile.TarInfo, bytes]) -> bytes:
    info = entry("x", size=len(TEXT))
    info.pax_headers = records
    return info.tobuf(tarfile.PAX_FORMAT) + TEXT + bytes(-len(TEXT) % 512) + tar(*rest)


def huge_extended_header() -> bytes:
    return tar((entry("x", tarfile.XHDTYPE, size=1 << 33), b"30 path=" + b"a" * 500))


def through_links(outside: str) -> bytes:
    """A chain of links whose names grow until a path check gives up, then a file through it."""
    long = "d" * 247
    members = []
    path = ""
    for letter in "abcdefghijklmnop":
        members.append((entry(f"{path}{long}", tarfile.DIRTYPE), b""))
        members.append((entry(f"{path}{letter}", tarfile.SYMTYPE, long), b""))
        path += f"{letter}/"
    members.append((entry(f"{path}{'l' * 254}", tarfile.SYMTYPE, "../" * 16), b""))
    members.append((entry("escape", tarfile.SYMTYPE, f"{path}{'l' * 254}/{outside}"), b""))
    members.append((entry(WANTED, tarfile.LNKTYPE, "escape"), b""))
    members.append(file(WANTED))
    return tar(*members)


def lying_zip() -> bytes:
    """The directory announces fewer bytes than the member unpacks to."""
    content = zipped((WANTED, bytes(500_000)))
    return content.replace((500_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))


def encrypted_zip() -> bytes:
    content = bytearray(zipped((WANTED, TEXT)))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "parent": lambda: tar(file("../evil"), file(WANTED)),
    "parent inside": lambda: tar(file("a/../../evil"), file(WANTED)),
    "parent after the wanted": lambda: tar(file(WANTED), file("../evil")),
    "parent directory": lambda: tar((entry("..", tarfile.DIRTYPE), b""), file(WANTED)),
    "parent that stays inside": lambda: tar(file("a/../training/europarl.en")),
    "absolute": lambda: tar(file("/tmp/evil"), file(WANTED)),
    "absolute twice": lambda: tar(file("//tmp/evil"), file(WANTED)),
    "backslashes": lambda: tar(file("..\\evil"), file(WANTED)),
    "drive": lambda: tar(file("C:/evil"), file(WANTED)),
    "line feed": lambda: tar(file("a\nb"), file(WANTED)),
    "name of a megabyte": lambda: tar(file("a/" * 50_000 + "b"), file(WANTED)),
    "duplicate": lambda: tar(file(WANTED), file(WANTED, b"other")),
    "duplicate in disguise": lambda: tar(file(WANTED), file(f"./{WANTED}", b"other")),
    "capitals": lambda: tar(file(WANTED), file("Training/Europarl.EN")),
    **{
        f"wanted is a {name}": lambda kind=kind: tar((entry(WANTED, kind, "/etc/hostname"), b""))
        for name, kind in TYPES.items()
    },
    "file through a link": lambda: tar(
        (entry("training", tarfile.SYMTYPE, "../outside"), b""),
        (entry(WANTED, tarfile.SYMTYPE, "x"), b""),
        file(WANTED),
    ),
    "file over a hard link": lambda: tar(
        (entry(WANTED, tarfile.LNKTYPE, "../outside/victim"), b""), file(WANTED)
    ),
    "chain of links": lambda: through_links("outside/victim"),
    "hard link to a link": lambda: tar(
        (entry("a", tarfile.SYMTYPE, "../outside/victim"), b""),
        (entry(WANTED, tarfile.LNKTYPE, "a"), b""),
        file(WANTED),
    ),
    "ten gigabytes": lambda: gzip.compress(tar((entry(WANTED, size=10 << 30), bytes(4096)))),
    "ten gigabytes beside": lambda: gzip.compress(tar((entry("x", size=10 << 30), bytes(4096)))),
    "zeros without end": lambda: gzip.compress(bytes(8 << 20)),
    "many files": lambda: tar(*[file(f"f{n}", bytes(100_000)) for n in range(12)], file(WANTED)),
    "negative size": negative_size,
    "extended path": lambda: pax({"path": "../evil"}, file(WANTED)),
    "extended size": lambda: pax({"size": "99999999999"}, file(WANTED)),
    "extended nonsense": lambda: pax({"size": "-1"}, file(WANTED)),
    "sparse": lambda: pax(
        {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": WANTED,
            "GNU.sparse.realsize": "99999999999",
        }
    ),
    "sparse of the first kind": lambda: pax(
        {"GNU.sparse.map": "0,1,100000,1", "GNU.sparse.size": "100001", "path": WANTED}
    ),
    "old sparse": lambda: tar((entry(WANTED, tarfile.GNUTYPE_SPARSE, size=512), bytes(512))),
    "huge extended header": huge_extended_header,
    "long name outside": lambda: tar(file("../" * 60 + "evil"), file(WANTED)),
    "header damaged": lambda: honest_tar()[:100] + b"\1" + honest_tar()[101:],
    "cut in a header": lambda: honest_tar()[:700],
    "cut in a member": lambda: honest_tar()[:5000],
    "gzip cut": lambda: gzip.compress(honest_tar())[:-300],
    "gzip without its sum": lambda: gzip.compress(honest_tar())[:-4],
    "gzip with a wrong sum": lambda: gzip.compress(honest_tar())[:-8] + b"abcdabcd",
    "no archive": lambda: b"<html>Not found</html>" * 100,
    "empty": lambda: b"",
    "member missing": lambda: tar(file("x")),
    "zip: parent": lambda: zipped(("../evil", b"x"), (WANTED, TEXT)),
    "zip: absolute": lambda: zipped(("/tmp/evil", b"x"), (WANTED, TEXT)),
    "zip: backslashes": lambda: zipped(("..\\evil", b"x"), (WANTED, TEXT)),
    "zip: wanted is a link": lambda: zipped(zip_link(WANTED, "../../outside/victim")),
    "zip: capitals": lambda: zipped((WANTED, TEXT), ("TRAINING/europarl.en", b"x")),
    "zip: bomb": lambda: zipped((WANTED, bytes(4 << 20))),
    "zip: lying size": lying_zip,
    "zip: encrypted": encrypted_zip,
    "zip: cut": lambda: zipped((WANTED, TEXT))[:-100],
    "zip: damaged": lambda: zipped((WANTED, TEXT)).replace(b"\x00\x00\xff", b"\x01", 1)[:300],
}


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_write_nothing(tmp_path, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/victim").write_bytes(b"precious")
    (tmp_path / "in").mkdir()
    archive = tmp_path / "in" / ("a.zip" if name.startswith("zip") else "a.tgz")
    archive.write_bytes(HOSTILE[name]())
    before = snapshot(tmp_path)
    with pytest.raises(DataError, match=r"a\.(tgz|zip)") as caught:
        extract([archive], [WANTED], tmp_path / "work/out", max_bytes=LIMIT)
    assert "\n" not in str(caught.value)
    (tmp_path / "work").rmdir()  # nothing was left in it
    assert snapshot(tmp_path) == before
    assert not os.path.lexists("/tmp/evil")


def test_there_are_enough_of_them():
    assert len(HOSTILE) >= 40


def test_the_usual_limit_allows_for_text_that_packs_well(tmp_path):
    data = b"the same line\n" * 1_000_000  # a thousandth of it, packed
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar(file(WANTED, data))))
    extract([tmp_path / "a.tgz"], [WANTED], tmp_path / "out")
    assert (tmp_path / "out" / WANTED).stat().st_size == len(data)


def test_a_directory_that_is_a_link_in_the_archive_is_a_directory_here(tmp_path):
    (tmp_path / "outside").mkdir()
    link = (entry("training", tarfile.SYMTYPE, str(tmp_path / "outside")), b"")
    (tmp_path / "a.tar").write_bytes(tar(link, file(WANTED)))
    extract([tmp_path / "a.tar"], [WANTED], tmp_path / "out")
    assert (tmp_path / "out" / WANTED).read_bytes() == TEXT
    assert not (tmp_path / "out/training").is_symlink()
    assert list((tmp_path / "outside").iterdir()) == []


# ---------------------------------------------------------------- mutations


FORMS = ("a.zip", "a.tar", "a.tgz", "pax.tar", "gnu-long.tar")
SHORT = b"one line\n" * 20


def small(name: str) -> bytes:
    """An archive of a few hundred bytes, so that mutations often hit what is parsed."""
    members = [file("training/other.en", b"x"), file(WANTED, SHORT)]
    if name == "a.zip":
        return zipped(("training/", b""), ("ä.txt", b"x"), (WANTED, SHORT))
    if name == "gnu-long.tar":
        members.insert(0, file("long/" * 40 + "x", b"y"))
    if name == "pax.tar":
        return tar(file("ü" * 70, b"x"), *members, form=tarfile.PAX_FORMAT)
    return gzip.compress(tar(*members)) if name == "a.tgz" else tar(*members)


def mutated(content: bytes, generator: random.Random) -> bytes:
    """The content with one to four random changes."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(changed))
        kind = generator.randrange(6)
        if kind == 0:
            changed[place] ^= 1 << generator.randrange(8)
        elif kind == 1:
            changed[place] = generator.randrange(256)
        elif kind == 2:
            changed[place : place + generator.choice((1, 2, 4, 8))] = b"\xff" * 4
        elif kind == 3:
            del changed[place : place + generator.randint(1, 30)]
        elif kind == 4:
            changed[place:place] = generator.randbytes(generator.randint(1, 30))
        else:
            other = generator.randrange(len(changed))
            changed[place : place + 20] = changed[other : other + 20]
        changed = changed or bytearray(b"P")
    return bytes(changed)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: thousands of small files take long on a disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


def check_mutations(directory: Path, name: str, count: int) -> None:
    """Extract mutated archives: each gives the wanted file and nothing else, or one line."""
    whole, generator = small(name), random.Random(name)
    work = directory / "work"
    work.mkdir()
    (directory / "in").mkdir()
    archive = directory / "in" / name
    messages = []
    for _ in range(count):
        archive.write_bytes(mutated(whole, generator))
        try:
            extract([archive], [WANTED], work / "out")
        except DataError as error:
            messages.append(str(error))
            assert list(work.iterdir()) == []
        else:
            files = [path for path in work.rglob("*") if not path.is_dir()]
            assert files == [work / "out" / WANTED]
            assert not files[0].is_symlink()
            shutil.rmtree(work / "out")
    assert sorted(path.name for path in directory.iterdir()) == ["in", "work"]
    assert count / 10 < len(messages) < count
    assert [message for message in messages if "\n" in message] == []


@pytest.mark.parametrize("name", FORMS)
def test_damaged_archives_are_one_line(in_memory, name):
    check_mutations(in_memory, name, 2500 if name == "a.zip" else 500)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_twelve_thousand_damaged_archives_of_each_form(in_memory, name):
    check_mutations(in_memory, name, 12_000)
