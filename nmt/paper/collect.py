"""Collects the numbers of a grid of runs from their files."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.analysis.results import RESULTS_FORMAT
from nmt.analysis.trajectories import read_trajectories, validation_records
from nmt.errors import UserError
from nmt.paper.scores import RunScores, Value, flatten
from nmt.recipes.grid import Cell, read_outcome
from nmt.recipes.stages import ANALYSIS_DIRECTORY, Run
from nmt.recipes.table import describe_attention
from nmt.storage.manifest import SealedDirectory
from nmt.storage.records import METRICS_FILE

logger = logging.getLogger(__name__)

ALIGNMENT_DIRECTORY = "alignment"  # the analysis of the text with gold alignments
MODEL_VALUES = ("parameters", "attention", "nullable", "statistics")  # of an analysis
CURVES = ("loss", "perplexity", "bleu", "chrf")


def collect_run(cell: Cell, p_value: float | None = None) -> RunScores:
    """The numbers of one run; what is not there yet is left out."""
    run = cell.run
    outcome = read_outcome(cell)
    values: dict[str, Value] = {
        "status": outcome.status,
        "attention": describe_attention(run.config.model.attention),
        "model/dim": run.config.model.dim,
        "model/heads": run.config.model.heads,
    }
    values |= {f"score/{name}": value for name, value in outcome.scores.items()}
    values |= {f"signature/{name}": value for name, value in outcome.signatures.items()}
    for name, number in (
        ("parameters", outcome.parameters),
        ("training_hours", outcome.training_hours),
        ("p_value", p_value),
    ):
        if number is not None:
            values[name] = number
    values |= curves(run.config.run_dir / METRICS_FILE)
    values |= analysis_values(run)
    return RunScores(run.layout.directory.name, cell.variant, cell.seed, values)


def curves(path: Path) -> dict[str, Value]:
    """Validation scores and learned parameters of heads by update."""
    values: dict[str, Value] = {}
    for record in validation_records(path):
        for name in CURVES:
            if name in record:
                values[f"curve/{name}/{record['update']}"] = record[name]
    for one in read_trajectories(path):
        place = f"learned/{one.name}/{one.type}/{one.layer}/{one.head}"
        values |= {
            f"{place}/{update}": value
            for update, value in zip(one.updates, one.values, strict=True)
        }
    return values


def analysis_values(run: Run) -> dict[str, Value]:
    """The numbers of the analyses of a run: of the test set, and of gold alignments."""
    values: dict[str, Value] = {}
    document = current_analysis(run, ANALYSIS_DIRECTORY)
    if document is not None:
        model = {name: document["models"][0][name] for name in MODEL_VALUES}
        for layers in model["statistics"].values():
            for layer in layers.values():
                layer["heads"]["density"] = [joined(layer["heads"]["density"])]
                # A head of one seed has nothing to do with that of another.
                layer.pop("roles", None)
        values |= dict(flatten(model, ANALYSIS_DIRECTORY))
        values |= {f"text/{key}": document[key] for key in ("source", "target", "pairs", "seed")}
    gold = current_analysis(run, ALIGNMENT_DIRECTORY)
    if gold is not None:
        values |= dict(flatten(gold["models"][0]["aer"], f"{ANALYSIS_DIRECTORY}/aer"))
        values |= {"text/gold": gold["gold"], "text/development": gold["development"] or 0}
    return values


def current_analysis(run: Run, folder: str) -> dict[str, Any] | None:
    """An analysis of the model of a run; None with a warning if it is of an earlier model."""
    path = run.config.run_dir / folder / "analysis.json"
    document = read_document(path)
    if document is None:
        return None
    option = "with --alignment" if folder == ALIGNMENT_DIRECTORY else "without --no-run"
    if document["format"] != RESULTS_FORMAT:
        problem = "is by another version of nmt"
    elif document["models"][0]["digest"] != model_digest(run):
        problem = "is of another model than the one that the run has now"
    else:
        return document
    logger.warning("%s: %s, and is left out; nmt-paper %s makes it again", path, problem, option)
    return None


def model_digest(run: Run) -> str | None:
    """The digest of the files of the averaged model of a run; None without a model."""
    try:
        return SealedDirectory(run.model).digest
    except UserError:
        return None


def read_document(path: Path) -> dict[str, Any] | None:
    """The content of an analysis.json that may not be there."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document


def joined(rows: Sequence[Sequence[int]]) -> list[int]:
    """The sum of the histograms of all heads."""
    width = max(map(len, rows))
    return [sum(row[n] for row in rows if n < len(row)) for n in range(width)]


def kind_of(variant: str) -> str:
    """The name of a variant without the number that orders it: `07-rela-g` is rela-g."""
    return re.sub(r"^\d+-", "", variant)
