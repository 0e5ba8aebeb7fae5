"""nmt-bench: speed, measured in a way that others can repeat."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli import console
from nmt.errors import UserError


def build_parser() -> console.Parser:
    """The arguments of nmt-bench."""
    parser = console.Parser(prog="nmt-bench", description="Measure speed on this machine.")
    benchmarks = parser.add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK", parser_class=console.Parser
    )
    attention = benchmarks.add_parser(
        "attention",
        help="the attention core, forward and backward, every kind against softmax",
        description="Measure the attention core of every kind, forward and backward, and print "
        "a Markdown table of speeds relative to the quicker of plain softmax and torch's fused "
        "attention. All forms are interleaved, so that they suffer alike from other work.",
    )
    attention.add_argument(
        "--lengths", type=positive, nargs="+", default=[16, 32, 64, 128, 256, 512], metavar="T"
    )
    attention.add_argument("--tokens", type=positive, default=4096, help="of a batch")
    attention.add_argument("--dim", type=positive, default=256, help="width of the model")
    attention.add_argument("--heads", type=positive, default=4)
    attention.add_argument("--dropout", type=probability, default=0.0, help="on the weights")
    attention.add_argument("--mask", choices=["none", "padding", "causal"], default="none")
    attention.add_argument("--repeats", type=positive, default=7)
    attention.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    attention.add_argument("--threads", type=positive, help="CPU threads (torch's choice)")
    attention.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    attention.set_defaults(run=bench_attention)
    return parser


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


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


def bench_attention(arguments: argparse.Namespace) -> int:
    """Print the table of the attention benchmark."""
    if arguments.dim % arguments.heads != 0:
        raise UserError(
            f"--heads: expected a divisor of --dim ({arguments.dim}), got {arguments.heads}"
        )
    import torch

    from nmt.bench import attention

    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: expected a device that exists, got cuda; use --device cpu")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    sizes = attention.Sizes(
        tokens=arguments.tokens,
        dim=arguments.dim,
        heads=arguments.heads,
        dropout=arguments.dropout,
        mask=arguments.mask,
        device=device,
        repeats=arguments.repeats,
    )
    print(attention.run(sizes, arguments.lengths, arguments.json))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return console.run(build_parser(), bench, argv)


if __name__ == "__main__":
    sys.exit(main())
