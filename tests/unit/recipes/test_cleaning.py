"""Cleaning keeps pairs together, says why it drops one, and does not depend on the workers."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.recipes.cleaning import (
    CleaningReport,
    CleaningRules,
    Part,
    clean,
    count_words,
    in_script,
    make_normalizer,
    objection,
)
from nmt.recipes.duplicates import HashSet, hash_pair


def run(tmp_path: Path, pairs: list[tuple[str, str]], **rules: object) -> CleaningReport:
    for side, name in enumerate(("in.en", "in.de")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / name).write_bytes(lines.encode())
    parts = [Part("corpus", tmp_path / "in.en", tmp_path / "in.de")]
    return clean_parts(tmp_path, parts, **rules)


def clean_parts(
    tmp_path: Path, parts: list[Part], *, workers: int = 1, **rules: object
) -> CleaningReport:
    output = tmp_path / "out.en", tmp_path / "out.de"
    settings = CleaningRules(**rules)  # type: ignore[arg-type]
    return clean(parts, output, settings, languages=("en", "de"), workers=workers)


def result(tmp_path: Path) -> list[tuple[str, str]]:
    sides = [
        (tmp_path / name).read_bytes().decode().split("\n")[:-1] for name in ("out.en", "out.de")
    ]
    return list(zip(*sides, strict=True))


def test_each_reason_is_counted(tmp_path):
    good = ("a small house", "ein kleines Haus")
    report = run(
        tmp_path,
        [
            good,
            ("", "leer"),
            ("blank", "  \t "),
            ("word " * 11, "Wort"),
            ("one two three four", "eins"),
            ("Привет мир", "hallo Welt"),
            good,
            ("x\u200by", "x\x07y"),
        ],
        max_words=10,
        max_ratio=3.0,
        duplicates="drop",
        source_script="latin",
    )
    assert result(tmp_path) == [good, ("x y", "x y")]
    assert (report.read, report.kept) == (8, 2)
    assert report.parts == {"corpus": {"read": 8, "kept": 2}}
    assert dict(report.dropped) == {
        "empty line": 2,
        "too many words": 1,
        "lengths too different": 1,
        "in another script": 1,
        "duplicate": 1,
    }


def test_bad_bytes_drop_the_pair_and_ragged_files_are_an_error(tmp_path):
    (tmp_path / "in.en").write_bytes(b"a\n\xff\nc\n")
    (tmp_path / "in.de").write_bytes(b"x\ny\nz\n")
    parts = [Part("corpus", tmp_path / "in.en", tmp_path / "in.de")]
    report = clean_parts(tmp_path, parts)
    assert result(tmp_path) == [("a", "x"), ("c", "z")]
    assert report.dropped == Counter({"invalid UTF-8": 1})
    (tmp_path / "out.en").unlink()
    (tmp_path / "in.de").write_bytes(b"x\ny\n")
    with pytest.raises(DataError, match=r"has 3 lines but .* has 2"):
        clean_parts(tmp_path, parts)
    assert not (tmp_path / "out.en").exists()


def test_both_sides_in_one_file(tmp_path):
    text = "talo ||| house\nkissa ||| cat\nno separator\n ||| empty\n"
    (tmp_path / "titles").write_text(text, encoding="utf-8")
    report = clean_parts(tmp_path, [Part("titles", tmp_path / "titles", first="target")])
    assert result(tmp_path) == [("house", "talo"), ("cat", "kissa")]
    assert report.dropped == Counter({"no separator": 1, "empty line": 1})


def test_nothing_left_is_an_error_that_says_why(tmp_path):
    with pytest.raises(DataError, match=r"no pair is left after cleaning .*3 x too many words"):
        run(tmp_path, [("a b c", "d e f")] * 3, max_words=2)
    assert not (tmp_path / "out.en").exists()


def test_the_number_of_workers_changes_nothing(tmp_path):
    generator = random.Random(0)
    words = [f"w{n}" for n in range(30)]
    pairs = [
        (" ".join(generator.choices(words, k=generator.randint(0, 4))), f"z {n % 4000}")
        for n in range(12_000)
    ]
    reports = []
    for workers in (1, 2):
        reports.append(
            json.dumps(vars(run(tmp_path, pairs, duplicates="drop", max_words=3, workers=workers)))
        )
        reports.append(json.dumps(result(tmp_path)))
    assert reports[:2] == reports[2:]


def test_duplicates_across_parts_are_found(tmp_path):
    for name, lines in (("a", "1\n2\n"), ("b", "2\n3\n")):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    parts = [Part(name, tmp_path / name, tmp_path / name) for name in ("a", "b")]
    report = clean_parts(tmp_path, parts, duplicates="drop")
    assert result(tmp_path) == [("1", "1"), ("2", "2"), ("3", "3")]
    assert report.parts["b"] == {"read": 2, "kept": 1}


@pytest.mark.parametrize(
    ("text", "script", "expected"),
    [
        ("Hello, world!", "latin", True),
        ("Größe über Çà œuvre ș", "latin", True),
        ("Привет", "latin", False),
        ("Привет Moscow International", "latin", True),
        ("12:30 – 14.00", "latin", True),
        ("你好，世界", "latin", False),
        ("你好", "han", True),
        ("iPhone 手机", "han", True),
        ("just English", "han", False),
        ("2017", "han", True),
        ("𠮷野家", "han", True),
        ("Привет", "any", True),
    ],
)
def test_scripts(text, script, expected):
    assert in_script(text, script) is expected


def test_chinese_is_counted_by_characters():
    assert count_words("") == 0
    assert count_words("two words") == 2
    assert count_words("一二三四五六七八") == 5
    assert count_words("我 用 iPhone 7 ，") == pytest.approx(2 / 1.6 + 2)
    rules = CleaningRules(max_ratio=2.0)
    assert objection(rules, "这是一个很好的例子", "this is a very good example") is None
    assert objection(rules, "例子", "this is a very good example") == "lengths too different"


def test_normalisation():
    plain = make_normalizer(CleaningRules(), "ro")
    assert plain(" a\u00a0\tb\u200b ş ") == "a b ş"
    rules = CleaningRules(normalize_romanian=True, normalize_punctuation=True)
    assert make_normalizer(rules, "ro")("„Aşa”, ţară…") == '"Așa", țară...'
    assert make_normalizer(rules, "en")("ş “quoted”") == 'ş "quoted"'


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n")))
def test_normalised_text_is_a_line_and_stays_as_it_is(text):
    rules = CleaningRules(normalize_romanian=True)
    normalize = make_normalizer(rules, "ro")
    once = normalize(text)
    assert "\n" not in once
    assert normalize(once) == once


@given(st.lists(st.lists(st.integers(1, 60) | st.integers(1, 2**64 - 1), max_size=50)))
def test_the_set_of_hashes_is_a_set(batches):
    hashes, plain = HashSet(), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in plain)
            plain.add(value)
        assert hashes.add(np.array(batch, dtype=np.uint64)).tolist() == expected
    assert len(hashes) == len(plain)


def test_many_hashes_that_want_the_same_places():
    values = np.arange(1, 2_001, dtype=np.uint64) << np.uint64(40)  # all collide at first
    hashes = HashSet()
    for start in range(0, 2_000, 500):
        assert hashes.add(values[start : start + 500]).all()
    assert not hashes.add(values[:2_000]).any()
    many = np.random.default_rng(0).integers(1, 2**63, 300_000, dtype=np.uint64)
    assert int(hashes.add(many).sum()) == len(np.unique(many))
    assert not hashes.add(many).any()


def test_the_hash_of_a_pair_tells_the_sides_apart():
    assert hash_pair("a", "b") != hash_pair("b", "a")
    assert hash_pair("a b", "c") != hash_pair("a", "b c")
    assert hash_pair("a", "b") == hash_pair("a", "b")
