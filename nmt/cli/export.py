"""nmt-export: a model in another format: packed for CPUs, or of another program."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli import console
from nmt.cli.arguments import (
    add_choice,
    add_flag,
    add_outside_kinds,
    add_path,
    check_new_directory,
    check_without,
)
from nmt.cli.pair_arguments import MODEL_HELP
from nmt.errors import UserError

logger = logging.getLogger("nmt.cli.export")


def build_parser() -> console.Parser:
    """The arguments of nmt-export."""
    parser = console.Parser(
        prog="nmt-export",
        description="Write a model in another format. A packed model is for nmt-translate, "
        "nmt-serve and nmt.Translator on CPUs: it translates the same, to the last bit, starts in "
        "a fraction of the time and needs no torch; it cannot be trained or analysed. The other "
        "formats are those of other programs. CTranslate2 translates on "
        "CPUs without torch, but all attention has to be softmax. ONNX takes every attention "
        "kind: an encoder, and a decoder step with a cache. MarianMTModel.from_pretrained of "
        "Hugging Face loads the folder of a softmax model with post-norm. The output directory "
        "holds the weights, the vocabularies, the files that turn text into subwords and back, and "
        "for other programs a README.md with a few lines of Python that translate. It appears "
        "complete or not at all.",
        epilog="Exit codes: 0 done; 2 bad input, an attention kind that the format does not have, "
        "or a package is missing (pip install 'nmt[ctranslate2]' or 'nmt[onnx]'); 3 no usable "
        "model; 4 storage; 7 a damaged file.",
    )
    add_path(parser, "--model", MODEL_HELP, metavar="DIR", required=True)
    add_outside_kinds(parser)
    choices = ["packed", "ctranslate2", "huggingface", "onnx"]
    parser.add_argument("--format", choices=choices, required=True, help="format to write")
    meaning = "a directory that does not exist yet, or is empty"
    add_path(parser, "--output", meaning, metavar="DIR", required=True)
    meaning = (
        "type of the weights: int8 (packed and ctranslate2) needs a quarter of the space and is "
        "faster, but changes a few translations"
    )
    add_choice(parser, "--quantization", ("float32", "int8"), meaning)
    add_flag(parser, "--int8", "the same as --quantization int8")
    return parser


def export(arguments: argparse.Namespace) -> None:
    """Check the output directory, load the model and write it."""
    output = Path(os.path.abspath(arguments.output))
    check_new_directory(output)
    if arguments.int8:
        check_without(arguments, "--int8", ["--quantization"])
        arguments.quantization = "int8"
    from nmt.checkpoint.model_directory import load_model
    from nmt.checkpoint.selection import find_model
    from nmt.decoding.packed_export import export_packed
    from nmt.exchange.ctranslate2 import export_ctranslate2
    from nmt.exchange.huggingface_export import export_huggingface
    from nmt.exchange.onnx import export_onnx

    if arguments.quantization != "float32" and arguments.format not in ("packed", "ctranslate2"):
        raise UserError(
            f"--quantization {arguments.quantization}: expected float32 for {arguments.format}"
        )
    loaded = load_model(find_model(arguments.model))
    if arguments.format == "packed":
        export_packed(loaded, output, int8=arguments.quantization == "int8")
    elif arguments.format == "onnx":
        export_onnx(loaded, output)
    elif arguments.format == "huggingface":
        export_huggingface(loaded, output)
    else:
        export_ctranslate2(loaded, output, quantization=arguments.quantization)
    logger.info("%s: %s in %s", output, loaded.path, arguments.quantization)
    if arguments.format == "packed":
        console.suggest("nmt-translate", "--model", console.shown(output))
    else:
        logger.info("%s has a program that translates with it", console.shown(output / "README.md"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-export; returns the exit code."""
    return console.run(build_parser(), export, argv)


if __name__ == "__main__":
    sys.exit(main())
