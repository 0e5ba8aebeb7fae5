"""Means over seeds: of single numbers with their deviation, and of whole analyses."""

from collections.abc import Mapping, Sequence
from typing import Any

from nmt.analysis.results import MEASURED, Analysis, ModelResult
from nmt.paper.scores import RunScores, Value, unflatten
from nmt.recipes.table import Summary, summarize

Variants = Mapping[str, Sequence[RunScores]]  # the runs of each variant, in order


def by_variant(runs: Sequence[RunScores]) -> dict[str, list[RunScores]]:
    """The runs of each variant, in the order of the first."""
    grouped: dict[str, list[RunScores]] = {}
    for run in runs:
        grouped.setdefault(run.variant, []).append(run)
    return grouped


def number(runs: Sequence[RunScores], name: str) -> Summary | None:
    """Mean and deviation of a number over the runs that have it."""
    return summarize([float(run.values[name]) for run in runs if name in run.values])


def mean_values(groups: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """The mean of each number over the groups that have it; of texts the first.

    Histograms may be of different widths: a group without a bar counts as 0 there.
    """
    result: dict[str, Any] = {}
    for name in dict.fromkeys(name for group in groups for name in group):
        found = [group[name] for group in groups if name in group]
        if isinstance(found[0], bool | str):
            result[name] = found[0]
        else:
            count = len(groups) if "/density/" in name else len(found)
            result[name] = sum(float(value) for value in found) / count
    return result


def mean_model(variant: str, runs: Sequence[RunScores]) -> ModelResult | None:
    """The mean of the analyses of all seeds of a variant; None without any."""
    groups = [group for run in runs if "statistics" in unflatten(group := run.group("analysis"))]
    if not groups:
        return None
    document = unflatten(mean_values(groups))
    pool_learned(document["statistics"], [unflatten(group)["statistics"] for group in groups])
    return ModelResult(
        name=variant,
        path="",
        parameters=round(document["parameters"]),
        attention=document["attention"],
        nullable=document["nullable"],
        statistics=document["statistics"],
        aer=document.get("aer"),
    )


def pool_learned(mean: dict[str, Any], seeds: Sequence[dict[str, Any]]) -> None:
    """Put the learned parameters of the heads of all seeds side by side.

    Head 0 of one seed has nothing to do with head 0 of another, so their mean says nothing.
    """
    for type_, layers in mean.items():
        for layer, values in layers.items():
            for name in set(values["heads"]) - set(MEASURED):
                found = [seed[type_][layer]["heads"].get(name, []) for seed in seeds]
                values["heads"][name] = [value for of_seed in found for value in of_seed]


def mean_analysis(variants: Variants) -> Analysis | None:
    """The analyses of all variants, each averaged over its seeds, which are of the same text."""
    models = [mean_model(variant, runs) for variant, runs in variants.items()]
    found = [model for model in models if model is not None]
    if not found:
        return None
    every = [run for runs in variants.values() for run in runs]
    text = {name: value for run in every for name, value in run.group("text").items()}
    return Analysis(
        source=str(text["source"]),
        target=str(text["target"]),
        pairs=int(text["pairs"]),
        seed=int(text["seed"]),
        models=found,
        gold=str(text["gold"]) if "gold" in text else None,
        development=int(text.get("development", 0)) or None,
        seeds={
            variant: [model for run in runs if (model := mean_model(variant, [run])) is not None]
            for variant, runs in variants.items()
        },
    )
