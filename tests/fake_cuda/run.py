"""Counts in a process of its own, because the fake device has to be there before torch.

    python tests/fake_cuda/run.py table [WORK KIND PRECISION LENGTH]...
    python tests/fake_cuda/run.py configs LAYERS CONFIG...

`table` prints rows of nmt/bench/counts.tsv, all or those named; `configs` runs one update of each
config and prints its name.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from fake_cuda import device  # noqa: E402


def print_table(names: list[str]) -> None:
    """Count the tasks that are named by four words each, or all."""
    from fake_cuda.counting import all_tasks, count

    from nmt.bench.roofline import format_counts

    wanted = {tuple(names[start : start + 4]) for start in range(0, len(names), 4)}
    rows = []
    for task in all_tasks():
        key = (task.work, task.kind, task.precision, str(task.length))
        if not wanted or key in wanted:
            print(*key, file=sys.stderr)
            rows.append(count(task))
    print(format_counts(rows), end="")


def run_configs(layers: int, paths: list[str]) -> None:
    """One update of each config, with at most this many layers."""
    from fake_cuda.counting import Task, record_update

    from nmt.config.loading import load_config

    for path in paths:
        config = load_config(Path(path))
        depth = {
            name: min(layers, getattr(config.model, name))
            for name in ("encoder_layers", "decoder_layers")
        }
        config = replace(config, model=replace(config.model, **depth))
        task = Task("update", "config", config.train.precision, 8, 11, 80)
        recorder = record_update(config, task, vocabulary=1000)
        print(path, sum(recorder.launches.values()), dict(recorder.synchronisations), sep="\t")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        device.load(Path(directory))
        work, *names = sys.argv[1:]
        if work == "table":
            print_table(names)
        else:
            run_configs(int(names[0]), names[1:])


if __name__ == "__main__":
    main()
