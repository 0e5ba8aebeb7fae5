"""The encoded corpus gives back what was written, and notices files that are not whole."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from encoded_corpora import random_sentences, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.corpus import EncodedCorpus, token_type
from nmt.errors import IntegrityError
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST, SealedDirectory

sentences = st.lists(st.integers(0, 65535), min_size=1, max_size=12)


@settings(max_examples=50)  # every example forces four files to disk
@given(rows=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=20), data=st.data())
def test_sentences_come_back_in_any_selection(tmp_path_factory, rows, data):
    source, target = zip(*rows, strict=True)
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), source, target)
    assert len(corpus) == len(rows)
    assert corpus.source_lengths.tolist() == [len(row) for row in source]
    assert corpus.target_lengths.tolist() == [len(row) for row in target]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=30))
    for side, wanted in (("source", source), ("target", target)):
        ids, visible = corpus.padded(side, np.array(chosen), padding=-1)
        assert [row[seen].tolist() for row, seen in zip(ids, visible, strict=True)] == [
            wanted[index] for index in chosen
        ]
        assert (ids[~visible] == -1).all()


@pytest.mark.parametrize(("size", "expected"), [(65536, "uint16"), (65537, "uint32")])
def test_the_token_type_just_holds_the_vocabulary(tmp_path: Path, size: int, expected: str):
    assert token_type(size) == expected
    corpus = write_corpus(tmp_path, [[size - 1]], [[0]], token_type=token_type(size))
    assert corpus.padded("source", np.array([0]), padding=0)[0].tolist() == [[size - 1]]


def test_the_bytes_do_not_depend_on_the_chunks_they_came_in(tmp_path: Path):
    contents = []
    for chunk in (1, 5, 1000):
        directory = tmp_path / str(chunk)
        directory.mkdir()
        write_corpus(directory, *random_sentences(40), chunk=chunk)
        contents.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert contents[0] == contents[1] == contents[2]


def test_the_manifest_has_the_hash_of_what_is_on_disk(tmp_path: Path):
    write_corpus(tmp_path, *random_sentences(40))
    files = json.loads((tmp_path / MANIFEST).read_text())["files"]
    assert len(files) == 4
    for name, entry in files.items():
        content = (tmp_path / name).read_bytes()
        assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert file_sha256(tmp_path / name) == entry["sha256"]


@pytest.mark.parametrize("name", ["train.source.tokens.bin", "train.target.offsets.bin"])
@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_a_file_of_another_size_is_refused_by_name(tmp_path: Path, name: str, change: str):
    write_corpus(tmp_path, *random_sentences(10))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(
        {"shorter": content[:-1], "longer": content + b"\0"}.get(change, b"")
    )
    if change == "gone":
        (tmp_path / name).unlink()
    with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
        EncodedCorpus(SealedDirectory(tmp_path), "train")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"corpora": {"train": 1}, "files": {}}'])
def test_a_manifest_that_says_nothing_is_refused(tmp_path: Path, text: str):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(IntegrityError, match=MANIFEST):
        EncodedCorpus(SealedDirectory(tmp_path), "train")


def test_there_is_no_sentence_past_the_end(tmp_path: Path):
    corpus = write_corpus(tmp_path, [[5, 2]], [[6, 2]])
    with pytest.raises(IndexError):
        corpus.padded("source", np.array([1]), padding=0)
