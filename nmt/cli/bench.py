"""nmt-bench: the speed of training, decoding and attention on this machine."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from nmt.cli import console
from nmt.cli.arguments import (
    add_choice,
    add_flag,
    add_number,
    add_path,
    add_precision,
    choose_device,
    probability,
)
from nmt.cli.bench_arguments import (
    add_kinds,
    add_numbers,
    add_output,
    add_paper,
    check_files,
    check_kinds,
    set_threads,
    take_paper,
    write,
)
from nmt.cli.bench_gpu import add_gpu
from nmt.errors import UserError

if TYPE_CHECKING:
    from nmt.bench.synthetic import Shapes

# The shapes of random data. The options have no default, so that one that is given together with a
# config or a model, where it has no meaning, is noticed.
SHAPE_OPTIONS = {
    "dim": "width of the model (default: 256)",
    "heads": "number of attention heads (default: 4)",
    "layers": "number of encoder layers and of decoder layers (default: 3)",
    "feed_forward_dim": "inner width of the feed-forward sublayers (default: 1024)",
    "vocabulary": "number of subwords in the vocabulary (default: 8000)",
    "length": "mean number of subwords in a sentence (default: 15)",
}
RANDOM_SENTENCES = 128
AXIS_NAMES = (
    "prepare",
    "train-length",
    "train-batch",
    "train-vocabulary",
    "decode-length",
    "decode-beam",
    "decode-batch",
    "decode-vocabulary",
)
DESCRIPTION = """\
Measure speed and memory on this machine. Everything that is compared runs in turn within one
process, so that other work on the machine affects all of it alike. Tables go to standard output."""
TRAIN_HELP = """\
Train with every attention kind for a few updates, in turn. The table gives target tokens per
second, the speed relative to softmax (Table 2 of the paper), its share of the rate of a large
matrix product, and peak memory. All models are in memory at the same time. Without --config the
data is random, and torchrun can start several processes, which share the batches of an update."""
DECODE_HELP = """\
Translate the same sentences with several models, in turn. The tables give sentences and target
tokens per second and the speed relative to the first model, overall and in ten groups of equal
size by source length (Figure 2 of the paper). Without --model, untrained models of every attention
kind translate random sentences into outputs of the same length."""
ATTENTION_HELP = """\
Run the attention core of every kind forward and backward. The table gives milliseconds and the
speed relative to the faster of plain softmax and torch's fused attention. The rows of a length are
printed as soon as they are measured."""
GROWTH_HELP = """\
Let one size grow while all others stay the same. The tables compare the measured cost per pair or
token with the expected one (operations in matrix products; for preparing data, constant), both
relative to the smallest size. Data and weights are random."""


def build_parser() -> console.Parser:
    """The arguments of nmt-bench."""
    parser = console.Parser(prog="nmt-bench", description=DESCRIPTION)
    benchmarks = parser.add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK", parser_class=console.Parser
    )
    add_train(benchmarks)
    add_decode(benchmarks)
    add_attention(benchmarks)
    add_growth(benchmarks)
    add_gpu(benchmarks)
    return parser


def add_train(benchmarks: Any) -> None:
    """The arguments of nmt-bench train."""
    parser = benchmarks.add_parser(
        "train", help="whole updates with every attention kind", description=TRAIN_HELP
    )
    add_path(parser, "--config", "YAML config whose data and model to use")
    add_kinds(parser, "`config` means the attention of the config")
    add_number(parser, "--updates", 2, "updates per round")
    shapes = add_shapes(parser)
    add_paper(shapes)
    add_number(shapes, "--batch-tokens", None, "tokens in a batch (default: 4096)")
    add_number(shapes, "--dropout", None, "dropout (default: 0.3)", type=probability, metavar="P")
    shapes.add_argument(
        "--precision",
        choices=["float32", "bfloat16", "float16"],
        help="floating-point format (default: float32)",
    )
    add_flag(shapes, "--compile", "train with torch.compile")
    add_number(shapes, "--accumulate", None, "batches in an update (default: 1)")
    add_output(parser, repeats=5, figure="one bar per attention kind")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="values to replace in the config"
    )
    parser.set_defaults(run=bench_train)


def add_decode(benchmarks: Any) -> None:
    """The arguments of nmt-bench decode."""
    parser = benchmarks.add_parser(
        "decode", help="translation with one or several models", description=DECODE_HELP
    )
    add_path(parser, "--model", "model or run directories", metavar="DIR", nargs="+")
    add_path(parser, "--input", "text to translate, with --model")
    meaning = "use the first N lines only (default: all; 128 random sentences)"
    add_number(parser, "--sentences", None, meaning)
    add_number(parser, "--beam", None, "beam size (default: that of the first model, or 4)")
    add_numbers(parser, "--batch", [1, 64], "sentences in a batch")
    for option, meaning in (
        ("--int8", "measure each model with 8-bit weights, too"),
        ("--force-length", "make outputs as long as the longest source of their batch"),
        ("--fast", "translate as nmt-translate --fast does"),
    ):
        add_flag(parser, option, meaning)
    add_precision(parser)
    add_kinds(parser, "only without --model")
    add_paper(add_shapes(parser))
    add_output(parser, repeats=3, figure="Figure 2 of the paper")
    parser.set_defaults(run=bench_decode)


def add_attention(benchmarks: Any) -> None:
    """The arguments of nmt-bench attention."""
    parser = benchmarks.add_parser(
        "attention", help="the attention core, forward and backward", description=ATTENTION_HELP
    )
    add_kinds(parser, "by default also with the entmax package")
    add_numbers(parser, "--lengths", [16, 32, 64, 128, 256, 512], "sentence lengths")
    add_number(parser, "--tokens", 4096, "tokens in a batch")
    add_number(parser, "--dim", 256, "width of the model")
    add_number(parser, "--heads", 4, "number of attention heads")
    add_number(
        parser, "--dropout", 0.0, "dropout on the attention weights", type=probability, metavar="P"
    )
    add_choice(parser, "--mask", ("none", "padding", "causal"), "attention mask")
    add_choice(parser, "--precision", ("float32", "bfloat16"), "type of the projections")
    add_output(parser, repeats=7, figure=None)
    parser.set_defaults(run=bench_attention)


def add_growth(benchmarks: Any) -> None:
    """The arguments of nmt-bench growth."""
    parser = benchmarks.add_parser(
        "growth",
        help="cost against corpus, sentence, batch, beam and vocabulary size",
        description=GROWTH_HELP,
    )
    meaning = f"the sizes that grow: {', '.join(AXIS_NAMES)} (default: all)"
    parser.add_argument(
        "--axes", nargs="+", choices=AXIS_NAMES, default=AXIS_NAMES, metavar="AXIS", help=meaning
    )
    parser.add_argument(
        "--kind", default="softmax", metavar="KIND", help="attention kind (default: softmax)"
    )
    meaning = "measure only the N smallest sizes of each axis; 6 means all"
    add_number(parser, "--sizes", 6, meaning)
    add_shapes(parser)
    add_output(parser, repeats=3, figure="one panel per axis")
    parser.set_defaults(run=bench_growth)


def add_shapes(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The shapes of random data."""
    group = parser.add_argument_group("random data")
    for name, meaning in SHAPE_OPTIONS.items():
        add_number(group, f"--{name.replace('_', '-')}", None, meaning)
    return group


def bench_train(arguments: argparse.Namespace) -> None:
    """Print the table of the training benchmark."""
    kinds, overrides = split_overrides(arguments)
    if arguments.paper and arguments.config is not None:
        refuse("paper", "--config")
    kinds = take_paper(arguments, kinds)
    shapes = given(arguments, (*SHAPE_OPTIONS, "batch_tokens", "dropout"))
    if arguments.config is None and overrides:
        raise UserError(f"{overrides[0]}: replaces a value of a config: give --config FILE, too")
    random_only = given(arguments, (*shapes, "precision", "accumulate"))
    random_only |= {"compile": True} if arguments.compile else {}
    if arguments.config is not None and random_only:
        refuse(next(iter(random_only)), "--config")
    if arguments.config is not None and "WORLD_SIZE" in os.environ:
        raise UserError("--config: several processes measure random data: leave it out")
    check_files(arguments, [arguments.config])
    kinds = check_kinds(kinds, extra=() if arguments.config is None else ("config",))
    from dataclasses import asdict, replace

    from nmt.bench import report, training
    from nmt.config.config import TrainConfig
    from nmt.config.loading import load_config
    from nmt.training.distributed import processes

    config = None if arguments.config is None else load_config(arguments.config, overrides)
    train = TrainConfig(threads=0) if config is None else config.train
    set_threads(arguments.threads or train.threads)
    if arguments.device != "auto":
        choose_device(arguments.device)
        train = replace(train, device=arguments.device)
    with processes(train) as team:
        if ":" in arguments.device:
            team = training.on_device(team, choose_device(arguments.device))
        task = (
            training.synthetic_task(
                make_shapes(shapes),
                arguments.updates,
                precision=arguments.precision or "float32",
                compiled=arguments.compile,
                accumulate=arguments.accumulate or 1,
                team=team,
            )
            if config is None
            else training.task_of_config(config, arguments.updates)
        )
        result = training.measure_training(task, kinds, team, repeats=arguments.repeats)
    if not team.is_main:
        return
    print(report.training_markdown(result, paper=arguments.paper))
    settings = {
        "config": None if arguments.config is None else str(arguments.config),
        "updates": arguments.updates,
        "repeats": arguments.repeats,
        "device": str(team.device),
        "model": asdict(task.config.model),
        "train": asdict(task.config.train),
    }
    write(arguments.json, lambda: result.as_json("train", "kinds", {"settings": settings}))
    write(arguments.figure, lambda: report.training_figure(result))


def bench_decode(arguments: argparse.Namespace) -> None:
    """Print the tables of the decoding benchmark."""
    if arguments.paper and arguments.model is not None:
        refuse("paper", "--model")
    arguments.kinds = take_paper(arguments, arguments.kinds)
    shapes = given(arguments, SHAPE_OPTIONS)
    if arguments.model is None and arguments.input is not None:
        raise UserError("--input: untrained models translate random sentences: give --model, too")
    if arguments.model is not None:
        if arguments.input is None:
            raise UserError("--input: expected the text that the models are to translate")
        if shapes or arguments.kinds:
            refuse(next(iter(shapes), "kinds"), "--model")
    check_files(arguments, [arguments.input])
    kinds = check_kinds(arguments.kinds)
    from nmt.bench import decoding, report
    from nmt.bench.synthetic import synthetic_lines
    from nmt.data.text import read_text

    set_threads(arguments.threads)
    device = choose_device(arguments.device)
    if arguments.int8 and device.type != "cpu":
        raise UserError("--int8: 8-bit weights are for the CPU: add --device cpu")
    way = {"int8": arguments.int8, "device": device, "precision": arguments.precision}
    if arguments.model is None:
        random_shapes = make_shapes(shapes)
        lines = synthetic_lines(random_shapes, arguments.sentences or RANDOM_SENTENCES)
        models = decoding.random_models(random_shapes, kinds, **way)
    else:
        lines = list(read_text(arguments.input))[: arguments.sentences]
        models = decoding.saved_models(arguments.model, **way)
    settings = decoding.DecodingSettings(
        batch_sizes=list(dict.fromkeys(arguments.batch)),
        beam=arguments.beam or models[0].translator.options.beam,
        repeats=arguments.repeats,
        force_length=arguments.force_length or arguments.model is None,
        fast=arguments.fast,
    )
    result = decoding.measure_decoding(models, lines, settings, device=device)
    print(report.decoding_markdown(result, paper=arguments.paper))
    described = {
        "input": None if arguments.input is None else str(arguments.input),
        "repeats": settings.repeats,
        "force_length": settings.force_length,
        "fast": settings.fast,
    }
    write(arguments.json, lambda: result.as_json("decode", "models", {"settings": described}))
    write(arguments.figure, lambda: report.decoding_figure(result))


def bench_attention(arguments: argparse.Namespace) -> None:
    """Print the table of the attention benchmark, length by length."""
    check_heads(arguments.dim, arguments.heads)
    kinds = check_kinds(arguments.kinds)
    check_files(arguments, [])
    from dataclasses import asdict

    from nmt.bench import attention, report
    from nmt.bench.machine import describe_machine
    from nmt.bench.result import Result
    from nmt.tables import Table

    set_threads(arguments.threads)
    device = choose_device(arguments.device)
    names = ("tokens", "dim", "heads", "dropout", "mask", "repeats", "precision")
    sizes = attention.AttentionSizes(**given(arguments, names), device=device.type)
    machine = describe_machine(device)
    print(machine, Table(report.ATTENTION_COLUMNS, []).markdown(), sep="\n\n", flush=True)
    rows: list[attention.Measurement] = []
    cases = attention.attention_cases()
    if arguments.kinds is not None:
        cases = {kind: cases[kind] for kind in kinds}
    for measurements in attention.measure_attention(sizes, arguments.lengths, cases):
        print(report.attention_lines(measurements), flush=True)
        rows += measurements
    result = Result(machine, rows)
    write(arguments.json, lambda: result.as_json("attention", "measurements", asdict(sizes)))


def bench_growth(arguments: argparse.Namespace) -> None:
    """Print the tables of growth."""
    check_files(arguments, [])
    (kind,) = check_kinds([arguments.kind])
    from nmt.bench import growth, report

    set_threads(arguments.threads)
    result = growth.measure_growth(
        list(dict.fromkeys(arguments.axes)),
        make_shapes(given(arguments, SHAPE_OPTIONS)),
        kind,
        largest=arguments.sizes,
        repeats=arguments.repeats,
        device=choose_device(arguments.device),
    )
    print(report.growth_markdown(result))
    settings = {"settings": {"kind": kind, "repeats": arguments.repeats}}
    write(arguments.json, lambda: result.as_json("growth", "axes", settings))
    write(arguments.figure, lambda: report.growth_figure(result))


def split_overrides(arguments: argparse.Namespace) -> tuple[list[str] | None, list[str]]:
    """Kinds and overrides, because argparse takes a.b=c after `--kinds softmax` for a kind."""
    named = arguments.kinds or []
    kinds = [kind for kind in named if "=" not in kind]
    return kinds or None, [*arguments.overrides, *(kind for kind in named if "=" in kind)]


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The options with these names that were given, by name."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def refuse(name: str, other: str) -> NoReturn:
    """Reject an option that only random data has a use for."""
    option = name.replace("_", "-")
    raise UserError(f"--{option}: is for random data: leave it out, or leave out {other}")


def check_heads(dim: int, heads: int) -> None:
    """Reject a width that cannot be divided among the heads."""
    if dim % heads != 0:
        raise UserError(f"--heads: expected a divisor of --dim ({dim}), got {heads}")


def make_shapes(values: dict[str, Any]) -> "Shapes":
    """The shapes of random data that the options describe."""
    from nmt.bench.synthetic import FIRST_WORD, Shapes

    shapes = Shapes(**values)
    check_heads(shapes.dim, shapes.heads)
    if shapes.vocabulary <= FIRST_WORD:
        raise UserError(f"--vocabulary: expected above {FIRST_WORD}, got {shapes.vocabulary}")
    return shapes


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-bench; returns the exit code."""
    return console.run(build_parser(), lambda arguments: arguments.run(arguments), argv)


if __name__ == "__main__":
    sys.exit(main())
