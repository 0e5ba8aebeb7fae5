"""nmt-translate in several processes, on named devices, and in bfloat16."""

import itertools
import threading
from pathlib import Path

import pytest
from translation_models import make_directory, random_lines, trained_model

from nmt import Translator
from nmt.cli.translate import main
from nmt.decoding.translator import Line, SearchOptions
from nmt.decoding.workers import WorkerPool, WorkerSettings
from nmt.errors import IntegrityError, UserError
from nmt.ops import backend

LINES = random_lines(30, seed=9, longest=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model") / "best", *trained_model())


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    return [one.text for one in Translator.load(model).translate(LINES)]


def translate(model: Path, tmp_path: Path, *arguments: str) -> list[str]:
    """The output of the command for LINES."""
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(line + "\n" for line in LINES))
    options = ["--input", str(source), "--output", str(output), *arguments]
    assert main(["--model", str(model), *options]) == 0
    return output.read_text().split("\n")[:-1]


def numbered(lines: list[str]) -> list[Line]:
    return [Line(number, text) for number, text in enumerate(lines)]


def test_killed_workers_lose_nothing(
    model: Path, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = WorkerSettings((model,), "auto", int8=False, threads=1)
    many = numbered(LINES * 40)
    with WorkerPool(settings, ["cpu", "cpu"]) as pool:
        answers = pool.translate_lines(many, SearchOptions(beam=1))
        found = dict(itertools.islice(answers, 1))
        for worker in list(pool.workers.values()):  # one is at work, the other may be
            worker.process.kill()
        for number, translation in answers:
            assert number not in found
            found[number] = translation
        assert [found[number].text for number in range(len(LINES))] == [
            found[number].text for number in range(len(many) - len(LINES), len(many))
        ]
        assert "a worker process on cpu ended unexpectedly (exit code -9)" in caplog.text
        again = dict(pool.translate_lines(numbered(LINES), SearchOptions()))
        assert [again[number].text for number in range(len(LINES))] == expected
        assert len(pool.workers) == 2


def test_lines_that_end_every_worker_are_given_up(model: Path) -> None:
    settings = WorkerSettings((model,), "auto", int8=False, threads=1)
    with WorkerPool(settings, ["cpu"]) as pool:
        stop = threading.Event()

        def kill() -> None:
            while not stop.wait(0.02):
                for worker in list(pool.workers.values()):
                    worker.process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with pytest.raises(UserError, match="as did 2 before it with the same lines"):
                list(pool.translate_lines(numbered(LINES), SearchOptions()))
        finally:
            stop.set()
            killer.join()


def test_several_devices_translate_like_one(
    model: Path, tmp_path: Path, expected: list[str]
) -> None:
    assert translate(model, tmp_path, "--device", "cpu,cpu") == expected


def test_precision(
    model: Path,
    tmp_path: Path,
    expected: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "_logged", set())  # a warning comes once per process
    found = {}
    for precision in ("auto", "float32", "bfloat16"):
        lines = translate(model, tmp_path, "--scores", "--precision", precision)
        found[precision] = [line.split("\t") for line in lines]
    assert found["auto"] == found["float32"]
    assert [text for _, text in found["auto"]] == expected
    same = [
        (float(one), float(other))
        for (one, text), (other, rounded) in zip(found["auto"], found["bfloat16"], strict=True)
        if text == rounded
    ]
    assert len(same) > 0.7 * len(LINES)
    assert any(one != other for one, other in same)
    assert all(one == pytest.approx(other, abs=0.1, rel=0.05) for one, other in same)
    assert "faster than torch in torch.bfloat16" in capsys.readouterr().err


def test_workers_report_a_damaged_model(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model.iterdir():
        data = bytearray(path.read_bytes())
        if path.name == "model.safetensors":
            data[-5] ^= 1
        (broken / path.name).write_bytes(data)
    settings = WorkerSettings((broken,), "auto", int8=False, threads=1)
    with WorkerPool(settings, ["cpu"]) as pool, pytest.raises(IntegrityError):
        list(pool.translate_lines([Line(0, "the cat")], SearchOptions()))
