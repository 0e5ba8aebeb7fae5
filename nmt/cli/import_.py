"""nmt-import: a model directory from a model of another toolkit."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli import console
from nmt.cli.arguments import add_path, check_new_directory
from nmt.errors import UserError

logger = logging.getLogger("nmt.cli.import")


def build_parser() -> console.Parser:
    """The arguments of nmt-import."""
    parser = console.Parser(
        prog="nmt-import",
        description="Make a model directory from a Transformer of Marian or of Hugging Face "
        "(MarianMT, such as the OPUS-MT models). It can be used like a model that was trained with "
        "nmt: translate, score, align, filter, analyze, fine-tune and export. No code of the other "
        "toolkit is needed, and nothing is unpickled. The output directory appears complete or not "
        "at all.",
        epilog="Exit codes: 0 done; 2 bad input, or a model that nmt cannot represent (the message "
        "names the setting or the tensor); 4 storage; 7 a damaged file.",
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="huggingface: the folder with config.json, model.safetensors, vocab.json, source.spm "
        "and target.spm; marian: the .npz file",
    )
    choices = ["huggingface", "marian"]
    parser.add_argument("--format", choices=choices, required=True, help="format to read")
    meaning = "a directory that does not exist yet, or is empty"
    add_path(parser, "--output", meaning, metavar="DIR", required=True)
    add_path(
        parser,
        "--vocabs",
        "marian: vocabularies of both sides, as sentencepiece models (.spm) or ids of words (.yml)",
        nargs=2,
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-language",
            metavar="CODE",
            help="a language code such as en or pt-BR (default: what the model says, or und)",
        )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Check the output directory, read the other model and write ours."""
    output = Path(os.path.abspath(arguments.output))
    check_new_directory(output)
    if (arguments.format == "marian") != (arguments.vocabs is not None):
        raise UserError("--vocabs: expected for --format marian, and for no other format")
    if not arguments.path.exists():
        raise UserError(f"{arguments.path}: not found")
    from nmt.data.text import Side
    from nmt.exchange.huggingface import import_huggingface
    from nmt.exchange.marian import import_marian

    languages: dict[Side, str | None]
    languages = {"source": arguments.source_language, "target": arguments.target_language}
    if arguments.format == "huggingface":
        import_huggingface(arguments.path, output, languages=languages)
    else:
        import_marian(arguments.path, arguments.vocabs, output, languages=languages)
    logger.info("%s: model directory made from %s", output, arguments.path)
    model = console.shown(output)
    console.suggest("nmt-translate", "--model", model, "--input", "FILE", "--output", "FILE")


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-import; returns the exit code."""
    return console.run(build_parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
