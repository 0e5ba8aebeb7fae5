"""The stages of nmt-paper for each run of a grid after it is scored; each is done once."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.analysis.figures import Picture
from nmt.analysis.results import ATTENTION_TYPES
from nmt.data.text import LineWriter, read_text
from nmt.paper.collect import ALIGNMENT_DIRECTORY, ANALYSIS_DIRECTORY, read_document
from nmt.paper.pairs import pairs_picture, read_ranked
from nmt.recipes.grid import Cell, read_status
from nmt.recipes.stages import (
    ANALYSIS_FORMAT,
    FailedError,
    Run,
    command,
    file_digest,
    run_stage,
    with_stamp,
)
from nmt.tables import Table

logger = logging.getLogger(__name__)

RANKED_PAIRS = 2000  # of the training text, from which the best and the worst are shown
FILTERED = "pairs"  # the folder of a run with these pairs and their scores


@dataclass(frozen=True)
class GoldText:
    """Text with gold alignments."""

    source: Path
    target: Path
    gold: Path
    first: int  # the index of the first word of a sentence
    development: int | None = None  # pairs on which heads are chosen


def analyze_cells(cells: Sequence[Cell], gold: GoldText | None) -> int | None:
    """Analyse every run that has scores; None when all are done, else the exit code."""
    try:
        for cell in cells:
            if read_status(cell.run) == "scored":
                logger.info("==== analysis: %s", cell)
                run_stage("analyze", cell.run)
                if gold is not None:
                    align(cell.run, gold)
    except FailedError as error:
        logger.warning("stopped; the same command goes on from here")
        return error.exit_code
    return None


def align(run: Run, gold: GoldText) -> None:
    """Compare the attention of a run with gold alignments."""
    output = run.config.run_dir / ALIGNMENT_DIRECTORY
    files = (run.model / "MANIFEST.json", gold.source, gold.target, gold.gold)
    inputs = [*(file_digest(path) for path in files), str(gold.first), str(gold.development)]
    inputs.append(ANALYSIS_FORMAT)
    texts = ["--source", str(gold.source), "--target", str(gold.target), "--gold", str(gold.gold)]
    options = ["--gold-index", str(gold.first), "--sentences", "0", "--output", str(output)]
    if gold.development is not None:
        options += ["--development", str(gold.development)]
    arguments = ["--model", str(run.model), *texts, *options]
    with_stamp(run, "alignment", inputs, [output], lambda: command("analyze", arguments))


def attends_to_nothing(run: Run) -> bool:
    """Whether cross-attention of an analysed run can be null."""
    document = read_document(run.config.run_dir / ANALYSIS_DIRECTORY / "analysis.json")
    return document is not None and bool(document["models"][0]["nullable"]["cross"])


def first_of_each(grid: Sequence[Sequence[Cell]]) -> list[Cell]:
    """The first analysed run of each variant."""
    found = []
    for cells in grid:
        analysed = (cell for cell in cells if analysis_folder(cell).is_dir())
        found += list(islice(analysed, 1))
    return found


def analysis_folder(cell: Cell) -> Path:
    """The folder of the analysis of a run."""
    return cell.run.config.run_dir / ANALYSIS_DIRECTORY


def head_pictures(grid: Sequence[Sequence[Cell]]) -> list[Picture]:
    """Figures 7 to 9: the heads that the analysis of each variant drew, those with nulls first."""
    pictures = []
    cells = sorted(first_of_each(grid), key=lambda cell: not attends_to_nothing(cell.run))
    for cell in cells:
        png, pdf = (analysis_folder(cell) / f"heads_0.{suffix}" for suffix in ("png", "pdf"))
        if png.is_file():
            title = f"Heads of cross-attention of {cell}"
            caption = (
                "Rows are the predicted subwords, columns the source. White is exactly 0; a row of "
                "zeros has its own colour"
            )
            file = pdf.read_bytes() if pdf.is_file() else None
            name = f"heads_{cell.variant}"
            pictures.append(Picture(name, title, caption, png.read_bytes(), file))
    return pictures


def role_tables(grid: Sequence[Sequence[Cell]]) -> list[Table]:
    """The roles of the heads of the first analysed run of each variant."""
    rows = []
    for cell in first_of_each(grid):
        document = read_document(analysis_folder(cell) / "analysis.json")
        assert document is not None
        for type_, layers in document["models"][0]["statistics"].items():
            for number, layer in enumerate(layers.values()):
                rows += [role_row(cell, type_, number, role) for role in layer.get("roles", [])]
    if not rows:
        return []
    columns = ["variant", "seed", "attention", "layer", "head", "role", "score", "example"]
    note = (
        "The first seed of each variant. tables.md in the analysis of a run says how roles are "
        "found"
    )
    return [Table(columns, rows, labels=6, title="Roles of heads", note=note)]


def role_row(cell: Cell, type_: str, layer: int, role: dict[str, Any]) -> list[str]:
    """A head with a role."""
    example = role["examples"][0]["text"] if role["examples"] else ""
    labels = [cell.variant, str(cell.seed), ATTENTION_TYPES[type_], str(layer), str(role["head"])]
    return [*labels, role["role"], f"{role['score']:.2f}", example]


def ranked_pictures(grid: Sequence[Sequence[Cell]], *, rank: bool) -> list[Picture]:
    """Figure 10, by the first variant whose cross-attention can be null.

    Without `rank`, it is drawn only from scores that are there.
    """
    for cell in first_of_each(grid):
        if attends_to_nothing(cell.run):
            source, target, scores = ranked_files(cell.run)
            try:
                if rank:
                    rank_pairs(cell.run)
                elif not scores.is_file():
                    return []
            except FailedError:
                return []  # the command has said why
            layer, head = alignment_head(cell)
            ranked = read_ranked(source, target, scores)
            picture = pairs_picture(
                cell.run.model, ranked, layer=layer, head=head, name=cell.variant
            )
            return [] if picture is None else [picture]
    return []


def ranked_files(run: Run) -> tuple[Path, Path, Path]:
    """The files of the first pairs of the training text and of their scores."""
    folder = run.config.run_dir / FILTERED
    return folder / "source", folder / "target", folder / "scores.tsv"


def rank_pairs(run: Run) -> None:
    """Score the first pairs of the training text by nmt-filter."""
    *own, scores = ranked_files(run)
    texts = run.layout.pair("train")

    def work() -> None:
        scores.parent.mkdir(exist_ok=True)
        for text, path in zip(texts, own, strict=True):
            with LineWriter(path) as writer:
                for line in islice(read_text(text), RANKED_PAIRS):
                    writer.write(line)
        files = ["--source", str(own[0]), "--target", str(own[1]), "--output", str(scores)]
        command("filter", ["--model", str(run.model), *files])

    inputs = [file_digest(path) for path in (run.model / "MANIFEST.json", *texts)]
    with_stamp(run, FILTERED, inputs, [*own, scores], work)


def alignment_head(cell: Cell) -> tuple[int, int]:
    """The layer and head whose links are most informative, by the analysis of a run.

    Heads that attend to something less than half as often as the one that does so most are out.
    """
    document = read_document(analysis_folder(cell) / "analysis.json")
    assert document is not None
    layers = document["models"][0]["statistics"]["cross"]
    heads = {
        (layer, head): (1 - null_rate, score)
        for layer, row in enumerate(layers[f"layer_{number}"] for number in range(len(layers)))
        for head, (null_rate, score) in enumerate(
            zip(row["heads"]["null_rate"], row["shares"]["alignment"], strict=True)
        )
    }
    most, _ = max(heads.values())
    places = [place for place, (attends, _) in heads.items() if attends >= most / 2]
    return max(places, key=lambda place: heads[place][1])
