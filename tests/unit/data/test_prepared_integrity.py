"""Damage to prepared data is always noticed, and data of earlier versions stays usable."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.small_models import content, flip_bit, truncate

from nmt.config.config import Config
from nmt.config.loading import load_config
from nmt.data.batching import BatchStream, make_batch
from nmt.data.prepare import Prepared, open_prepared, prepare
from nmt.errors import DataError, IntegrityError
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST, FileEntry, encode_manifest, read_manifest

GOLDEN = Path(__file__).parent / "golden_prepared"
GOLDEN_FINGERPRINT = "628e92b71f8ded942402a584d563d542e5fe6eb990e3a2a14797af8922b545f3"
SUBWORDS = {
    "bpe": (),
    "sentencepiece": ("data.subword.kind=sentencepiece", "data.subword.vocabulary_size=290"),
    "words": ("data.subword.kind=none", "model.tie_embeddings=all"),
}


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., Config]:
    """The golden text in a place of its own, and its config with overrides."""
    for path in GOLDEN.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return lambda *overrides: load_config(tmp_path / "config.yaml", overrides)


@pytest.mark.parametrize("subword", SUBWORDS)
@pytest.mark.parametrize("flips", [6, pytest.param(70, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_noticed(
    config_of: Callable[..., Config], subword: str, flips: int
) -> None:
    """In every file: 90 of 90 for BPE; a run never goes on with it, and names the file."""
    config = config_of(*SUBWORDS[subword])
    directory = prepare(config).directory
    generator = random.Random(flips)
    whole = content(directory)
    assert len(whole) >= 12
    for name, data in whole.items():
        places = [0, 8 * len(data) - 1, *(generator.randrange(8 * len(data)) for _ in range(flips))]
        for bit in places[:flips]:
            flip_bit(directory / name, bit)
            with pytest.raises(IntegrityError, match=f"{name}: .*; delete .* nmt-prepare again$"):
                prepare(config, verify=True, repair=False)
            if not name.startswith(("train", "validation")):  # codec and manifest: even unasked
                with pytest.raises(IntegrityError, match=name):
                    open_prepared(directory)
            (directory / name).write_bytes(data)
    prepare(config, verify=True, repair=False)


@pytest.mark.parametrize("name", ["train.source.tokens.bin", "target.vocabulary", "joint.codes"])
def test_damaged_data_is_made_again_where_that_is_allowed(
    config_of: Callable[..., Config], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    first = prepare(config_of())
    whole = content(first.directory)
    flip_bit(first.directory / name, 100)
    again = prepare(config_of(), verify=True)
    assert content(again.directory) == whole
    assert again.fingerprint == first.fingerprint
    assert name in caplog.text


def rewrite_and_reseal(prepared: Prepared, name: str, change: Callable[..., None]) -> None:
    """Change numbers of a file and make the manifest agree, as a faulty writer would."""
    path = prepared.directory / name
    numbers = np.fromfile(path, dtype="<i8" if "offsets" in name else "<u2")
    change(numbers)
    numbers.tofile(path)
    manifest = read_manifest(prepared.directory)
    files = manifest.files | {name: FileEntry(path.stat().st_size, file_sha256(path))}
    (prepared.directory / MANIFEST).write_bytes(encode_manifest(files, manifest.about))


def put(index: int, value: int) -> Callable[..., None]:
    def change(numbers: np.ndarray) -> None:
        numbers[index] = value

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train.source.tokens.bin", put(3, 60_000)),
        ("validation.target.tokens.bin", put(-1, 35)),
        ("train.source.offsets.bin", put(0, 1)),
        ("train.source.offsets.bin", put(1, 1 << 55)),
        ("train.target.offsets.bin", put(2, -5)),
        ("train.target.offsets.bin", put(-1, 3)),
        ("validation.source.offsets.bin", put(1, 0)),
    ],
)
def test_ids_and_offsets_out_of_range_are_refused(
    config_of: Callable[..., Config], name: str, change: Callable[..., None]
) -> None:
    rewrite_and_reseal(prepare(config_of()), name, change)
    with pytest.raises(IntegrityError, match=f"{name.split('.')[1]} side has"):
        prepare(config_of(), verify=True, repair=False)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train.source.tokens.bin", put(slice(None), 60_000)),
        ("train.target.offsets.bin", put(slice(1, -1), 1 << 55)),
        ("train.target.offsets.bin", put(slice(1, -1), -(1 << 55))),
    ],
)
def test_numbers_that_change_in_use_are_refused_in_the_next_batch(
    config_of: Callable[..., Config], name: str, change: Callable[..., None]
) -> None:
    prepared = prepare(config_of())
    mapped = np.memmap(
        prepared.directory / name, dtype="<i8" if "offsets" in name else "<u2", mode="r+"
    )
    change(mapped)
    mapped.flush()
    with pytest.raises(IntegrityError, match="side has"):
        make_batch(prepared.train, np.arange(len(prepared.train)))


@pytest.mark.parametrize("file", ["tokens", "offsets"])
def test_a_file_that_is_cut_in_use_is_an_error_and_no_crash(
    config_of: Callable[..., Config], file: str
) -> None:
    prepared = prepare(config_of())
    updates = BatchStream(prepared.train, 40, seed=1).updates()
    next(updates)
    truncate(prepared.directory / f"train.source.{file}.bin", 0)
    with pytest.raises(DataError, match=f"train.source.{file}.bin: (truncated|changed)"):
        list(zip(range(9), updates, strict=False))


def test_data_of_an_earlier_version_is_used_as_it_is(
    config_of: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was begun on it finds the fingerprint it has on record."""
    caplog.set_level("INFO")
    shutil.copytree(GOLDEN / "prepared", tmp_path / "prepared")
    before = content(tmp_path / "prepared")
    prepared = prepare(config_of(), verify=True, repair=False)
    assert "up to date" in caplog.text
    assert prepared.fingerprint == GOLDEN_FINGERPRINT
    after = content(prepared.directory)
    assert before.pop(MANIFEST) != after.pop(MANIFEST)  # inputs lie in another place now
    assert after == before
    assert prepare(config_of(), verify=True, repair=False).fingerprint == GOLDEN_FINGERPRINT


@pytest.mark.parametrize("name", ["codec.json", "joint.codes", "train.source.tokens.bin"])
def test_damage_to_data_of_an_earlier_version_is_noticed(
    config_of: Callable[..., Config], tmp_path: Path, name: str
) -> None:
    shutil.copytree(GOLDEN / "prepared", tmp_path / "prepared")
    flip_bit(tmp_path / "prepared" / name, 70)
    with pytest.raises(IntegrityError, match=name):
        prepare(config_of(), verify=True, repair=False)


def test_a_changed_hash_in_a_manifest_of_an_earlier_version_is_noticed(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / "prepared", tmp_path / "prepared")
    sha256 = file_sha256(tmp_path / "prepared" / "joint.codes")
    path = tmp_path / "prepared" / MANIFEST
    path.write_text(path.read_text().replace(sha256, sha256[::-1]))
    with pytest.raises(IntegrityError, match=MANIFEST):
        prepare(config_of(), repair=False)
