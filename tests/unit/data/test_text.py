"""The reader and the writer of text lines."""

import bz2
import gzip
import io
import logging
import lzma
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.text import (
    EMPTY,
    INVALID_UTF8,
    TOO_LONG,
    BadLine,
    LineWriter,
    Pair,
    ReadStatistics,
    read_lines,
    read_pairs,
    read_stream,
    read_text,
)
from nmt.errors import DataError, StorageError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
LINES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"), max_size=20),
    min_size=1,
    max_size=20,
)


def lines_of(data: bytes, max_bytes: int = 1_000_000) -> list[str | BadLine]:
    return list(read_stream(io.BytesIO(data), "stream", max_bytes=max_bytes))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def pairs_of(
    directory: Path, source: bytes, target: bytes, **options: object
) -> tuple[list[Pair], ReadStatistics]:
    statistics = ReadStatistics()
    pairs = list(
        read_pairs(
            [write(directory / "a.en", source)],
            [write(directory / "a.de", target)],
            statistics=statistics,
            **options,  # type: ignore[arg-type]
        )
    )
    return pairs, statistics


# Lines


@given(LINES)
def test_every_character_survives_and_only_line_feeds_end_lines(lines: list[str]) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    assert lines_of(data) == lines
    assert lines_of(data.replace(b"\n", b"\r\n")) == lines
    if lines[-1]:
        assert lines_of(data[:-1]) == lines


@pytest.mark.parametrize("separator", list("\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\x00\xa0\u3000"))
def test_other_separators_stay_inside_the_line(separator: str) -> None:
    assert lines_of(f"a{separator}b\nc\n".encode()) == [f"a{separator}b", "c"]


def test_one_carriage_return_is_dropped() -> None:
    assert lines_of(b"a\r\r\n\r\nb\r") == ["a\r", "", "b"]


def test_byte_order_mark_is_dropped_at_the_start_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert lines_of("\ufeffa\n\ufeffb\n".encode()) == ["a", "\ufeffb"]
    assert "byte order mark" in caplog.text


def test_all_unicode_scalar_values_inside_a_word(tmp_path: Path) -> None:
    values = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and code != 10]
    assert len(values) == 1_112_063
    path = write(tmp_path / "all", "".join(f"a{value}b\n" for value in values).encode())
    assert all(line == f"a{value}b" for line, value in zip(read_lines(path), values, strict=True))


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe4\xb8", b"\xf4\x90\x80\x80"]
)
def test_invalid_bytes_are_located(bad: bytes, tmp_path: Path) -> None:
    data = "é\n".encode() + b"ab" + bad + b"c\nd\n"
    assert lines_of(data) == ["é", BadLine(INVALID_UTF8, 2, 5), "d"]
    path = write(tmp_path / "x", data)
    with pytest.raises(DataError, match=r"x:2: invalid UTF-8 \(byte 5"):
        list(read_text(path))


def test_offset_after_a_byte_order_mark_counts_from_the_file() -> None:
    assert lines_of(b"\xef\xbb\xbfa\xff\n") == [BadLine(INVALID_UTF8, 1, 4)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("length", [8, 9, 10, 11, 12, 50])
def test_length_limit_is_exact(length: int, ending: bytes) -> None:
    expected = "x" * length if length <= 10 else BadLine(TOO_LONG, 2, 2)
    after = ["y"] if ending else []
    data = b"a\n" + b"x" * length + ending + (b"y" if ending else b"")
    assert lines_of(data, max_bytes=10) == ["a", expected, *after]


def test_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "empty", b""))) == []


# Archives


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("named", [True, False])
def test_archives_are_known_by_their_content(suffix: str, named: bool, tmp_path: Path) -> None:
    data = "zwei\nZeilen ü\n".encode()
    path = write(tmp_path / (f"x{suffix}" if named else "x"), COMPRESS[suffix](data))
    assert list(read_text(path)) == ["zwei", "Zeilen ü"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_archives_of_several_members_are_one_text(suffix: str, tmp_path: Path) -> None:
    pack = COMPRESS[suffix]
    path = write(tmp_path / f"x{suffix}", pack(b"a\nb") + pack(b"c\n") + pack(b"d"))
    assert list(read_text(path)) == ["a", "bc", "d"]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.999])
def test_truncated_archives_are_errors(suffix: str, part: float, tmp_path: Path) -> None:
    whole = COMPRESS[suffix]("".join(f"line {n * n}\n" for n in range(5000)).encode())
    path = write(tmp_path / f"x{suffix}", whole[: int(len(whole) * part)])
    with pytest.raises(DataError, match=f"x{suffix}: "):
        list(read_text(path))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_archives_are_errors(suffix: str, tmp_path: Path) -> None:
    whole = bytearray(COMPRESS[suffix]("".join(f"line {n * n}\n" for n in range(5000)).encode()))
    for position in range(len(whole) // 3, len(whole) // 3 + 40):
        whole[position] ^= 0x5A
    with pytest.raises(DataError, match=f"x{suffix}: "):
        list(read_text(write(tmp_path / f"x{suffix}", bytes(whole))))


def test_archive_name_without_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"named \.gz"):
        list(read_text(write(tmp_path / "x.gz", b"plain text\n")))


def test_text_that_begins_like_an_archive_is_text(tmp_path: Path) -> None:
    assert list(read_text(write(tmp_path / "x", b"BZh9 is a magic number\n"))) == [
        "BZh9 is a magic number"
    ]


def test_giant_lines_cost_bounded_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "long.gz", "wb", 1) as stream:
        stream.write(b"a\n")
        for _ in range(200):
            stream.write(b"x" * 1_000_000)
        stream.write(b"\nb\n")
    (tmp_path / "long.txt").write_bytes(b"x" * 10_000_000 + b"\nb\n")
    program = (
        "import resource, sys; from pathlib import Path; from nmt.data.text import *\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "lines = [line for name in sys.argv[1:] for line in read_lines(Path(name))]\n"
        "growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print([getattr(line, 'reason', line) for line in lines], growth)\n"
    )
    files = [str(tmp_path / "long.gz"), str(tmp_path / "long.txt")]
    result = subprocess.run(
        [sys.executable, "-c", program, *files], capture_output=True, text=True, check=True
    )
    lines, _, growth = result.stdout.rpartition(" ")
    assert lines == str(["a", TOO_LONG, "b", TOO_LONG, "b"])
    assert int(growth) < 20_000  # kilobytes


# Files that cannot be used


def make_unusable(kind: str, directory: Path) -> Path:
    path = directory / "train.en"
    if kind == "empty":
        path.touch()
    elif kind == "blank":
        path.write_bytes(b"  \n\t\n\xc2\xa0\n")
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        return Path(os.devnull)
    elif kind == "unreadable" and os.geteuid() != 0:
        path.write_text("a\n")
        path.chmod(0)
    elif kind == "unreadable":  # nothing but this is unreadable for root
        path.symlink_to(path)
    return path


@pytest.mark.parametrize(
    "kind", ["empty", "blank", "missing", "directory", "pipe", "device", "unreadable"]
)
@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("side", [0, 1])
def test_unusable_files_are_one_line_errors(
    kind: str, policy: str, side: int, tmp_path: Path
) -> None:
    paths = [make_unusable(kind, tmp_path), write(tmp_path / "other", b"a\nb\nc\n")]
    source, target = paths[side], paths[1 - side]
    with pytest.raises(DataError) as caught:
        list(read_pairs([source], [target], on_bad_line=policy))  # type: ignore[arg-type]
    assert str(paths[0]) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


# Pairs


def test_pairs_of_lists_of_files(tmp_path: Path) -> None:
    source = [write(tmp_path / "1.en", b"a\nb\n"), write(tmp_path / "2.en", b"c")]
    target = [write(tmp_path / "1.de", b"A\r\nB"), write(tmp_path / "2.de", b"C\n")]
    expected = [("a", "A"), ("b", "B"), ("c", "C")]
    assert list(read_pairs(source, target)) == expected
    whole = write(tmp_path / "all.de", b"A\nB\nC\n")
    assert list(read_pairs(source, [whole])) == expected


@pytest.mark.parametrize("ragged", [0, 1])
@pytest.mark.parametrize(
    ("long", "short"),
    [
        (b"a\n" * 3, b"a\n" * 2),
        (b"a\n" * 3, b"a\n"),
        (b"a\n" * 2003, b"a\n" * 1003),
        (b"a\na\n\n", b"a\na\n"),
        (b"a\na\n\n\n", b"a\na"),
        (b"a\na\na", b"a\na\n"),
        (b"a\na", b"a\n"),
    ],
)
def test_ragged_files_are_errors_with_both_counts(
    long: bytes, short: bytes, ragged: int, tmp_path: Path
) -> None:
    source, target = (long, short) if ragged == 0 else (short, long)
    counts = [data.count(b"\n") + (data[-1:] != b"\n") for data in (source, target)]
    for policy in ("error", "skip"):
        with pytest.raises(DataError) as caught:
            pairs_of(tmp_path, source, target, on_bad_line=policy)
        for name, count in zip(("a.en", "a.de"), counts, strict=True):
            assert f"{name} has {count}" in str(caught.value)


def test_ragged_files_that_cancel_out_are_errors(tmp_path: Path) -> None:
    source = [write(tmp_path / "1.en", b"a\nb\n"), write(tmp_path / "2.en", b"c\n")]
    target = [write(tmp_path / "1.de", b"A\n"), write(tmp_path / "2.de", b"B\nC\n")]
    with pytest.raises(DataError, match=r"1\.en has 2 lines but \S*1\.de has 1"):
        list(read_pairs(source, target))


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (b"\xff", r"a\.de:2: invalid UTF-8 \(byte 2 "),
        (b"x" * 101, r"a\.de:2: line longer than 100 bytes"),
        (b" \xc2\xa0 ", r"a\.de:2: empty line"),
        (b"", r"a\.de:2: empty line"),
    ],
)
def test_bad_lines_stop_and_say_how_to_go_on(bad: bytes, place: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=place) as caught:
        pairs_of(tmp_path, b"a\nb\nc\n", b"A\n" + bad + b"\nC\n", max_bytes=100)
    assert "data.on_bad_line: skip" in str(caught.value)


def test_bad_line_in_a_list_of_files_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "all.en", b"a\nb\nc\nd\n")
    target = [write(tmp_path / "1.de", b"A\nB\n"), write(tmp_path / "2.de", b"C\n\n")]
    with pytest.raises(DataError, match=r"2\.de:2: empty line"):
        list(read_pairs([source], target))


def test_bad_lines_are_skipped_in_pairs_and_counted(tmp_path: Path) -> None:
    source = b"a\n\xff\nc\nd\ne\n \n"
    target = b"A\nB\n\xff\n\n" + b"E" * 200 + b"\n\xff\n"
    pairs, statistics = pairs_of(tmp_path, source, target, on_bad_line="skip", max_bytes=100)
    assert pairs == [("a", "A")]
    assert statistics.read == 6
    assert statistics.skipped == {INVALID_UTF8: 2, EMPTY: 2, TOO_LONG: 1}


SIDE = st.sampled_from([b"good", "für \u2028".encode(), b"", b"  ", b"\xff\xfe", b"x" * 60])


@given(st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_pairs_never_get_out_of_step(
    tmp_path_factory: pytest.TempPathFactory,
    sides: list[tuple[bytes, bytes]],
    windows: bool,
    final: bool,
) -> None:
    numbered = [
        tuple(b"%d %s" % (number, side) if side.strip() else side for side in pair)
        for number, pair in enumerate([*sides, (b"the", b"end")])
    ]
    ending = b"\r\n" if windows else b"\n"
    data = [ending.join(pair[side] for pair in numbered) + ending * final for side in (0, 1)]
    directory = tmp_path_factory.mktemp("corpus")
    pairs, statistics = pairs_of(directory, *data, on_bad_line="skip", max_bytes=50)
    for pair in pairs:
        assert pair.source.split(" ")[0] == pair.target.split(" ")[0]
    usable = [all(b"good" in side or b"f" in side for side in pair) for pair in sides]
    assert len(pairs) == sum(usable) + 1
    assert statistics.read == len(numbered)
    assert statistics.skipped.total() == len(numbered) - len(pairs)


# Standard input


def test_stream_yields_a_line_as_soon_as_it_arrives() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream:
        lines = read_stream(stream, "standard input")
        os.write(writing, b"first\nsec")
        assert next(lines) == "first"
        os.write(writing, b"ond\n")
        assert next(lines) == "second"
        os.close(writing)
        assert list(lines) == []


# Writer


@pytest.mark.parametrize("name", ["x", "x.gz", "x.xz", "x.bz2"])
@settings(max_examples=50)
@given(lines=LINES)
def test_what_is_written_is_read(
    name: str, lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("writer") / name
    with LineWriter(path) as writer:
        for line in lines:
            writer.write(line)
        assert not path.exists()
    assert list(read_text(path)) == lines
    assert [entry.name for entry in path.parent.iterdir()] == [name]


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"old\n")

    def fail() -> None:
        with LineWriter(path) as writer:
            writer.write("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"old\n")
    program = (
        "import sys, time; from pathlib import Path; from nmt.data.text import LineWriter\n"
        "with LineWriter(Path(sys.argv[1])) as writer:\n"
        "    for number in range(10**6): writer.write('new')\n"
        "    print('written', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"old\n"


def test_a_full_disk_is_a_storage_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"old\n")

    def fill() -> None:
        with LineWriter(path) as writer:
            for _ in range(100):
                writer.write("n" * 10_000)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="x: cannot be written"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"), LineWriter(tmp_path / "no" / "x"):
        pass


def test_a_link_is_followed(tmp_path: Path) -> None:
    real, link = write(tmp_path / "real", b"old\n"), tmp_path / "link"
    link.symlink_to(real)
    with LineWriter(link) as writer:
        writer.write("new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new\n"


def test_pipes_and_devices_are_written_directly(tmp_path: Path) -> None:
    with LineWriter(Path(os.devnull)) as writer:
        writer.write("nothing")
    assert not Path(os.devnull).is_file()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as child:
        with LineWriter(pipe) as writer:
            writer.write("through")
        assert child.communicate()[0] == b"through\n"


@pytest.mark.clock
def test_reading_is_fast(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "ein kurzer Satz mit acht Wörtern ist hier\n".encode() * 200_000)
    start = time.process_time()
    assert sum(1 for _ in read_lines(path)) == 200_000
    assert 200_000 / (time.process_time() - start) > 100_000  # 1.9 million on an idle machine
