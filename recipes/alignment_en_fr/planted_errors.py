"""Plant errors in good sentence pairs, and measure how well scores of nmt-filter find them.

python recipes/alignment_en_fr/planted_errors.py plant SOURCE TARGET OUTPUT
python recipes/alignment_en_fr/planted_errors.py areas SCORES LABELS

`plant` writes OUTPUT.source, OUTPUT.target and OUTPUT.label: every other pair as it is, the others
with one of five errors each. `areas` reads the table of `nmt-filter --output` and prints the areas
under the ROC curve, also for the mean of the ranks that a pair has by several scores.
"""

import argparse
import csv
from pathlib import Path
from random import Random

import numpy as np

from nmt.analysis.filtering import Values, areas_by_label
from nmt.tables import Table

ERRORS = ("wrong_language", "shuffled", "inserted", "cut", "copied")
HIGHER_IS_BETTER = {"log_probability": True, "length_ratio": True, "null_rate": False}


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


def areas(scores: Path, labels: Path) -> Table:
    """Areas under the ROC curve by score and error."""
    with scores.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    goodness: dict[str, Values] = {}
    for name, higher in HIGHER_IS_BETTER.items():
        values = np.array([float(row[name]) for row in rows])
        signed = values if higher else -values
        goodness[name] = np.where(np.isnan(signed), -np.inf, signed)  # pairs without a score
    ranks = {name: rank(values) for name, values in goodness.items()}
    both = ("log_probability", "length_ratio")
    goodness[" + ".join(both)] = sum((ranks[name] for name in both), np.zeros(len(rows)))
    goodness["all three"] = sum(ranks.values(), np.zeros(len(rows)))
    found = areas_by_label(goodness, labels.read_text().split(), clean_label="clean")
    columns = list(next(iter(found.values())))
    table_rows = [
        [name, *(f"{of_name[column]:.3f}" for column in columns)] for name, of_name in found.items()
    ]
    return Table(["score", *columns], table_rows, note="Areas under the ROC curve, 0.5 is chance")


def rank(values: Values) -> Values:
    """The rank of each value, from 0; equal values share the mean of theirs."""
    ordered = np.sort(values)
    left, right = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((left + right - 1) / 2)


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, files in (("plant", ("source", "target", "output")), ("areas", ("scores", "labels"))):
        command = commands.add_parser(name)
        for file in files:
            command.add_argument(file, type=Path)
    arguments = parser.parse_args()
    if arguments.command == "plant":
        plant(arguments.source, arguments.target, arguments.output)
    else:
        print(areas(arguments.scores, arguments.labels).markdown())


if __name__ == "__main__":
    main()
