"""nmt-bench: speed, measured in a way that others can repeat."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nmt.cli import console
from nmt.cli.arguments import check_outputs, positive
from nmt.errors import UserError

if TYPE_CHECKING:
    import torch

    from nmt.bench.synthetic import Shapes

# The shapes of made-up tasks. Options have no default, so that one that is given beside a config or
# a model, where it means nothing, is noticed.
SHAPES = {
    "dim": "width of the model (256)",
    "heads": "attention heads (4)",
    "layers": "of the encoder, and of the decoder (3)",
    "feed_forward_dim": "width inside the feed-forward sublayers (1024)",
    "vocabulary": "subwords (8000)",
    "length": "mean subwords of a sentence (15)",
}
RANDOM_SENTENCES = 128
AXES = (
    "prepare",
    "train-length",
    "train-batch",
    "train-vocabulary",
    "decode-length",
    "decode-beam",
    "decode-batch",
    "decode-vocabulary",
)


def build_parser() -> console.Parser:
    """The arguments of nmt-bench."""
    parser = console.Parser(
        prog="nmt-bench",
        description="Measure speed on this machine. Everything that is compared is interleaved in "
        "one run, so that other work on the machine strikes all alike.",
    )
    benchmarks = parser.add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK", parser_class=console.Parser
    )
    add_train(benchmarks)
    add_decode(benchmarks)
    add_attention(benchmarks)
    add_growth(benchmarks)
    return parser


def add_train(benchmarks: Any) -> None:
    """The arguments of nmt-bench train."""
    parser = benchmarks.add_parser(
        "train",
        help="whole updates, every attention kind against softmax",
        description="Train a few updates with every attention kind in turn and print target "
        "tokens a second, speed relative to softmax (the paper's Table 2), the share that is of "
        "the rate of a large matrix product measured in between, and peak memory. All models are "
        "in memory at once. Without --config the data is random, of the shapes given.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; uses its data")
    add_kinds(parser, "config: as the config says")
    parser.add_argument(
        "--updates", type=positive, default=2, metavar="N", help="of a round (default: 2)"
    )
    add_repeats(parser, 5)
    shapes = add_shapes(parser)
    shapes.add_argument("--batch-tokens", type=positive, metavar="N", help="of a batch (4096)")
    shapes.add_argument("--dropout", type=probability, metavar="P", help="(0.3)")
    shapes.add_argument("--precision", choices=["float32", "bfloat16", "float16"], help="(float32)")
    add_machine(parser, figure="a bar for each kind")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="values that replace those of the config",
    )
    parser.set_defaults(run=bench_train)


def add_decode(benchmarks: Any) -> None:
    """The arguments of nmt-bench decode."""
    parser = benchmarks.add_parser(
        "decode",
        help="translation by one or several models",
        description="Translate the same sentences with several models in turn and print sentences "
        "and target tokens a second, and the speed relative to the first model, overall and by "
        "source length in ten equal groups (the paper's Figure 2). Without --model: untrained "
        "models of every attention kind on random sentences; outputs are as long as sources.",
    )
    parser.add_argument(
        "--model", type=Path, nargs="+", metavar="DIR", help="model or run directories"
    )
    parser.add_argument("--input", type=Path, metavar="FILE", help="text to translate")
    parser.add_argument(
        "--sentences", type=positive, metavar="N", help="the first N lines only (random: 128)"
    )
    parser.add_argument(
        "--batch", type=positive, nargs="+", default=[1, 64], metavar="N",
        help="sentences translated together (default: 1 64)",
    )  # fmt: skip
    parser.add_argument("--beam", type=positive, metavar="N", help="(the first model's own, or 4)")
    parser.add_argument("--int8", action="store_true", help="each model also with 8-bit weights")
    parser.add_argument(
        "--force-length", action="store_true", help="outputs as long as the sources of their batch"
    )
    parser.add_argument("--fast", action="store_true", help="as nmt-translate --fast")
    add_repeats(parser, 3)
    add_kinds(parser, "without --model")
    add_shapes(parser)
    add_machine(parser, figure="Figure 2")
    parser.set_defaults(run=bench_decode)


def add_attention(benchmarks: Any) -> None:
    """The arguments of nmt-bench attention."""
    parser = benchmarks.add_parser(
        "attention",
        help="the attention core, forward and backward, every kind against softmax",
        description="Measure the attention core of every kind, forward and backward, and print "
        "a Markdown table of speeds relative to the quicker of plain softmax and torch's fused "
        "attention. All forms are interleaved, so that they suffer alike from other work.",
    )
    parser.add_argument(
        "--lengths", type=positive, nargs="+", default=[16, 32, 64, 128, 256, 512], metavar="T"
    )
    parser.add_argument("--tokens", type=positive, default=4096, help="of a batch")
    parser.add_argument("--dim", type=positive, default=256, help="width of the model")
    parser.add_argument("--heads", type=positive, default=4)
    parser.add_argument("--dropout", type=probability, default=0.0, help="on the weights")
    parser.add_argument("--mask", choices=["none", "padding", "causal"], default="none")
    add_repeats(parser, 7)
    add_machine(parser, figure=None)
    parser.set_defaults(run=bench_attention)


def add_growth(benchmarks: Any) -> None:
    """The arguments of nmt-bench growth."""
    parser = benchmarks.add_parser(
        "growth",
        help="cost against corpus, sentence, batch, beam and vocabulary size",
        description="Let one size grow while all others stay, and print what a pair or token "
        "costs beside what the mathematics asks for (matrix products; in preparing, the same for "
        "every pair), both relative to the smallest size. Data and weights are random.",
    )
    parser.add_argument(
        "--axes", nargs="+", choices=AXES, default=AXES, metavar="AXIS",
        help=f"what grows, some of: {', '.join(AXES)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--kind", default="softmax", help="attention kind (default: softmax)")
    parser.add_argument(
        "--sizes", type=positive, default=6, metavar="N",
        help="the N smallest sizes of each axis only (default: 6, which is all)",
    )  # fmt: skip
    add_repeats(parser, 3)
    add_shapes(parser)
    add_machine(parser, figure="a panel for each axis")
    parser.set_defaults(run=bench_growth)


def add_kinds(parser: argparse.ArgumentParser, note: str) -> None:
    """Which kinds to compare."""
    parser.add_argument(
        "--kinds", nargs="+", metavar="KIND", help=f"attention kinds (default: all; {note})"
    )


def add_repeats(parser: argparse.ArgumentParser, default: int) -> None:
    """How often to measure."""
    parser.add_argument(
        "--repeats", type=positive, default=default, metavar="R",
        help=f"rounds whose median counts (default: {default})",
    )  # fmt: skip


def add_shapes(parser: argparse.ArgumentParser) -> Any:
    """The shapes of a made-up task; returns the group."""
    group = parser.add_argument_group("random data", "defaults: a small Multi30k task")
    for name, meaning in SHAPES.items():
        option = "--" + name.replace("_", "-")
        group.add_argument(option, type=positive, metavar="N", help=meaning)
    return group


def add_machine(parser: argparse.ArgumentParser, *, figure: str | None) -> None:
    """What to run on and where to write."""
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (torch's choice)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    if figure is not None:
        parser.add_argument("--figure", type=Path, metavar="FILE.png", help=figure)
    else:
        parser.set_defaults(figure=None)


def probability(text: str) -> float:
    """A number in [0, 1)."""
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise ValueError
    return value


def bench(arguments: argparse.Namespace) -> int:
    """Run the chosen benchmark."""
    result: int = arguments.run(arguments)
    return result


def bench_train(arguments: argparse.Namespace) -> int:
    """Print the table of the training benchmark."""
    kinds, overrides = split_overrides(arguments)
    shapes = given(arguments, (*SHAPES, "batch_tokens", "dropout"))
    if arguments.config is None and overrides:
        raise UserError(f"{overrides[0]}: replaces a value of a config: give --config FILE, too")
    if arguments.config is not None and (shapes or arguments.precision):
        refuse(next(iter(shapes), "precision"), "--config")
    check_files(arguments, [arguments.config])
    kinds = check_kinds(kinds, extra=() if arguments.config is None else ("config",))
    from dataclasses import asdict, replace

    from nmt.bench import report, training
    from nmt.config.loading import load_config

    if arguments.config is None:
        precision = arguments.precision or "float32"
        set_threads(arguments.threads)
        task = training.synthetic_task(make_shapes(shapes), arguments.updates, precision=precision)
    else:
        config = load_config(arguments.config, overrides)
        set_threads(arguments.threads or config.train.threads)
        task = training.task_of_config(config, arguments.updates)
    if arguments.device != "auto":
        choose_device(arguments.device)
        train = replace(task.config.train, device=arguments.device)
        task = replace(task, config=replace(task.config, train=train))
    result = training.measure_training(task, kinds, repeats=arguments.repeats)
    print(report.training_markdown(result))
    settings = {
        "config": None if arguments.config is None else str(arguments.config),
        "updates": arguments.updates,
        "repeats": arguments.repeats,
        "model": asdict(task.config.model),
        "train": asdict(task.config.train),
    }
    write(arguments.json, lambda: report.as_json("train", settings, result))
    write(arguments.figure, lambda: report.training_figure(result))
    return 0


def bench_decode(arguments: argparse.Namespace) -> int:
    """Print the tables of the decoding benchmark."""
    shapes = given(arguments, SHAPES)
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
    if arguments.model is None:
        made_up = make_shapes(shapes)
        lines = synthetic_lines(made_up, arguments.sentences or RANDOM_SENTENCES)
        contenders = decoding.random_contenders(made_up, kinds, int8=arguments.int8, device=device)
    else:
        lines = list(read_text(arguments.input))[: arguments.sentences]
        contenders = decoding.saved_contenders(arguments.model, int8=arguments.int8, device=device)
    settings = decoding.Settings(
        batch_sizes=list(dict.fromkeys(arguments.batch)),
        beam=arguments.beam or contenders[0].translator.options.beam,
        repeats=arguments.repeats,
        force_length=arguments.force_length or arguments.model is None,
        fast=arguments.fast,
    )
    result = decoding.measure_decoding(contenders, lines, settings, device=device)
    print(report.decoding_markdown(result))
    described = {
        "input": None if arguments.input is None else str(arguments.input),
        "repeats": settings.repeats,
        "force_length": settings.force_length,
        "fast": settings.fast,
    }
    write(arguments.json, lambda: report.as_json("decode", described, result))
    write(arguments.figure, lambda: report.decoding_figure(result))
    return 0


def bench_attention(arguments: argparse.Namespace) -> int:
    """Print the table of the attention benchmark."""
    check_heads(arguments.dim, arguments.heads)
    check_files(arguments, [])
    from nmt.bench import attention

    set_threads(arguments.threads)
    sizes = attention.Sizes(
        tokens=arguments.tokens,
        dim=arguments.dim,
        heads=arguments.heads,
        dropout=arguments.dropout,
        mask=arguments.mask,
        device=choose_device(arguments.device).type,
        repeats=arguments.repeats,
    )
    print(attention.run(sizes, arguments.lengths, arguments.json))
    return 0


def bench_growth(arguments: argparse.Namespace) -> int:
    """Print the tables of growth."""
    check_files(arguments, [])
    (kind,) = check_kinds([arguments.kind])
    from nmt.bench import growth, report

    set_threads(arguments.threads)
    result = growth.measure_growth(
        list(dict.fromkeys(arguments.axes)),
        make_shapes(given(arguments, SHAPES)),
        kind,
        largest=arguments.sizes,
        repeats=arguments.repeats,
        device=choose_device(arguments.device),
    )
    print(report.growth_markdown(result))
    settings = {"kind": kind, "repeats": arguments.repeats}
    write(arguments.json, lambda: report.as_json("growth", settings, result))
    write(arguments.figure, lambda: report.growth_figure(result))
    return 0


def split_overrides(arguments: argparse.Namespace) -> tuple[list[str] | None, list[str]]:
    """Kinds and overrides: after `--kinds softmax`, argparse takes a.b=c for one more kind."""
    named = arguments.kinds or []
    kinds = [kind for kind in named if "=" not in kind]
    return kinds or None, [*arguments.overrides, *(kind for kind in named if "=" in kind)]


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The options of those names that were given, by name."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def refuse(name: str, other: str) -> NoReturn:
    """Complain of an option that is for made-up tasks only."""
    option = name.replace("_", "-")
    raise UserError(f"--{option}: is for random data: leave it out, or leave out {other}")


def check_kinds(kinds: Sequence[str] | None, *, extra: Sequence[str] = ()) -> list[str]:
    """The kinds to compare, each once; all of them unless some are named."""
    from nmt.bench.kinds import KINDS
    from nmt.config.config import ATTENTION_ALIASES

    chosen = [ATTENTION_ALIASES.get(kind, kind) for kind in kinds or KINDS]
    for kind in chosen:
        if kind not in (*KINDS, *extra):
            known = ", ".join((*KINDS, *extra))
            raise UserError(f"--kinds: expected some of {known}, got {kind}")
    return list(dict.fromkeys(chosen))


def check_files(arguments: argparse.Namespace, inputs: Sequence[Path | None]) -> None:
    """Complain before anything long begins of files that could not be written at its end."""
    outputs = [arguments.json, arguments.figure]
    check_outputs(outputs, inputs)
    for path in outputs:
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UserError(f"{path}: expected the name of a file in a directory that exists")


def check_heads(dim: int, heads: int) -> None:
    """Complain of a width that heads cannot share."""
    if dim % heads != 0:
        raise UserError(f"--heads: expected a divisor of --dim ({dim}), got {heads}")


def make_shapes(values: dict[str, Any]) -> "Shapes":
    """The shapes that the options describe."""
    from nmt.bench.synthetic import FIRST_WORD, Shapes

    shapes = Shapes(**values)
    check_heads(shapes.dim, shapes.heads)
    if shapes.vocabulary <= FIRST_WORD:
        raise UserError(f"--vocabulary: expected above {FIRST_WORD}, got {shapes.vocabulary}")
    return shapes


def set_threads(threads: int | None) -> None:
    """Tell torch, unless the choice is its own."""
    import torch

    if threads:
        torch.set_num_threads(threads)


def choose_device(name: str) -> "torch.device":
    """`auto` takes a GPU when there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: expected a device that exists, got cuda; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def write(path: Path | None, make: Callable[[], str | bytes]) -> None:
    """Write a file, if one is wanted."""
    if path is None:
        return
    content = make()
    path.write_bytes(f"{content}\n".encode() if isinstance(content, str) else content)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return console.run(build_parser(), bench, argv)


if __name__ == "__main__":
    sys.exit(main())
