"""From measurements to ratios and tables, and from tables to the README.

A part of the comparison is a list of rounds; in each every contender had its turn, one after the
other, so that ratios within a round are fair whatever else the machine does.

    python recipes/speed/results.py RESULTS.json README.md

writes the tables of RESULTS.json between the two marks of README.md.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "nmt"
EXACT = ("ctranslate2", "marian")  # programs in C++; the other peers are built on torch
MARKS = ("<!-- results: begin -->", "<!-- results: end -->")
Part = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        """`median (low to high)`."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def parts_in_order(parts: dict[str, Part], names: Sequence[str]) -> dict[str, Part]:
    """The parts of these names that there are."""
    return {name: parts[name] for name in names if name in parts}


def contenders(part: Part) -> list[str]:
    """Those that were measured in every round."""
    return [
        name
        for name in part["rounds"][0]["measured"]
        if all(name in one["measured"] for one in part["rounds"])
    ]


def rates(part: Part, name: str) -> list[float]:
    """Target tokens (training) or sentences (decoding) a second, round by round."""
    unit = "tokens" if part["kind"] == "train" else "sentences"
    found = [one["measured"][name] for one in part["rounds"]]
    if part["clock"] == "cpu":
        threads = part["threads"]
        return [measured[unit] * threads / measured["cpu_seconds"] for measured in found]
    return [measured[unit] / measured["seconds"] for measured in found]


def ratio(part: Part, ours: str, theirs: str) -> Spread:
    """The speed of ours divided by theirs."""
    pairs = zip(rates(part, ours), rates(part, theirs), strict=True)
    return Spread.of([a / b for a, b in pairs])


def is_ours(name: str) -> bool:
    """Whether a contender is this toolkit."""
    return name.split(" ")[0] == OURS


def is_exact(name: str) -> bool:
    """Whether a contender is a program in C++."""
    return name.split(" ")[0] in EXACT


def title(part: Part) -> str:
    """A part in a few words."""
    threads = "1 thread" if part["threads"] == 1 else f"{part['threads']} threads"
    batch = f", batch {part['batch']}" if part["batch"] else ""
    return f"{part['size']}{batch}, {threads}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def by_part(
    parts: Sequence[Part], names: Sequence[str], cell: Callable[[Part, str], str]
) -> list[str]:
    """Contenders as rows, parts as columns."""
    rows = [
        [name, *(cell(part, name) if name in contenders(part) else "" for part in parts)]
        for name in names
    ]
    return table(["", *map(title, parts)], [row for row in rows if any(row[1:])])


def all_names(parts: Sequence[Part]) -> list[str]:
    """Everyone who was measured in one of the parts."""
    return list(dict.fromkeys(name for part in parts for name in contenders(part)))


def ratios_by_part(parts: Sequence[Part], ours: str) -> list[str]:
    """The speed of one of our variants over that of each peer."""

    def cell(part: Part, name: str) -> str:
        return ratio(part, ours, name).text(2) if ours in contenders(part) else ""

    peers = [name for name in all_names(parts) if not is_ours(name)]
    return by_part(parts, peers, cell)


def ratios_by_type(parts: Sequence[Part]) -> list[str]:
    """Ours over the programs in C++, float32 over float32 and int8 over int8."""
    types = ("", " int8")
    head = ["", *(f"{peer}, {kind.strip() or 'float32'}" for kind in types for peer in EXACT)]
    rows = []
    for part in parts:
        measured, row = contenders(part), [title(part)]
        for kind in types:
            ours = f"{OURS} softmax{kind}"
            for peer in EXACT:
                both = ours in measured and f"{peer}{kind}" in measured
                row.append(ratio(part, ours, f"{peer}{kind}").text(2) if both else "")
        rows.append(row)
    return table(head, rows)


def speed_cell(part: Part, name: str) -> str:
    """The speed of a contender."""
    rate = Spread.of(rates(part, name))
    return rate.text(0 if rate.median >= 100 else 1)


def memory_cell(part: Part, name: str) -> str:
    """The peak of a contender's resident memory."""
    return f"{max(one['measured'][name]['memory'] for one in part['rounds']) / 1e6:,.0f} MB"


def conditions(parts: Sequence[Part]) -> list[str]:
    """When and how each part was measured."""
    rows = []
    for part in parts:
        matrix = Spread.of([one["matrix_rate"] / 1e9 for one in part["rounds"]])
        clock = "processors" if part["clock"] == "cpu" else "wall"
        kind = "training" if part["kind"] == "train" else "decoding"
        count = str(len(part["rounds"]))
        name = f"{kind}, {title(part)}"
        rows.append([name, part["date"], part["version"], count, clock, matrix.text(0)])
    return table(["", "date", "nmt at", "rounds", "time", "matrix product, GFLOP/s"], rows)


def markdown(results: dict[str, Any]) -> str:
    """All tables."""
    parts = list(results["parts"].values())
    training = [part for part in parts if part["kind"] == "train"]
    decoding = [part for part in parts if part["kind"] == "decode"]
    whole = [
        part
        for part in decoding
        if any(not is_exact(n) and not is_ours(n) for n in contenders(part))
    ]
    sections: list[tuple[str, list[str]]] = []
    if training:
        for ours in filter(is_ours, all_names(training)):
            sections.append((f"### Training: {ours} over theirs", ratios_by_part(training, ours)))
        sections.append(("### Training: target tokens/s", speeds(training)))
        sections.append(("### Training: peak memory", memory(training)))
    if decoding:
        heading = "### Decoding: ours over CTranslate2 and Marian"
        sections.append((heading, ratios_by_type(decoding)))
    if whole:
        sections.append(
            ("### Decoding: nmt softmax over theirs", ratios_by_part(whole, "nmt softmax"))
        )
    if decoding:
        sections.append(("### Decoding: sentences/s", speeds(decoding)))
        sections.append(("### Decoding: peak memory", memory(decoding)))
    sections.append(("### Conditions", conditions(parts)))
    machines = list(dict.fromkeys(part["machine"] for part in parts))
    blocks = ["\n".join([heading, "", *lines]) for heading, lines in sections]
    return "\n\n".join([f"Machine: {'; '.join(machines)}.", *blocks]) + "\n"


def speeds(parts: Sequence[Part]) -> list[str]:
    """The speed of everyone; decoding has too many parts for columns."""
    if parts[0]["kind"] == "train":
        return by_part(parts, all_names(parts), speed_cell)
    return by_name(parts, speed_cell)


def memory(parts: Sequence[Part]) -> list[str]:
    """The memory of everyone."""
    if parts[0]["kind"] == "train":
        return by_part(parts, all_names(parts), memory_cell)
    return by_name(parts, memory_cell)


def by_name(parts: Sequence[Part], cell: Callable[[Part, str], str]) -> list[str]:
    """Parts as rows, contenders as columns."""
    names = all_names(parts)
    rows = [
        [title(part), *(cell(part, name) if name in contenders(part) else "" for name in names)]
        for part in parts
    ]
    return table(["", *names], rows)


def write_readme(results: dict[str, Any], readme: Path) -> None:
    """Put the tables between the marks."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise SystemExit(f"{readme}: expected the lines {MARKS[0]} and {MARKS[1]}")
    readme.write_text(f"{before}{begin}\n\n{markdown(results)}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: results.py RESULTS.json README.md")
    write_readme(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
