"""Write an English-German corpus from a grammar, with gold word alignments and labelled bad pairs.

python recipes/demo/generate.py --output data/demo
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, NoReturn

from grammar import Phrase, Target, Word
from sentences import Writer, conjunction

MARKS = (",", ".", "?")
LARGEST = 1_000_000
MAX_WORDS = 20
LABELS = ("shuffled", "wrong_language", "copied", "inserted", "cut")
FRENCH = (
    ("Le garçon", "La fille", "Mon frère", "Le vieux boulanger", "Notre voisin", "Le médecin"),
    ("mange une pomme", "lit un long roman", "cherche la clé", "boit de l'eau", "ne dort pas"),
    ("dans le jardin", "à la gare", "chaque jour", "avec son ami", "au marché", "sur la plage"),
)
EPILOG = """\
Files of raw text, UTF-8 with one sentence per line:
  train, validation, test   .en English, .de German, .align links of words, English-German
  noisy                     .en English, .de German or not, .label clean | shuffled |
                            wrong_language | copied | inserted | cut

Words are what spaces separate, counted from 0; a punctuation mark belongs to the word before it.
A link is 0-0, or 5p6 where only the marks of the two words correspond ("possible").
No sentence occurs twice, on either side, in or across the splits. The same seed gives the same
files; test, validation and noisy do not depend on --train.
"""


class Sentence(NamedTuple):
    """A pair of raw text and its links `0-0 1-2 3p3`; words are what spaces separate, from 0.

    Links of words are sure (`-`). A punctuation mark belongs to the word before it; what only the
    marks of two words link is possible (`p`).
    """

    english: str
    german: str
    alignment: str


def attach(tokens: list[str]) -> tuple[str, list[int]]:
    """Raw text, and the number of the word that each token ended up in."""
    text, places = tokens[0][0].upper() + tokens[0][1:], [0]
    for token in tokens[1:]:
        text += token if token in MARKS else f" {token}"
        places.append(places[-1] + (token not in MARKS))
    return text, places


def finish(phrase: Phrase, mark: str) -> Sentence:
    """The sentence of a phrase and its final mark."""
    end = Word(mark)
    english, german = [*phrase.english, end], list[Target]()
    for target in [*phrase.german, Target(mark, (end,))]:
        if german and german[-1].text == "," and target.text in MARKS:
            target = Target(target.text, german.pop().sources + target.sources)
        german.append(target)
    token = {id(word): index for index, word in enumerate(english)}
    source_text, source_words = attach([str(word) for word in english])
    target_text, target_words = attach([target.text for target in german])
    links: dict[tuple[int, int], str] = {}
    for index, target in enumerate(german):
        for word in target.sources:
            link = source_words[token[id(word)]], target_words[index]
            if target.text not in MARKS or link not in links:
                links[link] = "p" if target.text in MARKS else "-"
    alignment = " ".join(f"{one}{kind}{other}" for (one, other), kind in sorted(links.items()))
    return Sentence(source_text, target_text, alignment)


class Source:
    """An endless source of sentences that never gives an English or a German sentence twice."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def take(self, count: int, random: Random) -> list[Sentence]:
        """New sentences."""
        writer, taken = Writer(random), list[Sentence]()
        while len(taken) < count:
            sentence = finish(*writer.sentence())
            texts = {sentence.english, sentence.german}
            longest = max(text.count(" ") for text in texts)
            if not texts & self.seen and longest < MAX_WORDS:
                self.seen |= texts
                taken.append(sentence)
        return taken


def spoil(sentence: Sentence, label: str, source: Source, random: Random) -> str:
    """A German side with the fault that the label names."""
    words = sentence.german.split(" ")
    if label == "copied":
        return sentence.english
    if label == "cut":
        kept = words[: max(1, random.randint(len(words) // 4, len(words) * 3 // 5))]
        return " ".join(kept).rstrip(",")
    if label == "inserted":
        clause = Writer(random).clause(tense=random.choice(["present", "past"]))
        reason = finish(clause.realise("final", conjunction("because")), ".").german
        body, mark = sentence.german[:-1], sentence.german[-1]
        return f"{body}, {reason[0].lower()}{reason[1:-1]}{mark}"
    other = source.take(1, random)[0]
    if label == "shuffled":
        return other.german
    french = " ".join(random.choice(part) for part in FRENCH)
    return f"{french}." if random.random() < 0.5 else other.english


def noisy_pairs(source: Source, count: int, random: Random) -> list[tuple[str, str, str]]:
    """New pairs with labels in random order: half clean, the rest evenly bad in every way."""
    sentences = source.take(count, random)
    clean = (count + 1) // 2
    pairs = [(each.english, each.german, "clean") for each in sentences[:clean]]
    for number, each in enumerate(sentences[clean:]):
        label = LABELS[number % len(LABELS)]
        pairs.append((each.english, spoil(each, label, source, random), label))
    random.shuffle(pairs)
    return pairs


def corpus_files(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The lines of every file by name."""
    source, files = Source(), dict[str, list[str]]()
    # Training comes last, so that its size changes nothing in the other splits.
    for split in ("test", "validation", "noisy", "train"):
        random, count = Random(f"{arguments.seed} {split}"), getattr(arguments, split)
        make = noisy_pairs if split == "noisy" else lambda source, *rest: source.take(*rest)
        rows = make(source, count, random)
        for place, end in enumerate(("en", "de", "label" if split == "noisy" else "align")):
            files[f"{split}.{end}"] = [row[place] for row in rows]
    return files


def write_files(folder: Path, files: dict[str, list[str]]) -> None:
    """Write all files under temporary names, then rename them, so that none is ever half."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in files}
    try:
        for name, lines in files.items():
            text = "".join(f"{line}\n" for line in lines)
            temporary[name].write_text(text, encoding="utf-8", newline="\n")
        for name, path in temporary.items():
            os.replace(path, folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def pair_count(text: str) -> int:
    """A number of pairs given on the command line."""
    if not (text.isascii() and text.isdigit()) or int(text) > LARGEST:
        message = f"expected a whole number from 0 to {LARGEST}, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def build_parser() -> OneLineParser:
    """The command line."""
    parser = OneLineParser(
        prog="generate.py", description=__doc__.partition("\n")[0], epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to make")
    sizes = {"train": 20_000, "validation": 500, "test": 1_000, "noisy": 1_000}
    for name, default in sizes.items():
        parser.add_argument(
            f"--{name}", type=pair_count, default=default, metavar="N",
            help=f"pairs in the {name} files (default: {default})",
        )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.output.exists() and not arguments.output.is_dir():
        parser.error(f"argument --output: expected a folder, got the file {arguments.output}")
    files = corpus_files(arguments)
    try:
        write_files(arguments.output, files)
    except OSError as error:
        print(f"generate.py: error: cannot write to {arguments.output}: {error}", file=sys.stderr)
        return 4
    splits = ("train", "validation", "test", "noisy")
    sizes = ", ".join(f"{getattr(arguments, name)} {name}" for name in splits)
    types = [
        len({word.rstrip(".,?") for line in files[f"train.{side}"] for word in line.split(" ")})
        for side in ("en", "de")
    ]
    words = f"{types[0]} English and {types[1]} German words in training"
    print(f"{arguments.output}: {sizes} pairs; {words}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
