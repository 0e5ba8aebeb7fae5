"""Prepared data: what comes out, when it is made again, and that it appears whole or not at all."""

import fcntl
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.config import Config
from nmt.config.loading import load_config
from nmt.data import encoding, prepared_directory
from nmt.data.codec import Codec
from nmt.data.encoding import LengthLimits, chunked, map_chunks
from nmt.data.prepare import Prepared, evenly, open_prepared, prepare
from nmt.data.text import SIDES, Pair
from nmt.data.vocabulary import PAD
from nmt.errors import ConfigError, DataError, IntegrityError, StorageError
from nmt.storage.files import temporary_path
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST, encode_manifest, read_manifest

NOUNS = {"dog": "Hund", "man": "Mann", "tree": "Baum", "day": "Tag", "river": "Fluss"}
ADJECTIVES = {"old": "alte", "young": "junge", "great": "große", "small": "kleine"}
VERBS = {"sees": "sieht", "finds": "findet", "hears": "hört", "knows": "kennt"}

Write = Callable[..., Config]


def sentences(count: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Sentences like `the old dog sees the river 17` in two languages."""
    random = np.random.default_rng(seed)
    source, target = [], []
    for number in random.integers(0, 2**31, size=count).tolist():
        words = [
            list(table.items())[(number >> shift) % len(table)]
            for table, shift in ((ADJECTIVES, 0), (NOUNS, 3), (VERBS, 7), (NOUNS, 11))
        ]
        numeral = " 17" * (number % 3)
        (a, x), (b, y), (c, z), (d, w) = words
        source.append(f"the {a} {b} {c} the {d}{numeral}")
        target.append(f"der {x} {y} {z} den {w}{numeral}")
    return source, target


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def write_config(tmp_path: Path) -> Write:
    """Writes text and a config file once, and loads it with overrides each time."""
    for name, count in (("train", 400), ("validation", 20)):
        source, target = sentences(count, seed=count)
        write_lines(tmp_path / f"{name}.en", source)
        write_lines(tmp_path / f"{name}.de", target)
    (tmp_path / "config.yaml").write_text(
        """
run_dir: run
data:
  source_language: en
  target_language: de
  train: {source: train.en, target: train.de}
  validation: {source: validation.en, target: validation.de}
  subword: {kind: bpe, merges: 60}
  workers: 1
"""
    )
    return lambda *overrides: load_config(tmp_path / "config.yaml", overrides)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def texts(prepared: Prepared, name: str) -> list[tuple[str, str]]:
    corpus = getattr(prepared, name)
    everything = np.arange(len(corpus))
    source, target = (corpus.padded(side, everything, padding=PAD)[0] for side in SIDES)
    return [
        (prepared.codec.source.decode(left), prepared.codec.target.decode(right))
        for left, right in zip(source.tolist(), target.tolist(), strict=True)
    ]


def assert_whole(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_bytes())
    names = {path.name for path in directory.iterdir()}
    assert names == {MANIFEST, *manifest["files"]}
    for name, entry in manifest["files"].items():
        assert file_sha256(directory / name) == entry["sha256"]
        assert (directory / name).stat().st_size == entry["size"]
    for role in manifest["about"]["inputs"]:
        assert file_sha256(Path(role["path"])) == role["sha256"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.subword.kind=bpe",),
        ("data.subword.kind=bpe", "data.subword.joint=false"),
        ("data.subword.kind=bpe", "data.subword.vocabulary_threshold=5"),
        ("data.subword.kind=bpe", "model.tie_embeddings=all"),
        ("data.subword.kind=sentencepiece", "data.subword.vocabulary_size=320"),
        (
            "data.subword.kind=sentencepiece",
            "data.subword.vocabulary_size=320",
            "data.subword.joint=false",
        ),
        ("data.subword.kind=none",),
        ("data.subword.kind=none", "model.tie_embeddings=all"),
        ("data.tokenizer=moses",),
    ],
    ids=lambda overrides: " ".join(part.rpartition(".")[2] for part in overrides),
)
def test_every_pair_is_there_in_order_and_reads_as_written(
    write_config: Write, overrides, tmp_path
):
    prepared = prepare(write_config(*overrides))
    assert_whole(prepared.directory)
    assert texts(prepared, "train") == list(zip(*sentences(400, seed=400), strict=True))
    assert texts(prepared, "validation") == list(zip(*sentences(20, seed=20), strict=True))
    assert (
        prepared.validation_text("source") == (tmp_path / "validation.en").read_text().splitlines()
    )
    assert (
        prepared.validation_text("target") == (tmp_path / "validation.de").read_text().splitlines()
    )
    shared = "model.tie_embeddings=all" in overrides
    assert not shared or prepared.codec.source.vocabulary == prepared.codec.target.vocabulary


def test_a_link_to_another_disk_stays_one(write_config: Write, tmp_path: Path):
    real, link = tmp_path / "large disk" / "prepared", tmp_path / "small" / "prepared"
    real.parent.mkdir()
    link.parent.mkdir()
    link.symlink_to(real)
    for merges in (20, 30):  # made, and made again
        prepared = prepare(
            write_config(
                f"data.prepared_dir={link}", f"data.subword={{kind: bpe, merges: {merges}}}"
            )
        )
        assert prepared.directory == real
        assert link.is_symlink()
        assert_whole(real)
    assert os.listdir(link.parent) == ["prepared"]
    assert sorted(os.listdir(real.parent)) == ["prepared", "prepared.lock"]


def test_with_nothing_changed_nothing_is_done(write_config: Write, caplog):
    caplog.set_level("INFO")
    first = prepare(write_config())
    before = {path: path.stat() for path in first.directory.iterdir()}
    again = prepare(write_config("data.workers=2", "train.log_every=7", "seed=9"))
    assert {path: path.stat().st_mtime_ns for path in first.directory.iterdir()} == {
        path: status.st_mtime_ns for path, status in before.items()
    }
    assert again.fingerprint == first.fingerprint
    assert "up to date" in caplog.records[-1].message


@pytest.mark.parametrize(
    "override",
    [
        "data.max_length=11",
        "data.max_ratio=1.5",
        "data.subword.merges=50",
        "data.subword.sample_pairs=100",
        "data.subword.joint=false",
        "data.subword.kind=none",
        "data.tokenizer.source=none",
        "data.source_language=fr",
        "data.on_bad_line=skip",
        "model.tie_embeddings=all",
    ],
)
def test_a_changed_setting_is_named_and_prepares_again(write_config: Write, caplog, override):
    caplog.set_level("INFO")
    prepare(write_config())
    prepared = prepare(write_config(override))
    assert_whole(prepared.directory)
    setting = override.partition("=")[0].rpartition(".")[2]
    reasons = [record.message for record in caplog.records if "changed settings" in record.message]
    assert len(reasons) == 1
    assert setting in reasons[0] or "shared vocabulary: False -> True" in reasons[0]


@pytest.mark.parametrize("name", ["train.en", "train.de", "validation.en", "validation.de"])
def test_a_changed_input_prepares_again_and_changes_the_fingerprint(
    write_config: Write, tmp_path: Path, name: str
):
    before = prepare(write_config()).fingerprint
    path = tmp_path / name
    text = path.read_text(encoding="utf-8")
    # Same size, so that only time and content can tell.
    path.write_text(text.replace("17", "71", 1), encoding="utf-8")
    prepared = prepare(write_config())
    assert_whole(prepared.directory)
    assert prepared.fingerprint != before


@pytest.mark.parametrize("change", ["setting", "text"])
def test_data_of_a_run_that_has_begun_stays(write_config: Write, tmp_path: Path, change: str):
    directory = prepare(write_config()).directory
    prepare(write_config(f"run_dir={tmp_path}/second", f"data.prepared_dir={directory}"))  # shares
    before = contents(directory)
    override = ["data.max_length=11"]
    if change == "text":
        override = []
        (tmp_path / "train.en").write_text((tmp_path / "train.de").read_text())
    for run, message in (
        ("run", "run was trained on other data: changed .*; .* choose another run_dir"),
        ("second", "changed .*, but .*second was trained on the .*another data.prepared_dir"),
    ):
        checkpoint = tmp_path / run / "checkpoints" / "step-00000004"
        checkpoint.mkdir(parents=True)
        with pytest.raises(ConfigError, match=message):
            prepare(write_config(*override))
        assert contents(directory) == before
        checkpoint.rmdir()
    prepare(write_config(*override))
    assert contents(directory) != before


def test_data_of_an_earlier_version_is_that_of_the_run_around_it(
    write_config: Write, tmp_path: Path
):
    directory = prepare(write_config()).directory
    manifest = read_manifest(directory)
    del manifest.about["runs"]
    (directory / MANIFEST).write_bytes(encode_manifest(manifest.files, manifest.about))
    (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir(parents=True)
    other = f"run_dir={tmp_path}/other", f"data.prepared_dir={directory}"
    with pytest.raises(ConfigError, match=r"but .*run was trained on the data that is there"):
        prepare(write_config(*other, "data.max_length=11"))
    prepare(write_config(*other))
    assert read_manifest(directory).about == {**manifest.about, "runs": ["..", "../../other"]}


def test_touched_or_moved_inputs_are_known_by_their_content(
    write_config: Write, tmp_path: Path, monkeypatch
):
    first = prepare(write_config())
    made = (first.directory / "train.source.tokens.bin").stat()
    os.utime(tmp_path / "train.en", ns=(1, 1))
    (tmp_path / "train.de").rename(tmp_path / "elsewhere.de")
    config = write_config(f"data.train.target={tmp_path / 'elsewhere.de'}")
    again = prepare(config)
    assert (first.directory / "train.source.tokens.bin").stat() == made
    assert again.fingerprint == first.fingerprint
    # Now that time and place are on record no input has to be read any more.
    monkeypatch.setattr(prepared_directory, "file_sha256", lambda path: pytest.fail(str(path)))
    prepare(config)


def test_lengths_count_subwords_without_the_end_of_sentence(write_config: Write, tmp_path: Path):
    write_lines(tmp_path / "train.en", ["a b c", "a b c d", "a b", "a", "a b c", "a b"])
    write_lines(tmp_path / "train.de", ["x y z", "x", "x y z w", "x y z", "x y z", "x"])
    prepared = prepare(
        write_config("data.subword.kind=none", "data.max_length=3", "data.max_ratio=2")
    )
    assert texts(prepared, "train") == [("a b c", "x y z"), ("a b c", "x y z"), ("a b", "x")]
    train = prepared.about["corpora"]["train"]
    assert train["read"] == 6
    assert train["left_out"] == {"longer than max_length": 2, "over max_ratio": 1}
    # Validation pairs are kept whatever their length.
    assert len(prepared.validation) == 20


def test_bad_pairs_are_left_out_and_counted_by_reason(write_config: Write, tmp_path: Path):
    (tmp_path / "train.en").write_bytes(b"one\ntwo\n\xff\nfour\n" + b"5" * 40 + b"\nsix\n")
    (tmp_path / "train.de").write_bytes(b"eins\n\ndrei\nvier\nfuenf\nsechs\n")
    config = write_config(
        "data.on_bad_line=skip", "data.subword.kind=none", "data.max_line_bytes=39"
    )
    (tmp_path / "validation.en").write_bytes(b"one\n \nsix\n")
    (tmp_path / "validation.de").write_bytes(b"eins\nzwei\nsechs\n")
    prepared = prepare(config)
    pairs = [("one", "eins"), ("four", "vier"), ("six", "sechs")]
    assert texts(prepared, "train") == pairs
    corpora = prepared.about["corpora"]
    assert sum(corpora["train"]["left_out"].values()) == 3
    assert set(corpora["train"]["left_out"]) == {"empty line", "invalid UTF-8", "line too long"}
    assert corpora["validation"]["left_out"] == {"empty line": 1}
    assert prepared.validation_text("source") == ["one", "six"]
    assert prepared.validation_text("target") == ["eins", "sechs"]


def test_no_pair_left_is_an_error_that_says_why(write_config: Write, tmp_path: Path):
    with pytest.raises(DataError, match=r"no training pair is left.*max_length: 400"):
        prepare(write_config("data.max_length=2"))
    assert not (tmp_path / "run" / "prepared").exists()
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


def test_an_error_leaves_the_older_data_as_it_was(write_config: Write, tmp_path: Path):
    directory = prepare(write_config()).directory
    before = contents(directory)
    with pytest.raises(DataError):
        prepare(write_config("data.max_length=2"))
    with (tmp_path / "validation.de").open("a") as file:
        file.write("eine Zeile zu viel\n")
    with pytest.raises(DataError, match=r"20 lines but .* 21"):
        prepare(write_config())
    assert contents(directory) == before
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["train.target.tokens.bin", "codec.json", "validation.source.txt"])
def test_damaged_data_is_refused_by_name_and_made_again(write_config: Write, caplog, name: str):
    caplog.set_level("INFO")
    first = prepare(write_config())
    whole = (first.directory / name).read_bytes()
    (first.directory / name).write_bytes(whole[:-1])
    with pytest.raises(IntegrityError, match=name):
        open_prepared(first.directory)
    again = prepare(write_config())
    assert (again.directory / name).read_bytes() == whole
    assert again.fingerprint == first.fingerprint
    assert any("damaged" in record.message and name in record.message for record in caplog.records)


def test_files_that_are_not_ours_are_never_deleted(write_config: Write, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    config = write_config(f"data.prepared_dir={mine}")
    with pytest.raises(DataError, match="no prepared data"):
        prepare(config)
    prepared = prepare(write_config())
    (prepared.directory / "notes.txt").write_text("remember")
    with pytest.raises(DataError, match=r"notes\.txt"):
        prepare(write_config("data.max_length=30"))
    assert (mine / "thesis.tex").read_text() == "years of work"
    assert (prepared.directory / "notes.txt").read_text() == "remember"


def test_leftovers_of_dead_processes_are_removed_and_the_old_data_is_put_back(
    write_config: Write, tmp_path: Path
):
    directory = prepare(write_config()).directory
    before = contents(directory)
    # As after a kill between the two renames, with a half-written directory beside.
    directory.rename(temporary_path(directory, "old"))
    partial = temporary_path(directory, "new")
    partial.mkdir()
    (partial / "train.source.tokens.bin").write_bytes(b"half")
    prepare(write_config())
    assert contents(directory) == before
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "prepared",
        "prepared.lock",
    ]


def test_an_input_that_changes_meanwhile_is_noticed(write_config: Write, tmp_path: Path):
    config = write_config()
    original = Codec.save

    def save_while_somebody_writes(codec: Codec, directory: Path) -> None:
        original(codec, directory)
        with (tmp_path / "train.en").open("a") as file:
            file.write("one more\n")
        with (tmp_path / "train.de").open("a") as file:
            file.write("eins mehr\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Codec, "save", save_while_somebody_writes)
        with pytest.raises(DataError, match="changed while it was read"):
            prepare(config)
    assert not (tmp_path / "run" / "prepared").exists()


def test_a_second_process_waits_for_the_lock(write_config: Write, tmp_path: Path):
    config = write_config()
    prepare(config)
    with (tmp_path / "run" / "prepared.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=prepare, args=(config,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive()


def test_data_on_a_read_only_disk_can_be_used(write_config: Write, tmp_path: Path):
    fingerprint = prepare(write_config()).fingerprint
    (tmp_path / "run" / "prepared.lock").unlink()
    (tmp_path / "run").chmod(0o555)
    if os.access(tmp_path / "run", os.W_OK):
        pytest.skip("this user may write everywhere")
    try:
        assert prepare(write_config()).fingerprint == fingerprint
        with pytest.raises(StorageError, match="nothing can be written"):
            prepare(write_config("data.max_length=30"))
    finally:
        (tmp_path / "run").chmod(0o755)


def test_any_number_of_workers_gives_the_same_bytes(write_config: Write, tmp_path: Path):
    source, target = sentences(2 * encoding.CHUNK_PAIRS + 700)
    write_lines(tmp_path / "train.en", source)
    write_lines(tmp_path / "train.de", target)
    results = []
    for workers in (1, 2, 3):
        place = tmp_path / f"with-{workers}"
        results.append(
            prepare(write_config(f"data.workers={workers}", f"data.prepared_dir={place}"))
        )
    assert len(results[0].train) == len(source)
    assert contents(results[0].directory) == contents(results[1].directory)
    assert contents(results[0].directory) == contents(results[2].directory)


def test_a_mistake_in_a_worker_comes_back_as_itself(tmp_path: Path):
    pairs = [Pair("a", "b")] * (2 * encoding.CHUNK_PAIRS)
    with pytest.raises(DataError, match=r"codec\.json"):
        list(encoding.encode_pairs(pairs, tmp_path, LengthLimits(), workers=2))


def test_a_worker_that_dies_is_reported():
    pairs = [Pair("a", "b")] * (2 * encoding.CHUNK_PAIRS)
    with pytest.raises(DataError, match=r"died.*fewer data\.workers"):
        list(map_chunks(partial(os._exit, 9), pairs, workers=2))


def test_long_lines_make_small_chunks():
    line = "x" * 300_000
    sizes = [chunk.source.count("\n") + 1 for chunk in chunked(Pair(line, line) for _ in range(30))]
    assert sum(sizes) == 30
    assert max(sizes) * 2 * len(line) <= encoding.CHUNK_CHARACTERS + 2 * len(line)


@given(st.integers(1, 300), st.data())
def test_a_sample_is_exact_and_even(total: int, data: st.DataObject):
    sample = data.draw(st.integers(1, total))
    taken = [
        int(pair.source) for pair in evenly((Pair(str(i), "") for i in range(total)), sample, total)
    ]
    assert len(taken) == sample
    gaps = np.diff([-1, *taken])
    assert gaps.max() <= -(-total // sample) + 1


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 15), st.floats(1, 5))
def test_limits_are_inclusive(source: int, target: int, longest: int, ratio: float):
    objection = LengthLimits(longest=longest, ratio=ratio).objection(source, target)
    fits = (
        min(source, target) > 0
        and max(source, target) <= longest
        and max(source, target) <= ratio * min(source, target)
    )
    assert (objection is None) == fits


def test_rare_words_are_forgotten_before_memory_runs_out(monkeypatch):
    monkeypatch.setattr(encoding, "MAX_WORD_TYPES", 100)
    specs = {side: encoding.TokenizerSpec("none", "en") for side in ("source", "target")}
    pairs = (Pair(f"the number {n}", f"die Zahl {n}") for n in range(3 * encoding.CHUNK_PAIRS))
    seen: list[int] = []
    counts = encoding.count_both_sides(pairs, specs, workers=1, advance=seen.append)
    assert sum(seen) == 3 * encoding.CHUNK_PAIRS
    assert len(counts["source"]) <= 100
    assert counts["source"]["the"] == counts["target"]["Zahl"] == 3 * encoding.CHUNK_PAIRS
