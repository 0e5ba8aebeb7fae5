"""How a run ends: the exit code and result.json tell the truth, whatever happened last."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.disks import before_call, limit_during
from support.runs import die_at_call, fresh, newest, outcome, tiny_config, train_in_child, write_run

from nmt.cli import average_checkpoints
from nmt.training import run
from nmt.training.result import read_result
from nmt.training.saving import Saver
from nmt.training.trainer import Trainer
from nmt.training.update import Updater

KILLED = -signal.SIGKILL


def all_of(*actions: Callable[[], None]) -> Callable[[], None]:
    """One sabotage out of several."""
    return lambda: [action() for action in actions] and None  # type: ignore[func-returns-value]


# ---------------------------------------------------------------- the last save


def test_a_last_save_that_fails_is_no_finish(
    config: Path, reference: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints are due after 5, 10, 15, 20 and at the end, after 24."""
    assert train_in_child(config, partial(limit_during, Saver, "save", 5, 5)) == 4
    errors = capfd.readouterr().err
    assert "finished" not in errors
    assert "checkpoints" in errors.rstrip().split("\n")[-1]
    result = read_result(config.parent / "run")
    assert result["status"] == "failed"
    assert "step-00000024" in result["reason"]
    assert newest(config.parent / "run").name == "step-00000020"
    assert train_in_child(config) == 0
    assert outcome(config.parent / "run") == outcome(reference / "run")
    assert read_result(config.parent / "run")["status"] == "finished"


def test_a_save_after_a_signal_that_fails_is_exit_4(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sabotage = all_of(
        partial(die_at_call, Updater, "step", 8, number=signal.SIGTERM),
        partial(limit_during, Saver, "save", 2, 2),
    )
    assert train_in_child(config, sabotage) == 4
    assert "stopped by a signal" not in capfd.readouterr().err
    assert read_result(config.parent / "run")["status"] == "failed"


def test_a_kill_after_the_last_save_is_made_good(config: Path, reference: Path) -> None:
    run_dir = config.parent / "run"
    assert train_in_child(config, partial(die_at_call, run, "write_end", 1)) == KILLED
    assert read_result(run_dir) == {"status": "running"}
    assert train_in_child(config) == 0
    assert read_result(run_dir) == read_result(reference / "run")
    assert read_result(run_dir)["status"] == "finished"


def test_a_program_error_does_not_leave_the_run_running(config: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    sabotage = partial(before_call, Trainer, "validate", 2, fail)
    assert train_in_child(config, sabotage) == 1  # with a traceback: it is our mistake
    assert read_result(config.parent / "run")["status"] == "failed"


# ---------------------------------------------------------------- numbers that are not finite


def poison(kind: str, value: float, before_validation: int) -> None:
    """Let a weight, or a moment of Adam's, be not finite just before a validation."""
    original = Trainer.validate
    calls = 0

    def validate(self: Trainer) -> None:
        nonlocal calls
        calls += 1
        if calls == before_validation:
            parameter = list(self.updater.loss.parameters())[3]
            tensor = (
                parameter if kind == "weight" else self.updater.optimizer.state[parameter][kind]
            )
            tensor.data.view(-1)[0] = value
        original(self)

    Trainer.validate = validate  # type: ignore[method-assign]


def assert_all_finite(run_dir: Path) -> None:
    for path in run_dir.rglob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert torch.isfinite(tensor).all(), (path, name)


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [("weight", float("nan"), 1), ("exp_avg", float("inf"), 1), ("exp_avg_sq", float("nan"), 2)],
)
def test_best_is_never_written_with_non_finite_weights(
    config: Path, capfd: pytest.CaptureFixture[str], kind: str, value: float, number: int
) -> None:
    """Validations are after 6, 12, ...; the first `best` would be that of 6."""
    assert train_in_child(config, partial(poison, kind, value, number)) == 6
    assert "is not finite" in capfd.readouterr().err
    run_dir = config.parent / "run"
    assert (run_dir / "best").exists() == (number > 1)
    assert_all_finite(run_dir)
    assert read_result(run_dir)["status"] == "diverged"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_injections_leave_only_finite_tensors(reference: Path, tmp_path: Path) -> None:
    """Into a random number of weights, moments or the average, at a random update."""
    generator = random.Random(16)
    codes: dict[int, int] = {}
    for attempt in range(100):
        directory = tmp_path / str(attempt)
        path = fresh(
            reference, directory, tiny_config(directory, ema=0.9 if attempt % 4 == 0 else 0.0)
        )
        code = train_in_child(path, partial(poison_at_random, generator.randint(0, 2**31)))
        codes[code] = codes.get(code, 0) + 1
        assert_all_finite(directory / "run")
        shutil.rmtree(directory)
    assert set(codes) <= {0, 6}, codes  # 0: a moment that the next update made finite again
    assert codes[6] >= 90, codes


def poison_at_random(seed: int) -> None:
    generator = random.Random(seed)
    due, value = generator.randint(1, 24), generator.choice([float("nan"), float("inf")])
    original = Updater.step
    calls = 0

    def step(self: Updater, *arguments: Any) -> None:
        nonlocal calls
        original(self, *arguments)
        calls += 1
        if calls == due:
            parameter = generator.choice(list(self.loss.parameters()))
            tensors = [parameter, *list(self.optimizer.state[parameter].values())[1:]]
            if self.average is not None:
                tensors.append(generator.choice(self.average.values))
            tensor = generator.choice(tensors).data.view(-1)
            tensor[generator.randrange(len(tensor))] = value

    Updater.step = step  # type: ignore[method-assign]


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 0)]
)
def test_a_signal_before_the_loop_ends_at_once(
    config: Path, capfd: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    assert (
        train_in_child(config, partial(die_at_call, run, "prepared_data", 1, number=number)) == code
    )
    errors = capfd.readouterr().err
    assert f"stopped by {signal.Signals(number).name} before the first update" in errors
    assert "Traceback" not in errors
    assert not (config.parent / "run" / "checkpoints").exists()


def test_a_signal_while_a_killed_run_is_loaded_records_the_stop(config: Path) -> None:
    assert train_in_child(config, partial(die_at_call, Updater, "step", 13)) == KILLED
    assert read_result(config.parent / "run") == {"status": "running"}
    sabotage = partial(die_at_call, run, "restore", 1, number=signal.SIGUSR1)
    assert train_in_child(config, sabotage) == 0
    result = read_result(config.parent / "run")
    assert (result["status"], result["update"]) == ("stopped", 10)


def start(config: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nmt.cli.train", "--config", str(config)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def wait_until_handled(process: subprocess.Popen[str], number: int) -> None:
    """Wait until a process has a handler for a signal."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        if caught >> (number - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError("no handler")


def test_sigusr1_as_soon_as_the_command_runs_is_exit_0(config: Path) -> None:
    process = start(config)
    wait_until_handled(process, signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_after_the_end_changes_nothing(config: Path, number: int) -> None:
    """The interpreter takes a while to end when the run has ended."""
    program = (
        "import atexit, os, sys\n"
        f"atexit.register(lambda: os.kill(os.getpid(), {number}))\n"
        f"sys.argv = ['nmt-train', '--config', {str(config)!r}]\n"
        "from nmt.cli.train import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_ignored_sigint_stays_ignored(reference: Path, config: Path) -> None:
    """As under `nohup nmt-train ... &`; SIGTERM is honoured all the same."""
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    process = start(config, **ignoring)
    while process.poll() is None and not (config.parent / "run" / "metrics.jsonl").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert outcome(config.parent / "run") == outcome(reference / "run")


# ---------------------------------------------------------------- interruptions leave no trace


def averaged_steps(run_dir: Path, output: Path) -> list[int]:
    command = ["--run", str(run_dir), "--output", str(output)]
    assert average_checkpoints.main(command) == 0
    return [row["step"] for row in json.loads((output / "state.json").read_bytes())["average_of"]]


@pytest.mark.parametrize("stops", [[23], [3, 18, 22], [12, 21, 23]])
def test_the_average_does_not_depend_on_interruptions(
    reference: Path, config: Path, stops: list[int]
) -> None:
    """The end, 24, is no multiple of save_every, 5."""
    done = 0
    for stop in stops:
        sabotage = partial(die_at_call, Updater, "step", stop - done, number=signal.SIGTERM)
        assert train_in_child(config, sabotage) == 143
        done = stop
    assert train_in_child(config) == 0
    for directory in (reference, config.parent):
        steps = averaged_steps(directory / "run", config.parent / f"average-{directory.name}")
        assert steps == [15, 20, 24]
    assert outcome(config.parent / "run") == outcome(reference / "run")


def test_a_stopped_run_is_averaged_on_schedule(config: Path) -> None:
    sabotage = partial(die_at_call, Updater, "step", 23, number=signal.SIGTERM)
    assert train_in_child(config, sabotage) == 143
    assert averaged_steps(config.parent / "run", config.parent / "average") == [15, 20]


def test_a_run_stopped_before_its_first_regular_save_can_be_averaged(config: Path) -> None:
    sabotage = partial(die_at_call, Updater, "step", 3, number=signal.SIGTERM)
    assert train_in_child(config, sabotage) == 143
    assert averaged_steps(config.parent / "run", config.parent / "average") == [3]


def test_old_checkpoints_stay_when_save_every_changes(config: Path) -> None:
    """Checkpoints that were saved on schedule stay on schedule."""
    assert train_in_child(config, partial(die_at_call, Updater, "step", 18)) == KILLED
    settings = tiny_config(config.parent, save_every=7, keep_last=4)
    assert train_in_child(write_run(config.parent, settings)) == 0
    steps = sorted(path.name for path in (config.parent / "run" / "checkpoints").iterdir())
    assert steps == ["step-00000010", "step-00000015", "step-00000021", "step-00000024"]


# ---------------------------------------------------------------- speed and time


def slow_steps() -> None:
    original = Updater.step

    def step(self: Updater, *arguments: Any) -> None:
        time.sleep(0.05)
        original(self, *arguments)

    Updater.step = step  # type: ignore[method-assign]


def test_the_first_record_after_a_resume_has_the_right_speed(config: Path) -> None:
    """18 of 20 updates were done by the first process."""
    path = write_run(config.parent, tiny_config(config.parent, log_every=20, max_updates=20))
    stop = partial(die_at_call, Updater, "step", 18, number=signal.SIGTERM)
    assert train_in_child(path, all_of(stop, slow_steps)) == 143
    assert train_in_child(path, slow_steps) == 0
    lines = (config.parent / "run" / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    (record,) = [r for r in map(json.loads, lines) if r["event"] == "train"]
    assert record["tokens_per_second"] < record["tokens"] / (20 * 0.05)
    assert record["seconds"] == pytest.approx(record["tokens"] / record["tokens_per_second"], 1e-2)
    assert record["epoch"] >= 1
    assert record["time"].endswith("+00:00")
