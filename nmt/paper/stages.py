"""The stages of nmt-paper for each run of a grid after it is scored; each is done once."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.analysis.figures import Picture
from nmt.analysis.results import ATTENTION_TYPES
from nmt.data.text import LineWriter, read_text
from nmt.paper.collect import ALIGNMENT_DIRECTORY, read_document
from nmt.paper.pairs import pairs_picture, read_ranked
from nmt.paper.scores import RunScores
from nmt.recipes.grid import Cell, read_status
from nmt.recipes.stages import (
    ANALYSIS_DIRECTORY,
    FailedError,
    Run,
    analyze,
    analyze_text,
    command,
    file_digest,
    is_done,
    with_stamp,
)
from nmt.storage.manifest import MANIFEST
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
    first: int = 0  # the index of the first word of a sentence
    development: int | None = None  # pairs on which heads are chosen

    @property
    def texts(self) -> list[str]:
        """The options of nmt-analyze that name the files."""
        files = {"--source": self.source, "--target": self.target, "--gold": self.gold}
        return [word for name, path in files.items() for word in (name, str(path))]

    @property
    def options(self) -> list[str]:
        """The other options of nmt-analyze."""
        chosen = [] if self.development is None else ["--development", str(self.development)]
        return ["--gold-index", str(self.first), "--sentences", "0", *chosen]


@dataclass(frozen=True)
class AnalysisRequest:
    """More options of nmt-analyze for the test set, and text with gold alignments."""

    options: Sequence[str] = ()
    files: Sequence[Path] = ()  # that the options name
    gold: GoldText | None = None


def analyze_cells(cells: Sequence[Cell], request: AnalysisRequest) -> int | None:
    """Analyse every run that has scores; None when all are done, else the exit code."""
    try:
        for cell in cells:
            if read_status(cell.run) == "scored":
                logger.info("==== analysis: %s", cell)
                analyze(cell.run, request.options, request.files)
                if (gold := request.gold) is not None:
                    files = [gold.source, gold.target, gold.gold]
                    texts = gold.texts
                    analyze_text(cell.run, ALIGNMENT_DIRECTORY, texts, gold.options, files)
    except FailedError as error:
        logger.warning("stopped; the same command goes on from here")
        return error.exit_code
    return None


@dataclass(frozen=True)
class AnalysedCell:
    """A run, and the analysis of its attention on the test set."""

    cell: Cell
    folder: Path
    model: dict[str, Any]  # in analysis.json

    @property
    def can_be_null(self) -> bool:
        """Whether cross-attention can attend to nothing."""
        return bool(self.model["nullable"]["cross"])


def first_analysed(
    grid: Sequence[Sequence[Cell]], scores: Sequence[Sequence[RunScores]]
) -> list[AnalysedCell]:
    """The first run of each variant whose analysis is among its scores."""
    found = []
    for cells, of_cells in zip(grid, scores, strict=True):
        for cell, run in zip(cells, of_cells, strict=True):
            if "analysis/parameters" in run.values:
                folder = cell.run.config.run_dir / ANALYSIS_DIRECTORY
                document = read_document(folder / "analysis.json")
                assert document is not None
                found.append(AnalysedCell(cell, folder, document["models"][0]))
                break
    return found


def head_pictures(analysed: Sequence[AnalysedCell]) -> list[Picture]:
    """Figures 7 to 9: the heads that the analysis of each variant drew, those with nulls first."""
    pictures = []
    for one in sorted(analysed, key=lambda one: not one.can_be_null):
        png, pdf = (one.folder / f"heads_0.{suffix}" for suffix in ("png", "pdf"))
        if png.is_file():
            title = f"Heads of cross-attention of {one.cell}"
            caption = (
                "Rows are the predicted subwords, columns the source. White is exactly 0; a row of "
                "zeros has its own colour"
            )
            file = pdf.read_bytes() if pdf.is_file() else None
            name = f"heads_{one.cell.variant}"
            pictures.append(Picture(name, title, caption, png.read_bytes(), file))
    return pictures


def role_tables(analysed: Sequence[AnalysedCell]) -> list[Table]:
    """The roles of the heads of the first analysed run of each variant."""
    rows = []
    for one in analysed:
        for type_, layers in one.model["statistics"].items():
            for number, layer in enumerate(layers.values()):
                rows += [role_row(one.cell, type_, number, role) for role in layer["roles"]]
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


def ranked_pictures(analysed: Sequence[AnalysedCell], *, rank: bool) -> list[Picture]:
    """Figure 10, by the first variant whose cross-attention can be null.

    Without `rank`, it is drawn only from scores by the present model that are there.
    """
    one = next((one for one in analysed if one.can_be_null), None)
    if one is None or not ranks_pairs(one.cell.run, rank=rank):
        return []
    run = one.cell.run
    layer, head = alignment_head(one.model)
    ranked = read_ranked(*ranked_files(run))
    picture = pairs_picture(run.model, ranked, layer=layer, head=head, name=one.cell.variant)
    return [] if picture is None else [picture]


def ranked_files(run: Run) -> tuple[Path, Path, Path]:
    """The files of the first pairs of the training text and of their scores."""
    folder = run.config.run_dir / FILTERED
    return folder / "source", folder / "target", folder / "scores.tsv"


def ranks_pairs(run: Run, *, rank: bool) -> bool:
    """Whether nmt-filter has scored the first pairs of the training text; done now with `rank`."""
    source, target, scores = ranked_files(run)
    if rank:
        scores.parent.mkdir(exist_ok=True)
        for text, path in zip(run.layout.pair("train"), (source, target), strict=True):
            with LineWriter(path) as writer:
                for line in islice(read_text(text), RANKED_PAIRS):
                    writer.write(line)
    inputs = [file_digest(path) for path in (run.model / MANIFEST, source, target)]
    files = ["--source", str(source), "--target", str(target), "--output", str(scores)]
    work = partial(command, "filter", ["--model", str(run.model), *files])
    if rank:
        try:
            with_stamp(run, FILTERED, inputs, [scores], work)
        except FailedError:
            return False  # the command has said why
    return is_done(run, FILTERED, inputs, [scores])


def alignment_head(model: dict[str, Any]) -> tuple[int, int]:
    """The layer and head whose links are most informative, by the analysis of a model.

    Heads that attend to something less than half as often as the one that does so most are out.
    """
    layers = model["statistics"]["cross"]
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
