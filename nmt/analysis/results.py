"""What an analysis found, as plain numbers: for analysis.json, tables, figures and the report."""

from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1

# The types of attention, and what they are called where people read.
TYPES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
}


@dataclass(frozen=True)
class ModelResult:
    """The measures of one model.

    `statistics` is by type of attention and `layer_N`: see `SiteStatistics.summary`, and where they
    exist also `shuffled_null_rate` and, for the heads, `alpha`. `aer` is what
    `head_choice.error_rate_table` gives, or None without gold.
    """

    name: str
    path: str
    parameters: int
    attention: dict[str, str]  # by type: the kind, in words
    nullable: dict[str, bool]  # by type: whether a query can attend to nothing (ReLA)
    statistics: dict[str, dict[str, Any]]
    aer: dict[str, Any] | None = None

    def layers(self, type_: str) -> list[dict[str, Any]]:
        """The numbers of each layer of one type of attention, in order."""
        of_type = self.statistics[type_]
        return [of_type[f"layer_{number}"] for number in range(len(of_type))]

    @property
    def num_heads(self) -> int:
        """Heads of a layer."""
        return len(self.layers("cross")[0]["heads"]["sparsity"])


@dataclass(frozen=True)
class Analysis:
    """The results of all models on the same sentence pairs."""

    source: str  # file names
    target: str
    pairs: int
    seed: int  # of the copy with shuffled targets
    models: list[ModelResult]
    gold: str | None = None
    development: int | None = None  # gold pairs on which the best heads were chosen

    def document(self) -> dict[str, Any]:
        """For JSON, with digits that do not depend on the order in which sums were added up."""
        rounded: dict[str, Any] = without_noise({"format": FORMAT, **asdict(self)})
        return rounded


def without_noise(value: Any) -> Any:
    """The same with all fractions rounded to nine digits after the point."""
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: without_noise(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_noise(item) for item in value]
    return value


def diversity(layer: dict[str, Any]) -> float:
    """The Jensen-Shannon divergence of a layer; of ReLA's weights that at temperature 1."""
    values = layer["diversity"]
    return float(values.get("plain", values.get("1.0", 0.0)))


def mean_density(layer: dict[str, Any]) -> float:
    """How many keys a query attends to, mean over queries and heads."""
    means: list[float] = []
    for counts in layer["heads"]["density"]:
        queries = max(sum(counts), 1)
        means.append(sum(number * count for number, count in enumerate(counts)) / queries)
    return sum(means) / len(means)
