"""nmt-average-checkpoints from the outside."""

import json
import random
import threading
from pathlib import Path

import pytest
import torch
from support.small_models import content, flip_bit, largest_file, small_files, write_model

from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.selection import find_model
from nmt.checkpoint.store import CheckpointStore, verify
from nmt.cli.average_checkpoints import main
from nmt.decoding.packed_export import export_packed
from nmt.storage.directories import json_writer, write_directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with four checkpoints."""
    for step in (100, 200, 300, 400):
        write_model(tmp_path / "run" / "checkpoints" / f"step-{step:08d}", seed=step)
    return tmp_path / "run"


def steps_in(path: Path) -> list[int]:
    verify(path)
    state = json.loads((path / "state.json").read_text())
    return [row["step"] for row in state["average_of"]]


def test_last_checkpoints_of_a_run(run: Path) -> None:
    """Written where nmt-translate finds it, and replaced when run again."""
    assert main(["--run", str(run), "--last", "3"]) == 0
    assert steps_in(run / "average") == [200, 300, 400]
    assert main(["--run", str(run), "--last", "2"]) == 0
    assert steps_in(run / "average") == [300, 400]
    loaded = load_model(find_model(run))
    assert loaded.path == run / "average"
    parts = [
        load_model(run / f"checkpoints/step-{step:08d}").model.target_embedding
        for step in (300, 400)
    ]
    assert torch.allclose(loaded.model.target_embedding, (parts[0] + parts[1]) / 2)


def test_fewer_than_asked_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", str(run), "--output", str(run.parent / "mean")]) == 0
    assert steps_in(run.parent / "mean") == [100, 200, 300, 400]
    assert "warning" not in capsys.readouterr().err  # five are what it takes at most
    assert not (run / "average").exists()
    assert main(["--run", str(run), "--last", "5", "--output", str(run.parent / "mean")]) == 0
    assert "5 checkpoints asked for, 4 found" in capsys.readouterr().err


def test_a_checkpoint_of_a_signal_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**small_files(run, seed=350), "state.json": json_writer({"cause": "stop"})}
    write_directory(run / "checkpoints/step-00000350", files)
    assert main(["--run", str(run), "--last", "2"]) == 0
    assert steps_in(run / "average") == [300, 400]
    assert "step-00000350 is not averaged: the run was stopped" in capsys.readouterr().err


def test_what_cannot_be_averaged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path / "mean")]
    fails(["--checkpoints", str(run), *output], 2, f"average it with --run {run}", capsys)
    model, packed = run / "checkpoints/step-00000400", tmp_path / "packed"
    export_packed(load_model(model), packed, int8=False)
    message = "use the model that it was exported from"
    fails(["--checkpoints", str(model), str(packed), *output], 2, message, capsys)
    assert not (tmp_path / "mean").exists()


def test_damaged_checkpoint_of_a_run_is_passed_over(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_bit(run / "checkpoints/step-00000400/model.safetensors", 4321)
    assert main(["--run", str(run), "--last", "2"]) == 0
    assert steps_in(run / "average") == [200, 300]
    assert "step-00000400/model.safetensors" in capsys.readouterr().err


def test_a_run_in_progress_may_delete_what_is_being_averaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer that saves and prunes all the time, and an average taken again and again."""
    store = CheckpointStore(tmp_path / "run")
    parts = small_files(tmp_path, seed=1)
    for step in range(1, 6):
        store.save(step, parts)
    over = threading.Event()

    def train() -> None:
        step = 5
        while not over.wait(0.15):
            step += 1
            store.save(step, parts)
            CheckpointStore(tmp_path / "run").prune(keep_last=5)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        codes = {main(["--run", str(tmp_path / "run")]) for _ in range(8)}
    finally:
        over.set()
        trainer.join()
    errors = capsys.readouterr().err
    assert codes == {0}, errors
    assert "Traceback" not in errors


def test_named_checkpoints(run: Path, tmp_path: Path) -> None:
    paths = [str(run / f"checkpoints/step-{step:08d}") for step in (400, 100)]
    assert main(["--checkpoints", *paths, "--output", str(tmp_path / "deep/er/mean")]) == 0
    assert steps_in(tmp_path / "deep/er/mean") == [100, 400]


def fails(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    last = error.rstrip("\n").split("\n")[-1]
    assert last.startswith("nmt-average-checkpoints: ")
    assert message in last
    assert "Traceback" not in error


def test_named_damaged_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(run / f"checkpoints/step-{step:08d}") for step in (400, 100)]
    flip_bit(Path(paths[0]) / "model.safetensors", 4321)
    arguments = ["--checkpoints", *paths, "--output", str(tmp_path / "mean")]
    fails(arguments, 7, "step-00000400/model.safetensors", capsys)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_full_disk_is_not_blamed_on_the_inputs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """At any byte of any file it is exit 4, which names the output, and nothing is left behind."""
    before = content(tmp_path)
    sizes = random.Random(count)
    largest = (run / "checkpoints/step-00000400/model.safetensors").stat().st_size
    for _ in range(count):
        with largest_file(sizes.randrange(largest)):
            code = main(["--run", str(run), "--last", "2"])
        message = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
        assert (code, "cannot be written" in message) == (4, True), message
        assert str(run / "average") in message
        assert content(tmp_path) == before


def test_no_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(["--run", str(tmp_path / "nowhere")], 3, "nowhere", capsys)
    (tmp_path / "empty").mkdir()
    fails(["--run", str(tmp_path / "empty")], 3, "empty", capsys)
    fails(["--checkpoints", str(tmp_path / "x"), "--output", str(tmp_path / "y")], 3, "x", capsys)


def test_output_is_never_something_else(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not an input, not inside a model, not a directory of the user's, not a trained model."""
    write_model(run / "best", seed=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("text")
    newest = run / "checkpoints/step-00000400"
    before = content(tmp_path)
    for output, message in [
        (newest, "one of the inputs"),
        (newest / "inside", "lies inside"),
        (run / "checkpoints/step-00000100", "no average"),
        (run / "best", "no average"),
        (tmp_path / "mine", "no average"),
        (tmp_path / "file", "not a directory"),
    ]:
        fails(["--run", str(run), "--last", "2", "--output", str(output)], 2, message, capsys)
    assert content(tmp_path) == before


def test_contradictory_arguments(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(run / "checkpoints/step-00000400")
    fails(["--checkpoints", checkpoint], 2, "--output", capsys)
    fails(["--checkpoints", checkpoint, "--last", "2", "--output", "x"], 2, "--last", capsys)
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2


@pytest.mark.parametrize("count", ["0", "-1", "two", "9" * 30])
def test_last_takes_a_positive_number(
    run: Path, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--run", str(run), f"--last={count}"])
    assert end.value.code == 2
    assert "--last: expected a whole number" in capsys.readouterr().err


def test_an_empty_directory_may_be_the_output(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["--run", str(run), "--output", str(tmp_path / "empty")]) == 0
    assert steps_in(tmp_path / "empty") == [100, 200, 300, 400]
