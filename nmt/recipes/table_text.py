"""The table of a grid of runs as text: Markdown, LaTeX and JSON."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from nmt.evaluation import DEFAULT_SAMPLES, TOKENIZED_BLEU
from nmt.recipes.table import BLEU, CHRF, GridTable, Row, Summary
from nmt.tables import Table, escape_markdown

DASH = "–"  # what the paper shows for a training that failed

# ---------------------------------------------------------------- from rows to cells


def columns(table: GridTable) -> dict[str, list[str]]:
    """The cells of each column that has any but empty ones."""
    makers: dict[str, Callable[[Row], str]] = {
        "variant": lambda row: row.variant,
        "attention": lambda row: row.attention,
        "BLEU": bleu_cell,
        "chrF": lambda row: show(row.summary(CHRF), decimals=1),
        "runs": runs_cell,
        "paper": paper_cell,
        "difference": lambda row: signed(row.difference),
        "p": lambda row: p_cell(row, table),
        "parameters": lambda row: "" if row.parameters is None else f"{row.parameters / 1e6:.2f}M",
        "training hours": lambda row: (
            "" if row.training_hours is None else f"{row.training_hours:.2f}"
        ),
    }
    cells = {name: [maker(row) for row in table.rows] for name, maker in makers.items()}
    always = ("variant", "attention", "BLEU")
    return {name: column for name, column in cells.items() if name in always or any(column)}


def show(summary: Summary | None, *, decimals: int) -> str:
    """`26.93 ± 0.15`, without the deviation when there is none."""
    if summary is None:
        return ""
    deviation = "" if summary.deviation is None else f" ± {summary.deviation:.{decimals}f}"
    return f"{summary.mean:.{decimals}f}{deviation}"


def bleu_cell(row: Row) -> str:
    """SacreBLEU over seeds, in brackets BLEU on tokenised text, as in the paper's Table 1."""
    bleu, tokenized = row.summary(BLEU), row.summary(TOKENIZED_BLEU)
    if bleu is None:
        return DASH if row.diverged else ""
    return show(bleu, decimals=2) + ("" if tokenized is None else f" ({tokenized.mean:.2f})")


def runs_cell(row: Row) -> str:
    """How many runs the numbers are of, and how many failed."""
    summary = row.summary(BLEU)
    scored = 0 if summary is None else summary.count
    if not row.diverged:
        return str(scored) if scored else ""
    return f"{scored}, {row.diverged} diverged"


def paper_cell(row: Row) -> str:
    """The paper's numbers as it prints them."""
    if row.paper is None:
        return ""
    if row.paper.bleu is None:
        return DASH if row.paper.failed else ""
    tokenized = row.paper.tokenized_bleu
    return f"{row.paper.bleu:.1f}" + ("" if tokenized is None else f" ({tokenized:.2f})")


def p_cell(row: Row, table: GridTable) -> str:
    """p against the baseline, which is marked itself when there is something to compare."""
    if row.variant == table.baseline and any(other.p_value is not None for other in table.rows):
        return "baseline"
    return "" if row.p_value is None else f"{row.p_value:.3f}"


def signed(number: float | None) -> str:
    """A difference, to the one decimal that the paper has."""
    return "" if number is None else f"{number:+.1f}".replace("-", "−")


def notes(table: GridTable) -> list[str]:
    """How to read the table, in sentences."""
    cells = columns(table)
    seeds = ", ".join(str(seed) for seed in table.seeds)
    spread = "mean ± standard deviation over " if any("±" in cell for cell in cells["BLEU"]) else ""
    said = [f"{table.test}; {spread}seed{'s' if len(table.seeds) > 1 else ''} {seeds}."]
    if any("(" in cell for cell in cells["BLEU"]):
        said.append("In brackets BLEU on tokenised text.")
    if any(DASH in cell for name in ("BLEU", "paper") for cell in cells.get(name, [])):
        said.append(f"{DASH}: training diverged or failed.")
    if "p" in cells:
        said.append(
            f"p: paired bootstrap of BLEU ({DEFAULT_SAMPLES['bs']} samples) against "
            f"{table.baseline}, on the translations of the first seed of each."
        )
    if "training hours" in cells:
        said.append("Training hours are without validation.")
    outcomes = [outcome for row in table.rows for outcome in row.outcomes]
    signatures = {o.signatures[BLEU] for o in outcomes if BLEU in o.signatures}
    said += [f"SacreBLEU {signature}." for signature in sorted(signatures)]
    return said


# ---------------------------------------------------------------- as text


def text_table(grid: GridTable) -> Table:
    """The cells of the grid, with the task as title and the notes as note."""
    cells = columns(grid)
    rows = list(zip(*cells.values(), strict=True))
    return Table(list(cells), rows, labels=2, title=grid.task, note=" ".join(notes(grid)))


def markdown(grid: GridTable) -> str:
    """A Markdown table and a paragraph."""
    table = text_table(grid)
    return f"{table.markdown()}\n\n{escape_markdown(table.note)}"


def latex(grid: GridTable) -> str:
    """A LaTeX table with the notes as its caption."""
    return text_table(grid).latex()


def as_json(table: GridTable) -> str:
    """All numbers, unrounded."""
    rows: list[dict[str, Any]] = []
    for row in table.rows:
        numbers = {
            name: None if summary is None else dataclasses.asdict(summary)
            for name, summary in (
                (name, row.summary(name)) for name in (BLEU, TOKENIZED_BLEU, CHRF)
            )
        }
        rows.append(
            {
                "variant": row.variant,
                "attention": row.attention,
                "over_seeds": numbers,
                "paper": None if row.paper is None else dataclasses.asdict(row.paper),
                "difference": row.difference,
                "p_value": row.p_value,
                "parameters": row.parameters,
                "training_hours": row.training_hours,
                "runs": [dataclasses.asdict(outcome) for outcome in row.outcomes],
            }
        )
    result = {
        "task": table.task,
        "test": table.test,
        "seeds": table.seeds,
        "baseline": table.baseline,
        "rows": rows,
        "notes": notes(table),
    }
    return json.dumps(result, indent=2, ensure_ascii=False)
