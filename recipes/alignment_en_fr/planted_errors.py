"""Plant errors in good sentence pairs, to measure how well the scores of nmt-filter find them.

python recipes/alignment_en_fr/planted_errors.py SOURCE TARGET OUTPUT

writes OUTPUT.source, OUTPUT.target and OUTPUT.label: every other pair as it is, the others with one
of five errors each. `nmt-filter --labels OUTPUT.label` computes the areas under the ROC curve.
"""

import argparse
from pathlib import Path
from random import Random

ERRORS = ("wrong_language", "shuffled", "inserted", "cut", "copied")


def spoil(error: str, pair: tuple[str, str], other: tuple[str, str]) -> str:
    """The target side of a pair with an error; what is put in comes from another pair."""
    source, target = pair
    other_source, other_target = other
    words, other_words = target.split(" "), other_target.split(" ")
    middle = len(words) // 2
    if error == "wrong_language":
        return other_source
    if error == "shuffled":
        return other_target
    if error == "inserted":
        clause = other_words[: (len(other_words) + 1) // 2]
        return " ".join(words[:middle] + clause + words[middle:])
    if error == "cut":
        return " ".join(words[: max(1, middle)])
    assert error == "copied"
    return source


def plant(source: Path, target: Path, output: Path) -> None:
    """Write the pairs, half of them with an error, and the label of each."""
    sides = [
        path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in (source, target)
    ]
    pairs = list(zip(*sides, strict=True))
    random = Random(1)
    rows = []
    for number, pair in enumerate(pairs):
        label = "clean" if number % 2 == 0 else ERRORS[number // 2 % len(ERRORS)]
        other = pairs[(number + random.randrange(1, len(pairs))) % len(pairs)]
        rows.append((pair[0], pair[1] if label == "clean" else spoil(label, pair, other), label))
    for place, ending in enumerate(("source", "target", "label")):
        text = "".join(f"{row[place]}\n" for row in rows)
        Path(f"{output}.{ending}").write_text(text, encoding="utf-8")


def main() -> None:
    """Plant errors in the text of two files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for file in ("source", "target", "output"):
        parser.add_argument(file, type=Path)
    arguments = parser.parse_args()
    plant(arguments.source, arguments.target, arguments.output)


if __name__ == "__main__":
    main()
