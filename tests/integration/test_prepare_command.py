"""nmt-prepare from the outside: messages, exit codes, kills, interrupts and two at once."""

import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.cli.prepare import main
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST

SOURCE = ["the old dog sees the river", "a man hears 17 trees", "days are long", "the man sees it"]
TARGET = [
    "der alte Hund sieht den Fluss",
    "ein Mann hört 17 Bäume",
    "Tage sind lang",
    "er sieht es",
]

CONFIG = """
run_dir: run
data:
  source_language: en
  target_language: de
  train: {source: train.en, target: train.de}
  validation: {source: validation.en, target: validation.de}
  subword: {kind: bpe, merges: 40}
  workers: 2
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, repeats in (("train", 4), ("validation", 1)):
        (tmp_path / f"{name}.en").write_bytes("".join(f"{s}\n" for s in SOURCE * repeats).encode())
        (tmp_path / f"{name}.de").write_bytes("".join(f"{s}\n" for s in TARGET * repeats).encode())
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def prepare(project: Path, *overrides: str) -> int:
    return main(["--config", str(project / "config.yaml"), *overrides])


def assert_whole(directory: Path) -> None:
    files = json.loads((directory / MANIFEST).read_bytes())["files"]
    assert {path.name for path in directory.iterdir()} == {MANIFEST, *files}
    for name, entry in files.items():
        assert file_sha256(directory / name) == entry["sha256"]


def test_the_summary_goes_to_standard_error(project: Path, capsys):
    assert prepare(project, "data.subword.kind=none", "data.max_length=5") == 0
    output = capsys.readouterr()
    assert output.out == ""
    lines = [line.split() for line in output.err.split("\n")]
    assert ["train", "pairs", "12", "of", "16", "read"] in lines
    assert ["left", "out", "4", "longer", "than", "max_length"] in lines
    assert ["validation", "pairs", "4", "of", "4", "read"] in lines
    manifest = json.loads((project / "run" / "prepared" / MANIFEST).read_bytes())
    assert ["source", "vocabulary", str(manifest["about"]["vocabulary"]["source"])] in lines
    assert str(project / "run" / "prepared") in output.err


def test_the_second_run_says_that_there_is_nothing_to_do(project: Path, capsys):
    assert prepare(project) == 0
    capsys.readouterr()
    assert prepare(project) == 0
    assert "up to date" in capsys.readouterr().err


@pytest.mark.clock
def test_the_second_run_takes_no_time(project: Path) -> None:
    assert prepare(project) == 0
    started = time.monotonic()
    assert prepare(project) == 0
    assert time.monotonic() - started < 5.0  # 0.1 on an idle machine


def test_verify_reads_everything_and_writes_nothing(project: Path, capsys):
    assert prepare(project, "--verify") == 2  # nothing has been prepared
    assert prepare(project) == 0
    directory = project / "run" / "prepared"
    assert prepare(project, "--verify") == 0
    for name in ("train.target.tokens.bin", "source.vocabulary", "validation.source.txt", MANIFEST):
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        capsys.readouterr()
        assert prepare(project, "--verify") == 7
        (line,) = capsys.readouterr().err.strip().split("\n")
        assert f"{name}: " in line
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
        (directory / name).write_bytes(data)
    assert prepare(project, "--verify") == 0


def ragged(project: Path) -> None:
    with (project / "train.de").open("a") as file:
        file.write("eine Zeile zu viel\n")


def invalid(project: Path) -> None:
    (project / "train.en").write_bytes((project / "train.en").read_bytes()[:-3] + b"\xff\n")


def blank(project: Path) -> None:
    lines = (project / "train.en").read_bytes().split(b"\n")
    (project / "train.en").write_bytes(b"\n".join([b" ", *lines[1:]]))


def truncated(project: Path) -> None:
    packed = gzip.compress((project / "train.en").read_bytes())
    (project / "train.en").write_bytes(packed[:-20])


def empty(project: Path) -> None:
    (project / "validation.en").write_bytes(b"")


def missing(project: Path) -> None:
    (project / "validation.de").unlink()


def directory(project: Path) -> None:
    (project / "validation.de").unlink()
    (project / "validation.de").mkdir()


def pipe(project: Path) -> None:
    (project / "train.en").unlink()
    os.mkfifo(project / "train.en")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (ragged, r"train.en has 16 lines but .*train.de has 17"),
        (invalid, r"train.en:16: invalid UTF-8"),
        (blank, r"train.en:1: empty line"),
        (truncated, r"train.en: .*archive"),
        (empty, r"validation.en: .*empty"),
        (missing, r"validation.de: cannot be read"),
        (directory, r"validation.de: .*directory"),
        (pipe, r"train.en: .*pipe"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_unusable_text_is_one_line_and_exit_code_2(
    project: Path, capsys, spoil: Callable[[Path], None], message: str
):
    spoil(project)
    assert prepare(project) == 2
    errors = [line for line in capsys.readouterr().err.split("\n") if "nmt-prepare: " in line]
    assert len(errors) == 1
    assert re.search(message, errors[0])
    assert not (project / "run" / "prepared").exists()
    assert unfinished(project) == []


def test_an_unknown_setting_is_exit_code_2(project: Path, capsys):
    assert prepare(project, "data.max_lenght=10") == 2
    assert "max_length" in capsys.readouterr().err


def enlarge(project: Path, pairs: int = 15_000) -> None:
    """More text, so that several processes work on it and there is time to interfere."""
    for suffix, lines in (("en", SOURCE), ("de", TARGET)):
        text = "".join(f"{lines[n % 4]} {n % 701}\n" for n in range(pairs))
        (project / f"train.{suffix}").write_text(text, encoding="utf-8")


def start(project: Path, *, largest_file: int | None = None) -> subprocess.Popen[bytes]:
    """The command as its own process, in which a disk may be full after this many bytes."""

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    command = [sys.executable, "-m", "nmt.cli.prepare", "--config", str(project / "config.yaml")]
    return subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=limit)


def wait_for(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def unfinished(project: Path) -> list[Path]:
    """Directories that are being built, or were."""
    return list((project / "run").glob(".nmt-new-prepared.*"))


def children(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize("file_name", ["joint.codes", "train.source.tokens.bin"])
def test_killed_half_way_leaves_nothing_that_could_be_taken_for_whole(
    project: Path, file_name: str
):
    enlarge(project)
    process = start(project)
    wait_for(lambda: any((path / file_name).exists() for path in unfinished(project)))
    if "tokens" in file_name:
        wait_for(lambda: len(children(process.pid)) >= 2)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (project / "run" / "prepared").exists()
    wait_for(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers), seconds=10)
    assert prepare(project) == 0
    assert_whole(project / "run" / "prepared")
    assert unfinished(project) == []


def test_killed_while_it_replaces_older_data_keeps_the_older_data(project: Path):
    assert prepare(project) == 0
    prepared = project / "run" / "prepared"
    before = {path.name: path.read_bytes() for path in prepared.iterdir()}
    enlarge(project)
    process = start(project)
    wait_for(lambda: any((path / "codec.json").exists() for path in unfinished(project)))
    process.kill()
    process.communicate()
    assert {path.name: path.read_bytes() for path in prepared.iterdir()} == before


def test_an_interrupt_ends_quietly_and_cleans_up(project: Path):
    enlarge(project)
    process = start(project)
    wait_for(lambda: any((path / "codec.json").exists() for path in unfinished(project)))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert [path.name for path in (project / "run").iterdir()] == ["prepared.lock"]


def test_two_at_once_agree(project: Path):
    enlarge(project)
    processes = [start(project), start(project)]
    errors = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(b"up to date" in text for text in errors) == [False, True]
    assert_whole(project / "run" / "prepared")


@pytest.mark.parametrize("largest_file", [100, 5_000, 100_000])
def test_a_full_disk_is_exit_code_4_and_leaves_nothing(project: Path, largest_file: int):
    enlarge(project)
    process = start(project, largest_file=largest_file)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 4
    lines = errors.decode().strip().split("\n")
    assert lines[-1].startswith("nmt-prepare: ")
    assert "prepared" in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert [path.name for path in (project / "run").iterdir()] == ["prepared.lock"]
