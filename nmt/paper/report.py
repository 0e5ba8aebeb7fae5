"""Assembles the report of both papers from the numbers of all runs of one task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nmt.analysis.figures import Drawing, Picture, all_pictures
from nmt.analysis.plotting import styled
from nmt.analysis.results import Analysis
from nmt.analysis.tables import all_tables
from nmt.analysis.trajectories import learned_pictures
from nmt.paper.average import Variants, by_variant, mean_analysis
from nmt.paper.curves import curve_drawing, trajectories_of
from nmt.paper.document import Document, Section
from nmt.paper.scores import RunScores, check_agreement
from nmt.paper.speeds import Speeds, speed_drawing
from nmt.paper.tables import (
    adaptive_table,
    after_words_means,
    alignment_table,
    diversity_table,
    flops_table,
    score_table,
    speed_table,
)
from nmt.recipes.table import PaperScore
from nmt.tables import Table

SPEED_HELP = (
    "Measure it with `nmt-bench train --paper --json train.json` and `nmt-bench decode --paper "
    "--batch 1 --json decode.json`, then give --speed train.json --speed decode.json."
)
ANALYSIS_HELP = "No run of the grid has been analysed yet."
GOLD_HELP = "Give nmt-paper gold alignments when it analyses: --alignment SOURCE TARGET GOLD."
RUNS_HELP = (
    "{} are made from the runs, and are not in a file of scores: see the report of the machine "
    "that has the runs, or make one there with nmt-paper RECIPE."
)
ROLES_HELP = "No head has a role."
PAIRS_HELP = (
    "Pairs are ranked by the null rate of a variant whose cross-attention can attend to nothing, "
    "such as rela-g, when its run is done and nmt-paper is given without --no-run."
)


@dataclass(frozen=True)
class Extras:
    """The contents of the report besides scores."""

    paper: Mapping[str, PaperScore] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=Speeds)
    heads: Sequence[Picture] = ()  # Figures 7 to 9
    pairs: Sequence[Picture] = ()  # Figure 10
    roles: Sequence[Table] = ()
    from_scores: bool = False  # whether there are no runs

    def reason(self, parts: str, other: str) -> str:
        """The reason why parts of the report that are made from runs are missing."""
        return RUNS_HELP.format(parts) if self.from_scores else other


def build_document(runs: Sequence[RunScores], extras: Extras) -> Document:
    """All tables and figures; what is missing is shown as missing."""
    check_agreement(runs)
    variants = by_variant(runs)
    task = runs[0].task
    analysis = mean_analysis(variants)
    figures = analysis_pictures(variants, analysis)
    tables = {} if analysis is None else {table.title: table for table in all_tables(analysis)}
    seeds = sorted({run.seed for run in runs})
    return Document(
        title=f"Tables and figures of the papers: {task}",
        introduction=(
            f"Variants: {len(variants)}; seeds: {', '.join(map(str, seeds))}. Numbers are means "
            "over the seeds, and bands in figures reach from the lowest seed to the highest. "
            "Every number of a run is in scores.tsv. The papers' numbers are for models and data "
            "of their own, so compare the order of the variants, not the values."
        ),
        sections=[
            *score_sections(variants, extras),
            *first_paper(variants, extras, figures, tables),
            *second_paper(variants, extras, figures, tables),
            other_section(tables),
        ],
    )


def score_sections(variants: Variants, extras: Extras) -> list[Section]:
    """Tables 1 to 4 and Figure 2."""
    with styled():
        speed, curve = speed_drawing(extras.speeds), curve_drawing(variants)
        pictures, curves = (drawn([one]) for one in (speed, curve))
    sizes = [
        (int(run.values["model/dim"]), int(run.values["model/heads"]))
        for runs in variants.values()
        for run in runs
        if "model/dim" in run.values
    ]
    measured = bool(extras.speeds.train or extras.speeds.decode)
    return [
        Section("BLEU (Tables 1 and 3)", [score_table(variants, extras.paper)], curves),
        Section(
            "Speed (Table 2 and Figure 2)",
            [speed_table(extras.speeds)],
            pictures,
            "" if measured and pictures else SPEED_HELP,
        ),
        Section("FLOPs by length (Table 4)", [flops_table(sizes)]),
    ]


def drawn(drawings: Sequence[Drawing | None]) -> list[Picture]:
    """The files of figures that are there."""
    return [drawing.render(pdf=True) for drawing in drawings if drawing is not None]


def analysis_pictures(variants: Variants, analysis: Analysis | None) -> dict[str, list[Picture]]:
    """The figures of the averaged analysis by name, and those of learned parameters."""
    if analysis is None:
        return {}
    trajectories = {
        f"{variant}, seed {run.seed}": trajectories_of(run)
        for variant, runs in variants.items()
        for run in runs
    }
    found = {picture.name: [picture] for picture in all_pictures(analysis, [], pdf=True)}
    learned = learned_pictures(analysis, trajectories, pdf=True)
    return {**found, "learned": learned}


def first_paper(
    variants: Variants,
    extras: Extras,
    figures: Mapping[str, Sequence[Picture]],
    tables: Mapping[str, Table],
) -> list[Section]:
    """Figures 3 to 10, and Tables 5 and 6."""
    missing = "" if figures else ANALYSIS_HELP

    def table(*titles: str) -> list[Table]:
        return [tables[title] for title in titles if title in tables]

    after_words = after_words_means(variants)
    null_tables = table("Null rate (Figure 6)", "Null rate of whole layers, and how heads differ")
    return [
        Section(
            "Sparsity rate (Figure 3)",
            table("Sparsity rate (Figure 3)"),
            figures.get("sparsity", ()),
            missing,
        ),
        Section(
            "Word alignment (Figure 4 and Table 5)",
            [
                alignment_table(variants),
                *table("Alignment error rate by layer (Figure 4)"),
            ],
            figures.get("alignment", ()),
            "" if "alignment" in figures else GOLD_HELP,
        ),
        Section(
            "Head diversity (Figure 5 and Table 6)",
            [diversity_table(variants), *table("Head diversity by layer (Figure 5)")],
            figures.get("diversity", ()),
            missing,
        ),
        Section(
            "Null attention (Figure 6)",
            [*null_tables, *([after_words] if after_words.rows else [])],
            figures.get("null_rate", ()),
            missing or ("" if null_tables else "No variant can attend to nothing."),
        ),
        Section(
            "Heads on a sentence (Figures 7 to 9)",
            (),
            extras.heads,
            "" if extras.heads else extras.reason("The figures of single heads", ANALYSIS_HELP),
        ),
        Section(
            "Good and bad pairs (Figure 10)",
            (),
            extras.pairs,
            "" if extras.pairs else extras.reason("The figures of pairs", PAIRS_HELP),
        ),
    ]


def second_paper(
    variants: Variants,
    extras: Extras,
    figures: Mapping[str, Sequence[Picture]],
    tables: Mapping[str, Table],
) -> list[Section]:
    """The results of Adaptively Sparse Transformers."""
    scores = adaptive_table(variants, extras.paper)
    learned = [table for title, table in tables.items() if title.startswith("Learned ")]
    pictures = [*figures.get("alpha", ()), *figures.get("threshold", ())]
    pictures += figures.get("learned", ())
    none = "No variant learns a parameter per head; entmax-learned does."
    no_roles = "" if extras.roles else extras.reason("The roles of heads", ROLES_HELP)
    return [
        Section(
            "Adaptively Sparse Transformers: BLEU",
            [] if scores is None else [scores],
            (),
            "" if scores is not None else "It reports no BLEU for this task.",
        ),
        Section(
            "Adaptively Sparse Transformers: what heads learn",
            learned,
            pictures,
            "" if pictures else none,
        ),
        Section(
            "Adaptively Sparse Transformers: density and roles of heads",
            [*(tables[title] for title in ("Density",) if title in tables), *extras.roles],
            figures.get("density", ()),
            no_roles if figures else ANALYSIS_HELP,
        ),
    ]


def other_section(tables: Mapping[str, Table]) -> Section:
    """Measures that neither paper has."""
    titles = ("Sink rate", "Sparsity, entropy and diversity without sinks", "Entropy")
    found = [tables[title] for title in titles if title in tables]
    return Section("Sinks and entropy", found, (), "" if found else ANALYSIS_HELP)
