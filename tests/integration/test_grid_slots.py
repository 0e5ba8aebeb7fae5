"""nmt-table --gpus and --slurm-array with real processes; SLURM's own commands are stubs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.small_task import TINY, Task, row_of

from nmt.cli.table import main
from nmt.training.result import read_result


def start(task: Task, *arguments: str) -> "subprocess.Popen[str]":
    line = [sys.executable, "-m", "nmt.cli.table", str(task.recipe), "--data", str(task.data)]
    return subprocess.Popen(
        [*line, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "SACREBLEU": str(task.data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_in_a_slot_diverges_and_the_table_says_so(tmp_path):
    task = Task(tmp_path)
    done = start(task, "--gpus", "1", "--variants", "broken", *TINY)
    output, errors = done.communicate(timeout=200)
    assert done.returncode == 0, errors
    assert row_of(output, "broken")["runs"] == "0, 1 diverged"
    assert "broken, seed 1: done" in errors
    assert "broken, seed 1 diverged" in (task.runs / "broken/results/table.log").read_text()


def test_more_gpus_than_there_are_is_one_line(tmp_path, capfd):
    task = Task(tmp_path)
    arguments = [str(task.recipe), "--data", str(task.data), "--gpus", "64"]
    assert main([*arguments, *TINY, "train.device=auto"]) == 2
    assert "--gpus 64: torch sees " in capfd.readouterr().err
    assert not task.runs.exists()


@pytest.mark.slow
def test_runs_side_by_side_are_stopped_and_resumed_and_one_fails(tmp_path):
    task = Task(tmp_path)
    (task.runs / "rela-i" / "results").mkdir(parents=True)
    (task.runs / "rela-i" / "checkpoints").write_text("in the place of a directory")
    good = [task.runs / name for name in ("softmax", "rela-g")]
    grid = ["--gpus", "2", "--variants", "rela-i", "softmax", "rela-g", *TINY]
    first = start(task, *grid, "train.max_updates=100000", "validate.every=100000")
    try:
        deadline = time.monotonic() + 150
        while not all(list(run.glob("checkpoints/step-*")) for run in good):
            assert time.monotonic() < deadline, "no checkpoint appeared"
            assert first.poll() is None, first.stderr and first.stderr.read()
            time.sleep(0.05)
        first.send_signal(signal.SIGTERM)
        output, errors = first.communicate(timeout=100)
    finally:
        first.kill()
    assert (first.returncode, output) == (143, ""), errors
    assert "rela-i, seed 1: failed with exit code " in errors
    assert "softmax, seed 1: stopped" in errors
    assert [read_result(run)["status"] for run in good] == ["stopped", "stopped"]

    last = max(int(path.name[5:]) for run in good for path in run.glob("checkpoints/step-*")) + 6
    again = start(task, *grid, f"train.max_updates={last}", "validate.every=100000")
    output, errors = again.communicate(timeout=150)
    assert again.returncode in (2, 3, 4), errors  # that of the run that failed
    assert "1 of 3 runs failed; the same command tries them again" in errors
    assert "Traceback" not in errors
    assert [read_result(run)["status"] for run in good] == ["finished", "finished"]
    assert [row_of(output, name)["runs"] for name in ("rela-i", "softmax", "rela-g")] == [
        "",
        "1",
        "1",
    ]
    logs = [(run / "results/table.log").read_text() for run in good]
    assert all("stopped by a signal at update" in text for text in logs)
    assert all("going on from update" in text for text in logs)


# ---------------------------------------------------------------- SLURM

STUBS = {
    "sbatch": 'echo "sbatch $*" >> "$STUB_LOG"\necho "$((40 + $(wc -l < "$STUB_LOG")));c"\n',
    "scontrol": 'echo "scontrol $*" >> "$STUB_LOG"\n',
    # In the place of the interpreter: with WAIT=1 it runs until SIGUSR1, and has been told to save.
    "python": """\
echo "python $*" >> "$STUB_LOG"
if [ "${WAIT:-0}" = 1 ]; then
    trap 'echo saved >> "$STUB_LOG"; exit "$CODE"' USR1
    touch "$STUB_LOG.ready"
    while true; do sleep 0.05; done
fi
exit "$CODE"
""",
}


@pytest.fixture
def script(tmp_path, monkeypatch, capfd):
    """The script of a grid of two variants and two seeds, which calls the stub interpreter."""
    commands = tmp_path / "the commands"
    commands.mkdir()
    for name, body in STUBS.items():
        (commands / name).write_text("#!/usr/bin/env bash\n" + body)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("CODE", "0")
    task = Task(tmp_path)
    path = tmp_path / "a grid.sh"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(commands / "python"))
        options = ["--variants", "softmax", "rela-g", "--seeds", "1", "2", "decode.beam=7"]
        options += ["--data", str(task.data), "--slurm-array", str(path), "--baseline", "rela-g"]
        assert main([str(task.recipe), *options]) == 0
    assert "submit it with: bash" in capfd.readouterr().err
    assert not task.runs.exists()
    return path


def log_of(script: Path) -> list[str]:
    return (script.parent / "log").read_text().splitlines()


def test_the_script_prepares_here_and_submits_an_array_and_a_table(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    done = subprocess.run(["bash", script, "--partition=gpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "array 42 with 4 task(s)" in done.stderr
    prepare, train, table = log_of(script)
    task = script.parent / "recipes" / "multi30k_en_de"
    known = f"python -m nmt.cli.table {task} decode.beam=7 --data {script.parent / 'own'}"
    assert prepare == f"{known} --variants softmax rela-g --seeds 1 2 --only prepare"
    for option in ("--array=0-3", "--gpus-per-node=1", "--signal=B:USR1@120", "--requeue"):
        assert option in train
    assert "dependency" not in train
    assert train.endswith(f"--partition=gpu {script} run")
    assert "--dependency=afterany:42" in table
    assert table.endswith(f"--partition=gpu {script} table")
    subprocess.run(["bash", script, "table"], check=True)
    output = script.with_suffix(".table")
    options = f"--only table --format markdown --output {output} --baseline rela-g"
    assert log_of(script)[-1] == f"{known} --variants softmax rela-g --seeds 1 2 {options}"


def test_the_data_can_be_prepared_by_a_job_and_a_failure_submits_nothing(script, monkeypatch):
    subprocess.run(["bash", script, "--prepare-job", "--array=0-3%2"], check=True)
    prepare, train, table = log_of(script)
    assert prepare.endswith(f"{script} prepare")
    assert train.endswith(f"--array=0-3%2 {script} run")
    assert "--array" not in prepare + table
    assert "--dependency=afterok:41 --kill-on-invalid-dep=yes" in train
    assert "--dependency=afterany:42" in table
    (script.parent / "log").unlink()
    monkeypatch.setenv("CODE", "7")
    assert subprocess.run(["bash", script]).returncode == 7
    assert len(log_of(script)) == 1


def run_task(script: Path, **settings: str) -> "subprocess.Popen[bytes]":
    environment = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "41", "SLURM_JOB_ID": "41"}
    return subprocess.Popen(["bash", script, "run"], env={**os.environ, **environment, **settings})


@pytest.mark.parametrize("code", ["0", "4"])
def test_a_task_makes_its_run_and_has_its_exit_code(script, code):
    assert run_task(script, CODE=code).wait(timeout=20) == int(code)
    (line,) = log_of(script)
    assert line.endswith("--variants softmax --seeds 2 --only runs")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize(("code", "queued"), [("0", True), ("138", True), ("4", False)])
def test_a_task_whose_time_is_up_saves_and_is_queued_again(script, number, code, queued):
    task = run_task(script, WAIT="1", CODE=code)
    while not (script.parent / "log.ready").exists():
        time.sleep(0.02)
    task.send_signal(number)
    assert task.wait(timeout=20) == (0 if queued else int(code))
    # By its number in the array: its job id may be that of the whole array.
    assert log_of(script)[1:] == ["saved"] + ["scontrol requeue 41_2"] * queued


@pytest.mark.slow
def test_a_grid_on_a_cluster_that_runs_jobs_at_once(tmp_path):
    """From the script to the table, with an sbatch that runs every job before it returns."""
    task = Task(tmp_path)
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sbatch").write_text(
        "#!/usr/bin/env bash\n"
        'kind="${!#}"; last=0; [ "$kind" != run ] || last=1\n'
        'for task in $(seq 0 "$last"); do\n'
        '    SLURM_ARRAY_TASK_ID="$task" bash "${@: -2:1}" "$kind" 1>&2 || exit 9\n'
        "done\n"
        "echo 41\n"
    )
    (commands / "sbatch").chmod(0o755)
    path = tmp_path / "grid.sh"
    options = ["--variants", "softmax", "broken", "--slurm-array", str(path)]
    assert task.table(*options) == 0
    done = subprocess.run(
        ["bash", path, "--prepare-job"],
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "SACREBLEU": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shown = path.with_suffix(".table").read_text()
    assert row_of(shown, "softmax")["runs"] == "1"
    assert row_of(shown, "broken")["BLEU"] == "–"
