"""Blocks of a file hold the lines that reading the whole file gives."""

import gzip
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.text import LINE_BYTES, read_lines
from nmt.decoding.text_blocks import cut_blocks, matching_blocks, read_block
from nmt.errors import DataError

pieces = st.sampled_from([b"a", b"\n", b"\n", b"\r", b"\xef\xbb\xbf", b"\xff", b"word", b" "])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


@given(st.lists(pieces).map(b"".join), st.integers(1, 40))
def test_blocks_are_the_lines_of_the_file(folder: Path, content: bytes, size: int) -> None:
    path = folder / "text"
    path.write_bytes(content)
    blocks = cut_blocks(path, size)
    found = [line for block in blocks for line in read_block(path, block)]
    assert found == list(read_lines(path))
    assert all(block.count > 0 for block in blocks)


@given(st.lists(pieces).map(b"".join), st.integers(1, 40), st.data())
def test_matching_blocks_have_the_same_lines(
    folder: Path, content: bytes, size: int, data: st.DataObject
) -> None:
    path, other = folder / "source", folder / "prefix"
    path.write_bytes(content)
    count = len(list(read_lines(path)))
    lines = data.draw(st.lists(st.sampled_from(["", "x", "much longer"]), min_size=count,
                               max_size=count))  # fmt: skip
    other.write_text("".join(line + "\n" for line in lines))
    blocks = cut_blocks(path, size)
    matching = matching_blocks(other, blocks, path)
    assert [(one.first, one.count) for one in matching] == [
        (one.first, one.count) for one in blocks
    ]
    for block in matching:
        expected = lines[block.first : block.first + block.count]
        assert list(read_block(other, block)) == expected


def test_matching_blocks_across_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.decoding.text_blocks.SCAN_BYTES", 7)
    path, other = folder / "source", folder / "prefix"
    path.write_text("".join(f"{number}\n" for number in range(50)))
    other.write_text("\n".join(f"prefix {number}" for number in range(50)))
    matching = matching_blocks(other, cut_blocks(path, 10), path)
    lines = itertools.chain.from_iterable(read_block(other, block) for block in matching)
    assert list(lines) == [f"prefix {number}" for number in range(50)]


@pytest.mark.parametrize(
    ("other", "message"),
    [("one\n", "prefix ends after line 1, but "), ("1\n2\n3\n", "source ends after line 2, but ")],
)
def test_files_of_different_length(folder: Path, other: str, message: str) -> None:
    (folder / "source").write_text("one\ntwo\n")
    (folder / "prefix").write_text(other)
    with pytest.raises(DataError, match=message):
        matching_blocks(folder / "prefix", cut_blocks(folder / "source", 5), folder / "source")


def test_a_line_that_is_too_long_is_bad_in_its_block(folder: Path) -> None:
    path = folder / "long"
    path.write_bytes(b"one\n" + b"x" * (LINE_BYTES + 1) + b"\ntwo\n" + b"y" * 3 * LINE_BYTES)
    blocks = cut_blocks(path, 1 << 16)
    found = [line for block in blocks for line in read_block(path, block)]
    assert found == list(read_lines(path))


def test_archives_are_rejected(folder: Path) -> None:
    path = folder / "text.gz"
    path.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(DataError, match="an archive does not allow; decompress it first"):
        cut_blocks(path, 100)


def test_a_file_that_became_shorter(folder: Path) -> None:
    path = folder / "text"
    path.write_text("one\ntwo\n")
    (block,) = cut_blocks(path, 100)
    path.write_text("one\n")
    with pytest.raises(DataError, match="became shorter"):
        list(read_block(path, block))
