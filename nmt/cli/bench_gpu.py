"""The arguments of nmt-bench gpu, which measures all that a report on a GPU needs."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nmt.cli.arguments import add_flag, add_number, add_path, choose_device
from nmt.cli.bench_arguments import (
    add_kinds,
    add_output,
    check_files,
    check_kinds,
    set_threads,
    write,
)
from nmt.errors import UserError
from nmt.storage.files import storage_errors

PART_NAMES = ("products", "train", "attention", "decode", "processes")
REPORT = Path("nmt-bench-gpu.md")
GPU_HELP = """\
Measure a GPU: the rate of matrix products, training with every attention kind (16 and 32 bits,
compiled or not, with accumulation, with long sentences), attention by length, decoding by batch
size, and training with 1 to N processes; speeds, peak memory, and predictions beside them. One file
holds it all, as tables and as JSON, to be attached to a report. It is written again after every
measurement. A measurement that fails is recorded, and the rest goes on. Data and weights are
random."""


def add_gpu(benchmarks: Any) -> None:
    """Add the parser of nmt-bench gpu."""
    parser = benchmarks.add_parser(
        "gpu", help="all of a GPU in one report, with predictions", description=GPU_HELP
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PART_NAMES,
        default=PART_NAMES,
        metavar="PART",
        help=f"what to measure: {', '.join(PART_NAMES)} (default: all)",
    )
    add_kinds(parser, "all are needed for a complete report")
    meaning = "train with up to N processes (default: one per visible GPU; 2 on the CPU)"
    add_number(parser, "--processes", None, meaning)
    add_flag(parser, "--small", "tiny models and data: only to see that everything runs")
    add_path(parser, "--report", f"file to write (default: {REPORT})", default=REPORT)
    add_output(parser, repeats=5, figure=None)
    parser.set_defaults(run=bench_gpu)


def bench_gpu(arguments: argparse.Namespace) -> None:
    """Run all trials, write the report after each, and print the tables at the end."""
    kinds = check_kinds(arguments.kinds)
    check_files(arguments, [], arguments.report)
    import torch

    from nmt.bench import gpu, gpu_report
    from nmt.bench.machine import describe_machine
    from nmt.bench.result import Result
    from nmt.ops.cuda_device import cuda_problem, set_cuda_defaults
    from nmt.progress import progress_bar

    set_threads(arguments.threads)
    problem = None if arguments.device == "cpu" else cuda_problem()
    if problem is not None:
        raise UserError(
            f"expected a CUDA device to measure: {problem} (to try it: --device cpu --small)"
        )
    device = choose_device("cuda" if arguments.device == "auto" else arguments.device)
    if device.type == "cpu" and not arguments.small:
        raise UserError("--device cpu: takes days at full size: add --small")
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
        set_cuda_defaults()
    sizes = gpu.SMALL if arguments.small else gpu.FULL
    plan = gpu.BenchmarkPlan(
        device=device,
        sizes=sizes,
        kinds=kinds,
        parts=[part for part in PART_NAMES if part in arguments.parts],
        processes=arguments.processes or (torch.cuda.device_count() if cuda else 2),
        repeats=arguments.repeats,
        gpu=gpu.known_gpu(device, sizes),
    )
    trials = gpu.make_trials(plan)
    result: Result[gpu.GpuRow] = Result(describe_machine(device), [], plan.facts())
    with progress_bar(total=len(trials), unit="trial", description="trials") as bar:
        for row in gpu.run_trials(trials):
            result = Result(result.machine, [*result.rows, row], result.facts)
            with storage_errors(arguments.report):
                arguments.report.write_text(gpu_report.gpu_document(result), encoding="utf-8")
            if row.error is not None:
                print(f"{row.part} {row.name} failed: {row.error}", file=sys.stderr)
            bar.update(1)
    print(gpu_report.gpu_markdown(result))
    write(arguments.json, lambda: gpu_report.gpu_json(result))
