"""Slots with real processes: who runs where, what a failure does, and how signals end them."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from nmt.errors import ConfigError
from nmt.recipes.side_by_side import Job, last_training_record, run_jobs, visible_devices

# Writes down when it began and ended and where; SIGTERM makes it save for a moment, then end.
COMMAND = """\
trap 'sleep 0.3; echo "saved $1" >> "$2"; exit 143' TERM
echo "begin $1 $CUDA_VISIBLE_DEVICES" >> "$2"
echo "about $1"
for part in $(seq "$3"); do sleep 0.1; done
echo "end $1" >> "$2"
exit "$4"
"""


def job(directory: Path, name: str, *, tenths: int = 3, code: int = 0) -> Job:
    words = (name, str(directory / "journal"), str(tenths), str(code))
    line = ("bash", "-c", COMMAND, "job", *words)
    return Job(name, line, directory / name / "log", directory / name / "metrics.jsonl", 10)


def journal(directory: Path) -> list[list[str]]:
    path = directory / "journal"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_a_device_runs_one_job_at_a_time_and_none_is_idle(tmp_path):
    names = ["a", "b", "c", "d", "e"]
    ending = run_jobs([job(tmp_path, name) for name in names], ["4", "7"])
    assert (ending.failed, ending.stopped) == ({}, None)
    lines = journal(tmp_path)
    used = {words[1]: words[2] for words in lines if words[0] == "begin"}
    assert sorted(used) == names  # two that start together may write in any order
    assert set(used.values()) == {"4", "7"}
    busy: set[str] = set()
    most = 0
    for kind, name, *_ in lines:
        if kind == "begin":
            assert used[name] not in busy
            busy.add(used[name])
        else:
            busy.remove(used[name])
        most = max(most, len(busy))
    assert most == 2
    assert (tmp_path / "a/log").read_text() == "about a\n"


def test_a_job_that_fails_does_not_end_the_others(tmp_path, caplog):
    jobs = [job(tmp_path, "a", tenths=1, code=4), job(tmp_path, "b", tenths=8), job(tmp_path, "c")]
    with caplog.at_level("INFO", logger="nmt"):
        ending = run_jobs(jobs, ["0", "1"])
    assert (ending.failed, ending.stopped) == ({"a": 4}, None)
    assert ["end", "b"] in journal(tmp_path)
    assert ["end", "c"] in journal(tmp_path)
    assert "a: failed with exit code 4: about a" in caplog.text
    assert "c: done" in caplog.text


PARENT = """\
import logging, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
logging.basicConfig(level="INFO", format="%(message)s")
from test_side_by_side import job
from nmt.recipes.side_by_side import run_jobs
ending = run_jobs([job(Path(sys.argv[2]), n, tenths=600) for n in "abc"], ["0", "1"])
sys.exit(99 if ending.stopped is None else ending.stopped)
"""


@pytest.mark.parametrize(
    ("signals", "code", "saved"),
    [
        ([signal.SIGTERM], 143, {"a", "b"}),
        ([signal.SIGINT], 130, {"a", "b"}),
        ([signal.SIGUSR1], 0, {"a", "b"}),
        ([signal.SIGINT, signal.SIGINT], 130, set()),
    ],
)
def test_signals_stop_all_jobs_and_start_no_other(tmp_path, signals, code, saved):
    here = str(Path(__file__).parent)
    line = [sys.executable, "-c", PARENT, here, str(tmp_path)]
    parent = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    while len(journal(tmp_path)) < 2:
        assert parent.poll() is None
        time.sleep(0.02)
    for number in signals:
        parent.send_signal(number)
        time.sleep(0.05)
    _, errors = parent.communicate(timeout=20)
    assert parent.returncode == code, errors
    lines = journal(tmp_path)
    assert {words[1] for words in lines if words[0] == "begin"} == {"a", "b"}
    assert {words[1] for words in lines if words[0] == "saved"} == saved
    assert "a: stopped" in errors
    assert "failed" not in errors


def test_progress_is_told_in_lines_without_a_terminal(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("nmt.recipes.side_by_side.REPORT_SECONDS", 0.0)
    record = {"event": "train", "update": 7, "loss": 2.5, "tokens_per_second": 1234.5}
    write = f"echo '{json.dumps(record)}' > {tmp_path}/metrics.jsonl; sleep 0.6"
    one = Job("a", ("bash", "-c", write), tmp_path / "log", tmp_path / "metrics.jsonl", 10)
    with caplog.at_level("INFO", logger="nmt"):
        run_jobs([one], ["0"])
    assert caplog.text.count("a: update 7 of 10, loss 2.500, 1234 tokens/s") == 1


def test_the_newest_record_of_training_is_found_among_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_training_record(path) == {}
    path.write_text(
        textwrap.dedent("""\
        {"event": "train", "update": 4}
        {"event": "train", "update": 8}
        {"event": "validation", "update": 8}
        {"event": "train", "upda""")
    )
    assert last_training_record(path) == {"event": "train", "update": 8}


@pytest.mark.parametrize(
    ("asked", "available", "known", "expected"),
    [
        ("3", 4, None, ["0", "1", "2"]),
        ("0,1,3", 4, None, ["0", "1", "3"]),
        ("2", 3, "5,GPU-1a,7", ["5", "GPU-1a"]),
        ("0,2", 3, "5,GPU-1a,7", ["5", "7"]),
        ("2", None, None, ["0", "1"]),
    ],
)
def test_devices(monkeypatch, asked, available, known, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if known is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", known)
    assert visible_devices(asked, available) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("0", "expected a number of GPUs"),
        ("00", "expected a number of GPUs"),
        ("two", "expected a number of GPUs"),
        ("1,,2", "expected a number of GPUs"),
        ("1,1", "named more than once"),
        ("3", "torch sees 2 GPU"),
        ("0,2", "torch sees 2 GPU"),
    ],
)
def test_wrong_devices_are_named(asked, message):
    with pytest.raises(ConfigError, match=message):
        visible_devices(asked, 2)


def test_no_process_is_left(tmp_path):
    """The processes of a job end with it, those that it has started, too."""
    line = ("bash", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    one = Job("a", line, tmp_path / "log", tmp_path / "metrics.jsonl", 10)
    code = "from pathlib import PosixPath\nfrom nmt.recipes.side_by_side import Job, run_jobs\n"
    parent = subprocess.Popen([sys.executable, "-c", f"{code}run_jobs([{one!r}], ['0'])\n"])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        time.sleep(0.02)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(timeout=20) == 0
    status = Path("/proc", (tmp_path / "pid").read_text().strip(), "status")
    assert not status.exists() or "State:\tZ" in status.read_text()  # gone, or dead


def test_a_job_that_cannot_be_started_does_not_end_the_others(tmp_path, caplog):
    (tmp_path / "a").write_text("in the place of a directory")
    ending = run_jobs([job(tmp_path, "a"), job(tmp_path, "b")], ["0"])
    assert ending.failed == {"a": 4}
    assert ["end", "b"] in journal(tmp_path)
    assert "a: cannot be started: " in caplog.text
