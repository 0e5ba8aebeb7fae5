"""From measurements to ratios and tables.

A part of the comparison is a list of rounds; in each every contender had its turn, one after the
other, so that ratios within a round are fair whatever else the machine does.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OURS = "nmt"
EXACT = "ctranslate2"  # a program for translation only; the other peers are built on torch


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


def is_ours(name: str) -> bool:
    """Whether a contender is this toolkit."""
    return name.split(" ")[0] == OURS


def contenders(part: dict[str, Any]) -> list[str]:
    """Those that were measured in every round."""
    return [
        name
        for name in part["rounds"][0]["measured"]
        if all(name in one["measured"] for one in part["rounds"])
    ]


def rates(part: dict[str, Any], name: str) -> list[float]:
    """Target tokens (training) or sentences (decoding) a second, round by round."""
    unit = "tokens" if part["kind"] == "train" else "sentences"
    found = [one["measured"][name] for one in part["rounds"]]
    if part["clock"] == "cpu":
        threads = part["threads"]
        return [measured[unit] * threads / measured["cpu_seconds"] for measured in found]
    return [measured[unit] / measured["seconds"] for measured in found]


def ratio(part: dict[str, Any], ours: str, theirs: str) -> Spread:
    """The speed of ours divided by theirs."""
    pairs = zip(rates(part, ours), rates(part, theirs), strict=True)
    return Spread.of([a / b for a, b in pairs])


def best_peer(part: dict[str, Any]) -> str | None:
    """The fastest other toolkit that is built on torch."""
    peers = [name for name in contenders(part) if not is_ours(name) and not name.startswith(EXACT)]
    if not peers:
        return None
    return max(peers, key=lambda name: statistics.median(rates(part, name)))


def part_markdown(title: str, part: dict[str, Any]) -> str:
    """The tables of one part."""
    names = contenders(part)
    unit = "target tokens/s" if part["kind"] == "train" else "sentences/s"
    matrix = Spread.of([one["matrix_rate"] / 1e9 for one in part["rounds"]])
    clock = "time of the processors" if part["clock"] == "cpu" else "time on the wall"
    lines = [
        f"### {title}",
        "",
        f"{part['date']}, nmt at {part['version']}; rounds: {len(part['rounds'])}, by the {clock}; "
        f"reference matrix product: {matrix.text(0)} GFLOP/s",
        "",
        *speed_table(part, names, unit),
        "",
        *ratio_table(part, names),
    ]
    best = best_peer(part)
    if best is not None:
        lines += ["", f"The fastest of the peers built on torch: {best}."]
    return "\n".join(lines)


def speed_table(part: dict[str, Any], names: Sequence[str], unit: str) -> list[str]:
    """The speed of every contender; for decoding, how many translations are as ours."""
    agreement = part.get("agreement", {})
    head, rule = f"| | {unit} |", "|---|---|"
    if agreement:
        head, rule = f"{head} same translations |", f"{rule}---|"
    lines = [head, rule]
    for name in names:
        rate = Spread.of(rates(part, name))
        row = f"| {name} | {rate.text(0 if rate.median >= 100 else 1)} |"
        if agreement:
            share = agreement.get(name)
            row += " |" if share is None else f" {100 * share:.0f} % |"
        lines.append(row)
    return lines


def ratio_table(part: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Our variants as rows, the peers as columns: our speed over theirs."""
    peers = [name for name in names if not is_ours(name)]
    if not peers:
        return []
    lines = [f"| ours over theirs | {' | '.join(peers)} |", "|---" * (len(peers) + 1) + "|"]
    for ours in filter(is_ours, names):
        cells = [ratio(part, ours, peer).text(2) for peer in peers]
        lines.append(f"| {ours} | {' | '.join(cells)} |")
    return lines


def markdown(results: dict[str, Any]) -> str:
    """All tables."""
    machine = results["machine"]
    parts = [part_markdown(part["title"], part) for part in results["parts"].values()]
    return "\n\n".join([f"Machine: {machine}.", *parts]) + "\n"
