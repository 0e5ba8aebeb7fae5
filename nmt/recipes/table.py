"""The table of a grid of runs: means over seeds, the paper's numbers, significance."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.config.config import AttentionTypesConfig
from nmt.data.text import read_text
from nmt.errors import DataError
from nmt.evaluation import Metrics
from nmt.recipes.grid import Cell, Outcome, read_outcome

logger = logging.getLogger(__name__)

BLEU, CHRF = "BLEU", "chrF2"  # names in the files of the score stage
PAPER = "paper.tsv"
PAPER_COLUMNS = ("tokenized_bleu", "adaptively_sparse_bleu")  # that it may have after bleu


@dataclass(frozen=True)
class Summary:
    """A number over seeds; the deviation is that of a sample, None with one seed."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class PaperScore:
    """A row of the paper; numbers that it does not report are None.

    `adaptively_sparse_bleu` is the BLEU on tokenised text in Table 1 of the second paper (Correia
    et al. 2019).
    """

    bleu: float | None = None
    tokenized_bleu: float | None = None
    adaptively_sparse_bleu: float | None = None
    failed: bool = False  # training failed there


@dataclass(frozen=True)
class Row:
    """A variant: its runs, what the paper says of it, and p against the baseline."""

    variant: str
    attention: str
    outcomes: tuple[Outcome, ...]
    paper: PaperScore | None = None
    p_value: float | None = None

    def summary(self, metric: str) -> Summary | None:
        """A metric over all seeds that have it."""
        return summarize(
            [outcome.scores[metric] for outcome in self.outcomes if metric in outcome.scores]
        )

    @property
    def diverged(self) -> int:
        """How many runs failed."""
        return sum(outcome.status == "diverged" for outcome in self.outcomes)

    @property
    def difference(self) -> float | None:
        """Our BLEU minus the paper's."""
        bleu = self.summary(BLEU)
        if bleu is None or self.paper is None or self.paper.bleu is None:
            return None
        return bleu.mean - self.paper.bleu

    @property
    def parameters(self) -> int | None:
        """The size of the model, which is that of every seed."""
        return next((o.parameters for o in self.outcomes if o.parameters is not None), None)

    @property
    def training_hours(self) -> float | None:
        """The mean over the runs that came to scores."""
        hours = [o.training_hours for o in self.outcomes if o.status == "scored"]
        known = summarize([value for value in hours if value is not None])
        return None if known is None else known.mean


@dataclass(frozen=True)
class GridTable:
    """The rows of one task, and what has to be said of them."""

    task: str
    test: str
    seeds: tuple[int, ...]
    baseline: str | None
    rows: tuple[Row, ...]


def summarize(values: Sequence[float]) -> Summary | None:
    """Mean and sample deviation; None of nothing."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation, len(values))


# ---------------------------------------------------------------- from files to rows


def make_table(
    grid: Sequence[Sequence[Cell]], *, paper: Mapping[str, PaperScore], baseline: str
) -> GridTable:
    """Everything that the files of the runs say; `baseline` may be empty for no comparison."""
    outcomes = [[read_outcome(cell) for cell in cells] for cells in grid]
    p_values = compare(grid, outcomes, baseline)
    rows = []
    for cells, found in zip(grid, outcomes, strict=True):
        variant = cells[0].variant
        attention = describe_attention(cells[0].run.config.model.attention)
        score, p_value = paper.get(variant), p_values.get(variant)
        rows.append(Row(variant, attention, tuple(found), score, p_value))
    run = grid[0][0].run
    test = f"{run.recipe.test.name} {'-'.join(run.recipe.languages)}"
    seeds = tuple(cell.seed for cell in grid[0])
    return GridTable(run.layout.directory.name, test, seeds, baseline or None, tuple(rows))


def compare(
    grid: Sequence[Sequence[Cell]], outcomes: Sequence[Sequence[Outcome]], baseline: str
) -> dict[str, float]:
    """p of each variant but the baseline, on the translations of the first seed each has."""
    systems: dict[str, list[str]] = {}
    tokenizer = ""
    for cells, found in zip(grid, outcomes, strict=True):
        for cell, outcome in zip(cells, found, strict=True):
            if BLEU in outcome.scores and cell.run.hypothesis.is_file():
                systems[cell.variant] = list(read_text(cell.run.hypothesis))
                if cell.variant == baseline:
                    tokenizer = signature_field(outcome.signatures[BLEU], "tok")
                break
    others = [variant for variant in systems if variant != baseline]
    if baseline not in systems or not others:
        return {}
    run = grid[0][0].run
    _, reference = run.layout.pair(run.recipe.test.name)
    if not reference.is_file():
        logger.warning("%s: is missing, so nothing is tested for significance", reference)
        return {}
    metrics = Metrics(list(read_text(reference)), names=["bleu"], tokenize=tokenizer)
    results = metrics.compare([systems[name] for name in (baseline, *others)])
    return {
        name: float(entry.p_value)
        for name, (entry,) in zip(others, results[1:], strict=True)
        if entry.p_value is not None
    }


def signature_field(signature: str, name: str) -> str:
    """A part of a signature of SacreBLEU such as `nrefs:1|case:mixed|tok:13a`."""
    fields = dict(part.partition(":")[::2] for part in signature.split("|"))
    return fields.get(name, "13a")


def read_paper(path: Path) -> dict[str, PaperScore]:
    """The paper's numbers by variant, from a tab-separated table.

    A dash means that training failed there, and an empty cell that nothing is reported. A file that
    does not exist gives no numbers.
    """
    if not path.exists():
        return {}
    header, *lines = [line.split("\t") for line in read_text(path)]
    if header[:2] != ["variant", "bleu"] or not set(header[2:]) <= set(PAPER_COLUMNS):
        wanted = ", ".join(PAPER_COLUMNS)
        raise DataError(f"{path}:1: expected variant, bleu and perhaps {wanted}; got {header}")
    scores: dict[str, PaperScore] = {}
    for number, (variant, *values) in enumerate(lines, start=2):
        try:
            numbers = [float(value) if value not in ("", "-") else None for value in values]
        except ValueError as error:
            raise DataError(f"{path}:{number}: expected numbers or -, got {values}") from error
        if len(numbers) != len(header) - 1 or variant in scores:
            raise DataError(
                f"{path}:{number}: expected one line of {len(header)} columns per variant"
            )
        known = dict(zip(header[1:], numbers, strict=True))
        scores[variant] = PaperScore(**known, failed=values[0] == "-")
    return scores


def describe_attention(attention: AttentionTypesConfig) -> str:
    """The kinds in words: `rela-i, norm none`, or `rela-g (cross); softmax (encoder self, ...)`."""
    sites: dict[str, list[str]] = {}
    for site in ("encoder_self", "decoder_self", "cross"):
        text = str(getattr(attention, site))
        sites.setdefault(text, []).append(site.replace("_", " "))
    if len(sites) == 1:
        return next(iter(sites))
    fewest_first = sorted(sites, key=lambda text: len(sites[text]))
    return "; ".join(f"{text} ({', '.join(sites[text])})" for text in fewest_first)
