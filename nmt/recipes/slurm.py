"""A grid of runs as a script for SLURM: prepare the data, an array of runs, the table."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template


@dataclass(frozen=True)
class ArrayJob:
    """The settings of the script of a grid."""

    task: str
    directory: Path  # where the commands run
    command: Sequence[str]  # nmt-table with all options but those that choose runs
    grid: Sequence[str]  # the options that choose all runs
    runs: Sequence[tuple[str, int]]  # variant and seed of each task
    table: Sequence[str]  # the options for printing the table


# A task has no torchrun of its own: one GPU needs none. In an array the id of one task can be that
# of the whole array, so a task is queued again by its number in the array.
SCRIPT = Template("""\
#!/usr/bin/env bash
# The grid of $task on SLURM: $count runs, each on one GPU. Written by nmt-table --slurm-array.
#   bash $name [--prepare-job] [options of sbatch, such as --partition=gpu --time=48:00:00]
# prepares the data on this machine (compute nodes may have no network), then submits an array with
# one task per run, and a job that prints the table when all tasks have ended. With --prepare-job
# the data is prepared by a first job. --array=0-$last%4 makes four runs at a time.
# Two minutes before its time is up, and when it is preempted, a task saves its current update and
# is queued again. The same command resumes a grid that was cancelled.
set -euo pipefail
cd $directory

nmt_table=($command)
grid=($grid)
variants=($variants)
seeds=($seeds)

submit() {
    local script job word after=() others=()
    script="$$(realpath "$$0")"
    local common=(--parsable --nodes=1 --ntasks=1 "--output=$${script%.*}-%x-%A_%a.log")
    for word in "$$@"; do # the job that prepares and the one that prints are single jobs
        case "$$word" in --prepare-job | --array=*) ;; *) others+=("$$word") ;; esac
    done
    if [ "$${1:-}" = --prepare-job ]; then
        shift
        job=$$(sbatch "$${common[@]}" --job-name=prepare --cpus-per-task=8 --time=24:00:00 \\
            $${others[@]+"$${others[@]}"} "$$script" prepare)
        after=("--dependency=afterok:$${job%%;*}" --kill-on-invalid-dep=yes)
    else
        bash "$$script" prepare
    fi
    job=$$(sbatch "$${common[@]}" --job-name=train --array=0-$last --gpus-per-node=1 \\
        --cpus-per-task=8 --time=24:00:00 --signal=B:USR1@120 --requeue --open-mode=append \\
        $${after[@]+"$${after[@]}"} "$$@" "$$script" run)
    sbatch "$${common[@]}" --job-name=table --cpus-per-task=2 --time=1:00:00 \\
        --dependency="afterany:$${job%%;*}" \\
        $${others[@]+"$${others[@]}"} "$$script" table > /dev/null
    echo "submitted: array $${job%%;*} with $count task(s), and the job that prints the table" >&2
}

signals=0
job=
pass_on() {
    signals=$$((signals + 1))
    [ -z "$$job" ] || kill -USR1 "$$job" 2> /dev/null || true
}

run() {
    local before=0 code=0
    trap pass_on USR1 TERM
    "$${nmt_table[@]}" --variants "$${variants[$$SLURM_ARRAY_TASK_ID]}" \\
        --seeds "$${seeds[$$SLURM_ARRAY_TASK_ID]}" --only runs &
    job=$$!
    [ "$$signals" = 0 ] || kill -USR1 "$$job" 2> /dev/null || true
    while true; do # a signal that is trapped interrupts `wait`
        before=$$signals
        code=0
        wait "$$job" || code=$$?
        [ "$$signals" != "$$before" ] || break
    done
    # 138: the signal came before the command could handle it; nothing had begun.
    if [ "$$signals" != 0 ] && { [ "$$code" = 0 ] || [ "$$code" = 138 ]; }; then
        scontrol requeue "$${SLURM_ARRAY_JOB_ID}_$${SLURM_ARRAY_TASK_ID}"
        exit 0
    fi
    exit "$$code"
}

case "$${1:-}" in
    prepare) "$${nmt_table[@]}" "$${grid[@]}" --only prepare ;;
    run) run ;;
    table) "$${nmt_table[@]}" "$${grid[@]}" --only table $table ;;
    *) submit "$$@" ;;
esac
""")


def array_script(job: ArrayJob, path: Path) -> str:
    """The text of the script, which will be at `path`."""
    return SCRIPT.substitute(
        task=job.task,
        name=path.name,
        count=len(job.runs),
        last=len(job.runs) - 1,
        directory=shlex.quote(str(job.directory)),
        command=shlex.join(job.command),
        grid=shlex.join(job.grid),
        variants=shlex.join([variant for variant, _ in job.runs]),
        seeds=shlex.join([str(seed) for _, seed in job.runs]),
        table=shlex.join(job.table),
    )
