"""Write an English-German corpus from a grammar, with gold word alignments and labelled bad pairs.

python recipes/demo/generate.py --output data/demo
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

from demo_corpus import SentenceSource
from demo_noise import labelled_pairs

LARGEST = 1_000_000

EPILOG = """\
Files, UTF-8 with one sentence a line, words and punctuation separated by blanks:
  train, validation, test   .en English, .de German, .align links of words, English-German from 0
  noisy                     .en English, .de German or not, .label clean | shuffled |
                            wrong_language | copied | inserted | cut

No sentence occurs twice, on either side, in or across the splits. The same seed gives the same
files; test, validation and noisy do not depend on --train.
"""


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def pair_count(text: str) -> int:
    """Return a number of pairs given on the command line."""
    if not (text.isascii() and text.isdigit()) or int(text) > LARGEST:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {LARGEST}, got {text!r}"
        )
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = OneLineParser(
        prog="generate.py",
        description=__doc__.partition("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder to write to, made if missing",
    )
    for name, default, what in (
        ("train", 20_000, "training pairs"),
        ("validation", 500, "validation pairs"),
        ("test", 1_000, "test pairs"),
        ("noisy", 1_000, "pairs in the noisy files, half of them clean"),
    ):
        result.add_argument(
            f"--{name}", type=pair_count, default=default, metavar="N",
            help=f"number of {what} (default: {default})",
        )  # fmt: skip
    result.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the random choices (default: 1)"
    )
    return result


def corpus_files(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the lines of every file by name."""
    source = SentenceSource()

    def random_for(split: str) -> Random:
        return Random(f"{arguments.seed} {split}")

    files: dict[str, list[str]] = {}
    # Training comes last, so that its size changes nothing in the other splits.
    for split in ("test", "validation", "noisy", "train"):
        count = getattr(arguments, split)
        if split == "noisy":
            pairs = labelled_pairs(source, count, random_for(split))
            files["noisy.en"] = [pair.english for pair in pairs]
            files["noisy.de"] = [pair.german for pair in pairs]
            files["noisy.label"] = [pair.label for pair in pairs]
            continue
        sentences = source.take(count, random_for(split))
        files[f"{split}.en"] = [sentence.english for sentence in sentences]
        files[f"{split}.de"] = [sentence.german for sentence in sentences]
        files[f"{split}.align"] = [sentence.alignment for sentence in sentences]
    return files


def write_files(folder: Path, files: dict[str, list[str]]) -> None:
    """Write all files under temporary names, then rename them, so that none is ever half."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in files}
    try:
        for name, lines in files.items():
            with open(temporary[name], "w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(f"{line}\n" for line in lines)
                stream.flush()
                os.fsync(stream.fileno())
        for name, path in temporary.items():
            os.replace(path, folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def word_types(lines: Iterable[str]) -> int:
    """Return how many distinct words the lines have."""
    return len({word for line in lines for word in line.split(" ")})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command = parser()
    arguments = command.parse_args(argv)
    if arguments.output.exists() and not arguments.output.is_dir():
        command.error(f"argument --output: expected a folder, got the file {arguments.output}")
    files = corpus_files(arguments)
    try:
        write_files(arguments.output, files)
    except OSError as error:
        print(f"generate.py: error: cannot write to {arguments.output}: {error}", file=sys.stderr)
        return 4
    print(
        f"{arguments.output}: {arguments.train} training, {arguments.validation} validation, "
        f"{arguments.test} test and {arguments.noisy} noisy pairs; "
        f"{word_types(files['train.en'])} English and {word_types(files['train.de'])} German types "
        "in training",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
