"""Translate lines of text: standard input to standard output, or files."""

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import (
    add_fields,
    add_on_bad_line,
    add_outside_kinds,
    add_precision,
    add_ray,
    check_needs,
    check_outputs,
    check_ray_device,
    check_without,
    devices,
    given_fields,
    positive,
    processes,
    whole_number,
)
from nmt.config.search_options import (
    DecodeConfig,
    Sampling,
    SearchOptions,
    command_line_fields,
)
from nmt.errors import UserError

if TYPE_CHECKING:
    from nmt.decoding.alignment import AlignmentHead
    from nmt.decoding.failures import LineFailures
    from nmt.decoding.lines import LineTranslator, Outputs
    from nmt.decoding.streaming import LineSource
    from nmt.decoding.translation import Details
    from nmt.decoding.translator import Translator
    from nmt.decoding.workers import WorkerSettings

logger = logging.getLogger("nmt.cli.translate")

# Options without an effect on the scores of given text, which --batch-tokens has.
OF_SEARCH = [
    *("--prefix", "--alignments", "--scores", "--fast"),
    *(
        f"--{flag.replace('_', '-')}"
        for section in (SearchOptions, Sampling)
        for flag, _ in command_line_fields(section)
        if flag != "batch_tokens"
    ),
]

DESCRIPTION = """\
Translate raw text, one line for each input line, in order: an empty line for a blank one. Lines are
answered as they arrive, so the command can serve a pipe. A source of more subwords than the model
was trained for (data.max_length) is cut there, with a warning that names the line.
The same line gives the same translation, and on a CPU the same score to the last bit, whatever the
lines around it.
"""

EPILOG = """\
Several --model directories translate together: the mean of their probabilities counts. They may
differ in everything but the target vocabulary. A run directory stands for the better one of its
average/ and best/, else for its newest good checkpoint.
A score is log p divided by the length penalty (see --normalization); n counts the subwords and
the end token.
"""

EPILOG_CODES = """\
Options of the search that are not given are the model's own (its `decode` section).
Exit codes: 0 done; 2 bad input, or not enough memory for some lines; 3 no usable model; 4 storage;
6 the model computes numbers that are not finite for some lines; 7 a damaged model; 130 interrupted.
Lines without a translation are empty in the output, and named on standard error.
"""


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
    add_outside_kinds(parser)
    add("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="appears when all is done (default: standard output)",
    )

    add_on_bad_line(parser)

    group = parser.add_argument_group("search")
    add_fields(group, SearchOptions)
    add_fields(group, Sampling)
    group.add_argument(
        "--prefix", type=Path, metavar="FILE", help="line n is how output n has to begin"
    )

    group = parser.add_argument_group("what to write")
    add = group.add_argument
    add("--scores", action="store_true", help="`log probability<tab>text` instead of text")
    add("--score-only", type=Path, metavar="FILE", help="do not translate: write the log "
        "probability of each line of FILE as a translation of the input")  # fmt: skip
    add("--alignments", type=Path, metavar="FILE", help="word alignments of the output, `0-0 1-2`: "
        "source word - target word, from 0")  # fmt: skip
    add("--layer", type=whole_number, metavar="L", help="align by this decoder layer, from 0 "
        "(default: what the model directory recommends, else the middle one)")  # fmt: skip
    add(
        "--head",
        type=whole_number,
        metavar="H",
        help="align by this head (default: the mean of all)",
    )
    add("--normal", "--unshifted", action="store_true", help="align a word by the attention of the "
        "step that predicts it, not of the next one, which reads it")  # fmt: skip
    add("--attention", type=Path, metavar="FILE", help="attention of all layers and heads, of "
        "translations or of the text of --score-only: .npz with cross/n [layers, heads, target, "
        "source], source/n and target/n (subwords) for output line n from 1, or .jsonl with the "
        "same keys")  # fmt: skip
    add("--attention-types", nargs="+", choices=("cross", "encoder_self", "decoder_self"),
        metavar="TYPE", help="types of attention in that file: cross (default), encoder_self, "
        "decoder_self")  # fmt: skip

    group = parser.add_argument_group("speed")
    add = group.add_argument
    add("--buffer", type=positive, metavar="N", help="lines translated together, sorted by length "
        "(default: those that have arrived, up to 4096); 1 answers line by line")  # fmt: skip
    add("--device", type=devices, default="auto", metavar="NAMES", help="cpu, cuda (the first "
        "GPU), cuda:1 ..., or several with commas, or cuda:all: one process for each (default: "
        "auto, the first GPU if there is one)")  # fmt: skip
    add_precision(group)
    add("--threads", type=processes, metavar="N", help="CPU threads (of each worker)")
    add("--workers", type=processes, metavar="N", help="processes of one thread each: the fastest "
        "for large files (default: 1; with --ray, as many as there are GPUs or cores)")  # fmt: skip
    add_ray(group, "translate a very large file")
    add("--int8", action="store_true", help="8-bit weights: faster on CPUs, about as good")
    add("--fast", action="store_true", help="less padding, on GPUs and where the kernels in C were "
        "not built; the last bits of a score may depend on the batch, and with them a translation "
        "where two are all but equal")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return console.run(build_parser(), translate, argv)


def check(arguments: argparse.Namespace) -> None:
    """Raise for options that do not go together."""
    if arguments.ray is not None:
        check_ray(arguments)
    needs = {
        **dict.fromkeys(("--top-k", "--top-p", "--seed"), "--sample"),
        **dict.fromkeys(("--layer", "--head", "--normal"), "--alignments"),
        "--attention-types": "--attention",
    }
    check_needs(arguments, needs)
    if arguments.score_only is not None:
        check_without(arguments, "--score-only writes scores of given text", OF_SEARCH)
        if (arguments.workers or 1) > 1:
            raise UserError("--score-only: leave out --workers")
    check_outputs(
        [arguments.output, arguments.alignments, arguments.attention],
        [arguments.input, arguments.prefix, arguments.score_only],
    )


def check_ray(arguments: argparse.Namespace) -> None:
    """Raise for options that --ray does not take."""
    if arguments.input is None:
        raise UserError("--ray reads blocks of a file: give --input FILE")
    check_without(arguments, "--ray", ("--score-only", "--buffer"))
    check_ray_device(arguments.device)


def translate(arguments: argparse.Namespace) -> None:
    """Load the models, then answer window after window of lines."""
    check(arguments)
    from nmt.decoding.streaming import open_lines
    from nmt.progress import progress_bar

    models = [find(path) for path in arguments.model]
    options = make_options(arguments, models[0])
    source = open_lines(arguments.input)
    with progress_bar(total=None, unit="line", description="translated") as progress:
        work = write_translations if arguments.score_only is None else write_scores
        failures = work(arguments, models, options, source, progress.update)
    failures.check()
    if arguments.output is not None:
        tell_output(arguments)


def find(path: Path) -> Path:
    """The model directory that a path stands for; a packed model is found without torch."""
    from nmt.checkpoint.packed import is_packed

    if is_packed(path):
        return path
    from nmt.checkpoint.selection import find_model

    return find_model(path)


def tell_output(arguments: argparse.Namespace) -> None:
    """Name the file that was written, and the next command for it."""
    console.tell_written(arguments.output)
    if arguments.score_only is None and not arguments.scores and not (arguments.nbest or 1) > 1:
        output = console.shown(arguments.output)
        console.suggest("nmt-score", "--hypothesis", output, "--reference", "FILE")


def write_scores(
    arguments: argparse.Namespace,
    models: "Sequence[Path]",
    options: "SearchOptions",
    source: "LineSource",
    advance: Callable[[int], object],
) -> "LineFailures":
    """Score given translations; returns the lines without a score."""
    from nmt.data.text import LineWriter
    from nmt.decoding.attention_file import attention_writer
    from nmt.decoding.lines import score_stream
    from nmt.decoding.streaming import open_lines

    targets = open_lines(arguments.score_only)
    translator = load(arguments, models)
    path = arguments.attention
    opened = contextlib.nullcontext() if path is None else attention_writer(path)
    with LineWriter(arguments.output) as writer, opened as attention:
        return score_stream(
            translator,
            writer,
            source,
            targets,
            batch_tokens=options.batch_tokens,
            types=attention_types(arguments),
            attention=attention,
            on_bad_line=arguments.on_bad_line,
            buffer=arguments.buffer,
            advance=advance,
        )


def write_translations(
    arguments: argparse.Namespace,
    models: "Sequence[Path]",
    options: "SearchOptions",
    source: "LineSource",
    advance: Callable[[int], object],
) -> "LineFailures":
    """Translate; returns the lines without a translation."""
    from nmt.decoding.lines import Outputs, translate_stream
    from nmt.decoding.streaming import open_lines
    from nmt.decoding.translation import Details

    details = Details(choose_head(arguments, models[0]), attention_types(arguments))
    outputs = Outputs(
        arguments.output,
        alignments=arguments.alignments,
        attention=arguments.attention,
        scores=arguments.scores,
    )
    if arguments.ray is not None:
        return translate_on_ray(arguments, models, options, details, outputs, advance)
    with open_engine(arguments, models) as engine, outputs:
        return translate_stream(
            engine,
            options,
            outputs,
            source,
            details=details,
            prefixes=None if arguments.prefix is None else open_lines(arguments.prefix),
            on_bad_line=arguments.on_bad_line,
            buffer=arguments.buffer,
            advance=advance,
        )


def translate_on_ray(
    arguments: argparse.Namespace,
    models: "Sequence[Path]",
    options: "SearchOptions",
    details: "Details",
    outputs: "Outputs",
    advance: Callable[[int], object],
) -> "LineFailures":
    """Translate on a Ray cluster; returns the lines without a translation."""
    from nmt.decoding.lines import write_answers
    from nmt.decoding.ray_cluster import RayWorkers, find_workers, map_lines
    from nmt.decoding.ray_translation import TranslationJob, check_lines

    job = TranslationJob(
        Path.cwd(),
        (arguments.input, *([] if arguments.prefix is None else [arguments.prefix])),
        worker_settings(arguments, [path.absolute() for path in models]),
        options,
        details,
    )

    def find() -> RayWorkers:
        return find_workers(arguments.device, arguments.threads or 1, arguments.workers)

    with outputs, contextlib.closing(map_lines(job, arguments.ray, find)) as answers:
        return write_answers(
            check_lines(answers, arguments.on_bad_line),
            outputs,
            str(arguments.input),
            nbest=options.nbest > 1,
            advance=advance,
        )


def worker_settings(arguments: argparse.Namespace, models: "Sequence[Path]") -> "WorkerSettings":
    """How each of several processes loads the models."""
    from nmt.decoding.workers import WorkerSettings

    return WorkerSettings(
        tuple(models), arguments.precision, arguments.int8, arguments.threads or 1
    )


def load(arguments: argparse.Namespace, models: "Sequence[Path]") -> "Translator":
    """The translator that the options describe."""
    from nmt.decoding.translator import Translator

    return Translator.load(
        models,
        device=arguments.device,
        precision=arguments.precision,
        int8=arguments.int8,
        threads=arguments.threads,
    )


def open_engine(
    arguments: argparse.Namespace, models: "Sequence[Path]"
) -> "contextlib.AbstractContextManager[LineTranslator]":
    """A translator in this process, or several in others."""
    devices = list_devices(arguments.device, models)
    count = arguments.workers or 1
    if len(devices) > 1 and count > 1:
        raise UserError("--workers: leave it out, each of several devices has a process of its own")
    if len(devices) == 1 and count == 1:
        return contextlib.nullcontext(load(arguments, models))
    from nmt.decoding.workers import WorkerPool

    settings = worker_settings(arguments, models)
    return WorkerPool(settings, devices if len(devices) > 1 else devices * count)


def list_devices(names: str, models: "Sequence[Path]") -> list[str]:
    """The devices that --device names; a packed model refuses all but the CPU when it is loaded."""
    from nmt.checkpoint.packed import is_packed

    if any(map(is_packed, models)):
        return ["cpu" if names == "auto" else names]
    from nmt.decoding.devices import find_devices

    return [str(device) for device in find_devices(names)]


def decode_config(model: Path) -> DecodeConfig:
    """The search options of a model."""
    from nmt.checkpoint.packed import is_packed
    from nmt.storage.manifest import SealedDirectory

    if is_packed(model):
        from nmt.decoding.packed_directory import read_packed_config

        return read_packed_config(SealedDirectory(model)).decode
    from nmt.checkpoint.model_directory import read_config

    return read_config(SealedDirectory(model)).decode


def make_options(arguments: argparse.Namespace, model: Path) -> SearchOptions:
    """The options of the command line over those of the first model."""
    sampling = given_fields(arguments, Sampling)
    defaults = SearchOptions.of(decode_config(model))
    try:
        return replace(
            defaults,
            sampling=Sampling(**sampling) if arguments.temperature is not None else None,
            fast=arguments.fast,
            fill_memory=arguments.batch_tokens is None,
            **given_fields(arguments, SearchOptions),
        )
    except UserError as error:
        field, _, problem = str(error).partition(":")
        raise UserError(f"--{field.replace('_', '-')}:{problem}") from error


def attention_types(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The types of attention to write, if any."""
    if arguments.attention is None:
        return ()
    return tuple(dict.fromkeys(arguments.attention_types or ("cross",)))


def choose_head(arguments: argparse.Namespace, model: Path) -> "AlignmentHead | None":
    """Which attention makes the alignments, if any are wanted."""
    from nmt.decoding.alignment import AlignmentHead, recommended_head

    if arguments.alignments is None:
        return None
    if arguments.layer is None and arguments.head is None and not arguments.normal:
        return recommended_head(model)
    return AlignmentHead(arguments.layer, arguments.head, shifted=not arguments.normal)


if __name__ == "__main__":
    sys.exit(main())
