"""Model directories made by an enemy: no code is run, no memory taken, nothing crashes.

The enemy writes a manifest that agrees with the files, so that checksums are no defence; only the
giant file has a wrong one, and there the memory taken is what counts.
"""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_models import reseal, write_model

from nmt.checkpoint.model_directory import load_model
from nmt.errors import UserError
from nmt.storage.manifest import MANIFEST, SealedDirectory, encode_manifest, parse_manifest

MODEL = "model.safetensors"
HUGE = 1 << 40


class Payload:
    """Unpickling it leaves a mark."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.marker}",))


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a model's file."""
    data = (path / MODEL).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(path: Path, header: bytes, tensors: bytes) -> None:
    """The opposite."""
    (path / MODEL).write_bytes(struct.pack("<Q", len(header)) + header + tensors)


def header_case(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A case in which the header is another."""

    def attack(path: Path) -> None:
        header, tensors = split(path)
        result = change(header)
        changed = result if isinstance(result, bytes) else json.dumps(header).encode()
        join(path, changed, tensors)

    return attack


def first(header: dict[str, Any]) -> dict[str, Any]:
    """The description of one tensor."""
    return next(iter(header.values()))


def config_case(old: str, new: str) -> Callable[[Path], None]:
    """A case in which the configuration is another."""

    def attack(path: Path) -> None:
        text = (path / "config.yaml").read_text()
        assert old in text
        (path / "config.yaml").write_text(text.replace(old, new, 1))

    return attack


def file_case(name: str, data: bytes) -> Callable[[Path], None]:
    """A case in which a file is another."""
    return lambda path: (path / name).write_bytes(data) and None


def pickled(path: Path, name: str) -> None:
    (path / name).write_bytes(pickle.dumps(Payload(path.parent / "marker")))


def torch_saved(path: Path) -> None:
    torch.save({"weights": Payload(path.parent / "marker")}, path / MODEL)


def zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path / MODEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../marker", bytes(100 << 20))


def extra_tensor(path: Path) -> None:
    header, tensors = split(path)
    header["more"] = {"dtype": "U8", "shape": [4], "data_offsets": [len(tensors), len(tensors) + 4]}
    join(path, json.dumps(header).encode(), tensors + b"more")


def sparse_giant(path: Path) -> None:
    """More than a gigabyte that takes no room on disk but would in memory."""
    size = 1100 << 20
    header = {"target_embedding": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    join(path, json.dumps(header).encode(), b"")
    with (path / MODEL).open("ab") as file:
        file.truncate(file.tell() + size)


def long_header(path: Path) -> None:
    header, tensors = split(path)
    join(path, json.dumps(header).encode() + b" " * (30 << 20), tensors)


def fewer_tensors(path: Path) -> None:
    header, tensors = split(path)
    name = max(header, key=lambda item: header[item]["data_offsets"][1])
    size = header.pop(name)["data_offsets"][0]
    join(path, json.dumps(header).encode(), tensors[:size])


def swapped_shape(path: Path) -> None:
    header, tensors = split(path)
    next(item for item in header.values() if len(item["shape"]) == 2)["shape"].reverse()
    join(path, json.dumps(header).encode(), tensors)


def double_precision(path: Path) -> None:
    header, tensors = split(path)
    for item in header.values():
        item["dtype"] = "F64"
        item["data_offsets"] = [2 * offset for offset in item["data_offsets"]]
    join(path, json.dumps(header).encode(), tensors * 2)


def larger_vocabulary(path: Path) -> None:
    with (path / "source.vocabulary").open("a") as file:
        file.write("extra\t1\n")


FILES: dict[str, Callable[[Path], None]] = {
    "pickle as weights": lambda path: pickled(path, MODEL),
    "pickle as config": lambda path: pickled(path, "config.yaml"),
    "pickle as codec": lambda path: pickled(path, "codec.json"),
    "pickle as vocabulary": lambda path: pickled(path, "source.vocabulary"),
    "torch.save as weights": torch_saved,
    "zip bomb as weights": zip_bomb,
    "gzip bomb as codec": file_case("codec.json", gzip.compress(bytes(100 << 20))),
    "gzip bomb as config": file_case("config.yaml", gzip.compress(bytes(100 << 20))),
    "empty weights": file_case(MODEL, b""),
    "header longer than the file": file_case(MODEL, struct.pack("<Q", 1000) + b"{}"),
    "header of 2^63 bytes": file_case(MODEL, struct.pack("<Q", 1 << 63) + b"{}"),
    "header of 30 MB": long_header,
    "header is no JSON": header_case(lambda _: b"\xff\xfe" * 8),
    "header is a list": header_case(lambda _: b"[1, 2]"),
    "header is deep": header_case(lambda _: b'{"a":' + b"[" * 200_000),
    "header has a long number": header_case(lambda _: b'{"a":' + b"9" * 100_000 + b"}"),
    "header has a name twice": header_case(
        lambda header: json.dumps(header).encode()[:-1] + b"," + json.dumps(header).encode()[1:]
    ),
    "huge shape": header_case(lambda header: first(header).update(shape=[HUGE, HUGE, HUGE])),
    "overflowing shape": header_case(lambda header: first(header).update(shape=[1 << 62, 4, 4])),
    "negative shape": header_case(lambda header: first(header).update(shape=[-1, -16])),
    "fraction as shape": header_case(lambda header: first(header).update(shape=[1.5])),
    "shape of 100000 ones": header_case(lambda header: first(header).update(shape=[1] * 100_000)),
    "text as shape": header_case(lambda header: first(header).update(shape="16")),
    "overlapping tensors": header_case(
        lambda header: [item.update(data_offsets=[0, 64]) for item in header.values()]
    ),
    "offsets beyond the file": header_case(
        lambda header: first(header).update(data_offsets=[HUGE, HUGE + 64])
    ),
    "offsets backwards": header_case(lambda header: first(header).update(data_offsets=[64, 0])),
    "hole between tensors": header_case(
        lambda header: first(header).update(data_offsets=[4, first(header)["data_offsets"][1]])
    ),
    "unknown dtype": header_case(lambda header: first(header).update(dtype="QINT8")),
    "dtype is a list": header_case(lambda header: first(header).update(dtype=["F32"])),
    "double precision": double_precision,
    "bytes in place of numbers": sparse_giant,
    "one tensor more": extra_tensor,
    "one tensor less": fewer_tensors,
    "other shape": swapped_shape,
    "larger vocabulary": larger_vocabulary,
    "tag in config": config_case(
        "seed: 1", "seed: !!python/object/apply:os.system ['touch marker']"
    ),
    "bomb in config": config_case(
        "seed: 1",
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{after}: &{after} [{','.join(['*' + before] * 9)}]\n"
            for before, after in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ),
    "config of a giant": config_case("dim: 16", "dim: 100000000"),
    "config of a tower": config_case("encoder_layers: 1", "encoder_layers: 1000000000"),
    "config with many heads": config_case("heads: 2", "heads: 1000000000"),
    "config of 83,332 thin layers": config_case("encoder_layers: 1", "encoder_layers: 83332"),
    "config of as many layers as allowed": config_case("encoder_layers: 1", "encoder_layers: 1000"),
    "config of the widest inner layer": config_case("_dim: 32", "_dim: 1048576"),
    "config with endless outputs": config_case("length_extra: 50", "length_extra: 1000000000"),
    "config with long sources": config_case("max_length: 256", "max_length: 100000000"),
    "config with a huge ratio": config_case("length_ratio: 2.0", "length_ratio: 1e300"),
    "config with a huge power": config_case("length_penalty: 0.6", "length_penalty: 1e300"),
    "config with a huge beam": config_case("decode:\n  beam: 4", "decode:\n  beam: 1000000"),
    "config with a huge gain": config_case(
        "attention: softmax", "attention: {kind: rela-g, gain_init: 1e300}"
    ),
    "config with a huge threshold": config_case(
        "attention: softmax", "attention: {kind: rela-g, threshold: -1e300}"
    ),
    "config with a huge k": config_case(
        "attention: softmax", "attention: {kind: topk, k: 99999999}"
    ),
    "language is a path": file_case(
        "codec.json",
        json.dumps(
            {
                "format": 1,
                "source": {"tokenizer": "moses", "language": "../../../etc/passwd"},
                "target": {"tokenizer": "none", "language": "de"},
                "subword": "none",
                "joint": False,
                "shared_vocabulary": False,
            }
        ).encode(),
    ),
    "vocabulary of a billion": file_case(
        "source.vocabulary", b"nmt-vocabulary 1\t1000000000\n" + b"a\t1\n"
    ),
    "config is not text": file_case("config.yaml", b"\xff\x00"),
    "config is long": file_case("config.yaml", b"#" * (20 << 20)),
}


def linked(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes((path / MODEL).read_bytes())
    (path / MODEL).unlink()
    (path / MODEL).symlink_to(path.parent / "elsewhere")


def pipe(path: Path) -> None:
    (path / "config.yaml").unlink()
    os.mkfifo(path / "config.yaml")


def directory(path: Path) -> None:
    (path / "config.yaml").unlink()
    (path / "config.yaml").mkdir()


def rename_in_manifest(name: str) -> Callable[[Path], None]:
    """A manifest, right in itself, that calls the weights by a name of the enemy's choice."""

    def attack(path: Path) -> None:
        entries = SealedDirectory(path).entries
        entries[name] = entries.pop(MODEL)
        (path / MANIFEST).write_bytes(encode_manifest(entries))

    return attack


def manifest_case(old: bytes, new: bytes) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        data = (path / MANIFEST).read_bytes()
        assert old in data
        (path / MANIFEST).write_bytes(data.replace(old, new, 1))

    return attack


PLACES: dict[str, Callable[[Path], None]] = {
    "link to a file": linked,
    "pipe": pipe,
    "directory": directory,
    "extra module": lambda path: (path / "torch.py").write_text("raise SystemExit") and None,
    "manifest names a parent": rename_in_manifest("../elsewhere"),
    "manifest names the root": rename_in_manifest("/etc/passwd"),
    "manifest names a hidden file": rename_in_manifest(".hidden"),
    "manifest names a NUL": rename_in_manifest("model\0.safetensors"),
    "manifest names a surrogate": rename_in_manifest("\ud800"),
    "manifest names itself": rename_in_manifest(MANIFEST),
    "manifest is long": lambda path: (path / MANIFEST).write_bytes(b" " * (20 << 20)) and None,
    "manifest is deep": lambda path: (path / MANIFEST).write_bytes(b"[" * 200_000) and None,
    "manifest is a pickle": lambda path: pickled(path, MANIFEST),
    "manifest of the future": manifest_case(b'"format": 1', b'"format": 2'),
    "manifest has a negative size": manifest_case(b'"size": ', b'"size": -'),
    "manifest says true": manifest_case(b'"size": ', b'"size": true, "s": '),
}


def load_in_child(path: Path) -> tuple[str, int, int]:
    """Load in a forked process: (what it said, how it ended, its largest memory in kB)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            load_model(path)
            said, code = "loaded", 0
        except UserError as error:
            said, code = str(error), error.exit_code
        except BaseException as error:
            said, code = f"traceback: {error!r}", 1
        os.write(writing, said.encode(errors="replace")[:60_000])
        os._exit(code)
    os.close(writing)
    with io.FileIO(reading) as file:
        said = file.readall().decode()
    _, status, usage = os.wait4(child, 0)
    return said, status, usage.ru_maxrss


def check(path: Path) -> None:
    """The directory is refused with this message, and that is all that happens."""
    said, status, memory = load_in_child(path)
    assert os.WIFEXITED(status), f"killed by signal {os.WTERMSIG(status)}"
    assert os.WEXITSTATUS(status) in (2, 3, 7), said
    assert said
    assert "\n" not in said.strip() or "config.yaml" in said  # problems of a config are a list
    assert memory < 1_000_000
    assert not (path.parent / "marker").exists()
    assert not Path("marker").exists()


@pytest.mark.parametrize("attack", FILES.values(), ids=FILES.keys())
def test_hostile_content(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    path = write_model(tmp_path / "model", seed=1)
    attack(path)
    if attack is not sparse_giant:
        reseal(path)
    else:  # hashing it takes seconds, and any SHA-256 will do
        size = (path / MODEL).stat().st_size
        entries = {
            name: type(entry)(size, entry.sha256) if name == MODEL else entry
            for name, entry in parse_manifest((path / MANIFEST).read_bytes(), "here").files.items()
        }
        (path / MANIFEST).write_bytes(encode_manifest(entries))
    check(path)


@pytest.mark.parametrize("attack", PLACES.values(), ids=PLACES.keys())
def test_hostile_places(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    path = write_model(tmp_path / "model", seed=1)
    attack(path)
    check(path)


def test_the_unharmed_directory_loads(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", seed=1)
    reseal(path)
    assert load_in_child(path)[:2] == ("loaded", 0)
