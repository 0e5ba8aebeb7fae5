"""Translate lines of text: standard input to standard output, or files."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.errors import DivergedError, UserError

if TYPE_CHECKING:
    from nmt.decoding.alignment import AlignmentHead
    from nmt.decoding.lines import Engine
    from nmt.decoding.translation import Options
    from nmt.decoding.translator import Translator

DESCRIPTION = """\
Translate raw text, one line for each input line, in order: an empty line for a blank one. Lines are
answered as they arrive, so the command can serve a pipe. A source of more subwords than the model
was trained for (data.max_length) is cut there, with a warning that names the line.
The same line gives the same translation, and on a CPU the same score to the last bit, whatever the
lines around it.
"""

EPILOG = """\
Several --model directories translate together: the mean of their probabilities counts. They may
differ in everything but the target vocabulary. A run directory stands for its average/, else its
best/, else its newest good checkpoint.
A score is log p / ((5 + n) / 6)^length-penalty with n the subwords and the end token.
"""

EPILOG_CODES = """\
Exit codes: 0 done; 2 bad input; 3 no usable model; 4 storage; 6 some lines failed because the model
computes NaN for them (they are empty in the output, and named); 7 a damaged model; 130 interrupted.
"""


def positive(text: str) -> int:
    """An integer above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number


def not_negative(text: str) -> int:
    """An integer that is 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return number


def positive_float(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number


def finite(text: str) -> float:
    """A finite number."""
    number = float(text)
    if not abs(number) < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text}")
    return number


def share(text: str) -> float:
    """A number above 0 and up to 1."""
    number = float(text)
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"expected above 0 and at most 1, got {text}")
    return number


def build_parser() -> console.Parser:
    """All options; those without a default take the model's own (its `decode` section)."""
    parser = console.Parser(
        prog="nmt-translate",
        description=DESCRIPTION,
        epilog=EPILOG + EPILOG_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model", type=Path, nargs="+", required=True, metavar="DIR", help="model or run directory"
    )
    add("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    add("--output", type=Path, metavar="FILE", help="appears when all is done (standard output)")

    group = parser.add_argument_group("search")
    add = group.add_argument
    add("--beam", type=positive, metavar="N", help="hypotheses kept; 1 is greedy search")
    add("--length-penalty", type=finite, metavar="P", help="higher prefers longer outputs")
    add("--nbest", type=positive, default=1, metavar="N", help="N best (or samples) a line, as "
        "`number ||| text ||| log_probability= X ||| score`, numbers from 0")  # fmt: skip
    add("--min-length", type=not_negative, default=0, metavar="N", help="output subwords at least")
    add("--max-length", type=positive, metavar="N", help="output subwords at most")
    add("--max-length-ratio", type=positive_float, metavar="R", help="and at most R times the ...")
    add("--max-length-extra", type=not_negative, metavar="N", help="... source's plus N")
    add("--early-stop", choices=("likely", "exact"), help="end a beam when none of it would score "
        "better a quarter longer at no cost, or at the maximum length (exact: slower, and the same "
        "output but for about one line in ten thousand)")  # fmt: skip
    add("--prefix", type=Path, metavar="FILE", help="line n is how output n has to begin")
    add("--sample", type=positive_float, metavar="TEMPERATURE", help="draw outputs at random")
    add(
        "--top-k", type=not_negative, default=0, metavar="K", help="of the K most probable subwords"
    )
    add("--top-p", type=share, default=1.0, metavar="P", help="of those that make up share P")
    add("--seed", type=not_negative, default=1, help="of the random numbers (default: 1)")

    group = parser.add_argument_group("what to write")
    add = group.add_argument
    add("--scores", action="store_true", help="`log probability<tab>text` instead of text")
    add("--score-only", type=Path, metavar="FILE", help="do not translate: write the log "
        "probability of each line of FILE as a translation of the input")  # fmt: skip
    add("--alignments", type=Path, metavar="FILE", help="word alignments of the output, `0-0 1-2`: "
        "source word - target word, from 0")  # fmt: skip
    add("--layer", type=not_negative, metavar="L", help="align by this decoder layer, from 0 "
        "(default: what the model directory recommends, else the middle one)")  # fmt: skip
    add("--head", type=not_negative, metavar="H", help="align by this head (the mean of all)")
    add("--unshifted", action="store_true", help="align a word by the attention of the step that "
        "predicts it, not of the next one, which reads it")  # fmt: skip
    add("--attention", type=Path, metavar="FILE", help="cross-attention of all layers and heads: "
        ".npz with cross/n [layers, heads, target, source], source/n and target/n (subwords) for "
        "output line n from 1, or .jsonl with the same keys")  # fmt: skip

    group = parser.add_argument_group("speed")
    add = group.add_argument
    add("--batch-tokens", type=positive, metavar="N", help="source subwords translated together")
    add("--buffer", type=positive, metavar="N", help="lines translated together, sorted by length "
        "(default: those that have arrived, up to 4096); 1 answers line by line")  # fmt: skip
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--threads", type=positive, metavar="N", help="CPU threads (of each worker)")
    add("--workers", type=positive, default=1, metavar="N", help="processes of one thread each: "
        "the quickest for large files")  # fmt: skip
    add("--int8", action="store_true", help="8-bit weights: quicker on CPUs, about as good")
    add("--fast", action="store_true", help="less padding, on GPUs and where the kernels in C were "
        "not built; the last bits of a score may depend on the batch, and with them a translation "
        "where two are all but equal")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return console.run(build_parser(), translate, argv)


def check(arguments: argparse.Namespace) -> None:
    """Complain of options that do not go together."""
    if arguments.sample is None and (arguments.top_k or arguments.top_p < 1.0):
        raise UserError("--top-k and --top-p filter samples: give --sample TEMPERATURE, too")
    if arguments.score_only is not None:
        others = ("alignments", "attention", "prefix", "sample", "scores")
        for name in others:
            if getattr(arguments, name):
                raise UserError(f"--score-only writes scores of given text: leave out --{name}")
        if arguments.workers > 1 or arguments.nbest > 1:
            raise UserError("--score-only: leave out --workers and --nbest")
    if arguments.alignments is None and (
        arguments.layer is not None or arguments.head is not None or arguments.unshifted
    ):
        raise UserError("--layer, --head and --unshifted choose alignments: give --alignments FILE")
    outputs = [arguments.output, arguments.alignments, arguments.attention]
    named = [path.absolute() for path in outputs if path is not None]
    if len(set(named)) < len(named):
        raise UserError("--output, --alignments and --attention: expected different files")


def translate(arguments: argparse.Namespace) -> int:
    """Load the models, then answer window after window of lines."""
    check(arguments)
    from nmt.checkpoint.model_directory import find_model
    from nmt.data.text import LineWriter, read_text
    from nmt.decoding.lines import Outputs, score_stream, translate_stream
    from nmt.decoding.streaming import open_lines
    from nmt.progress import progress_bar

    models = [find_model(path) for path in arguments.model]
    options = make_options(arguments, models[0])
    lines, ready = open_lines(arguments.input)
    name = "standard input" if arguments.input is None else str(arguments.input)
    progress = progress_bar(total=None, unit="line", description="translated")
    if arguments.score_only is not None:
        targets = read_text(arguments.score_only)
        translator = load(arguments, models)
        with LineWriter(arguments.output) as writer, progress:
            score_stream(
                translator,
                writer,
                lines=lines,
                targets=targets,
                ready=ready,
                name=name,
                target_name=str(arguments.score_only),
                batch_tokens=options.batch_tokens,
                buffer=arguments.buffer,
                advance=progress.update,
            )
        return 0
    prefixes = None if arguments.prefix is None else read_text(arguments.prefix)
    outputs = Outputs(
        arguments.output,
        alignments=arguments.alignments,
        attention=arguments.attention,
        scores=arguments.scores,
    )
    with open_engine(arguments, models) as engine, outputs, progress:
        failed = translate_stream(
            engine,
            options,
            outputs,
            lines=lines,
            ready=ready,
            name=name,
            prefixes=prefixes,
            buffer=arguments.buffer,
            advance=progress.update,
        )
    if failed:
        raise DivergedError(
            f"{len(failed)} lines could not be translated, the model computes NaN for them "
            f"(the first is line {failed[0]}); they are empty in the output"
        )
    return 0


def load(arguments: argparse.Namespace, models: "Sequence[Path]") -> "Translator":
    """The translator that the options describe."""
    from nmt.decoding.translator import Translator

    return Translator.load(
        models, device=arguments.device, int8=arguments.int8, threads=arguments.threads
    )


def open_engine(
    arguments: argparse.Namespace, models: "Sequence[Path]"
) -> "contextlib.AbstractContextManager[Engine]":
    """A translator in this process, or several in others."""
    if arguments.workers == 1:
        return contextlib.nullcontext(load(arguments, models))
    from nmt.decoding.workers import WorkerPool, WorkerSettings

    settings = WorkerSettings(
        tuple(models), arguments.device, arguments.int8, arguments.threads or 1
    )
    return WorkerPool(settings, count=arguments.workers)


def make_options(arguments: argparse.Namespace, model: Path) -> "Options":
    """The options of the command line over those of the first model."""
    from nmt.checkpoint.model_directory import read_config
    from nmt.decoding.choices import Sampling
    from nmt.decoding.translation import Options
    from nmt.storage.manifest import SealedDirectory

    default = Options.of(read_config(SealedDirectory(model)).decode)
    sampling = None
    if arguments.sample is not None:
        sampling = Sampling(
            arguments.sample, top_k=arguments.top_k, top_p=arguments.top_p, seed=arguments.seed
        )
    given = {
        name: getattr(arguments, name)
        for name in (
            "beam",
            "length_penalty",
            "batch_tokens",
            "max_length",
            "max_length_ratio",
            "max_length_extra",
            "early_stop",
        )
        if getattr(arguments, name) is not None
    }
    return replace(
        default,
        nbest=arguments.nbest,
        min_length=arguments.min_length,
        sampling=sampling,
        alignment=choose_head(arguments, model),
        attention=arguments.attention is not None,
        fast=arguments.fast,
        **given,
    )


def choose_head(arguments: argparse.Namespace, model: Path) -> "AlignmentHead | None":
    """Which attention makes the alignments, if any are wanted."""
    from nmt.decoding.alignment import AlignmentHead, recommended_head

    if arguments.alignments is None:
        return None
    if arguments.layer is None and arguments.head is None and not arguments.unshifted:
        return recommended_head(model)
    return AlignmentHead(arguments.layer, arguments.head, shifted=not arguments.unshifted)


if __name__ == "__main__":
    sys.exit(main())
