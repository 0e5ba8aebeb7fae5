"""The results of an analysis as plain numbers, for JSON, tables, figures and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# 1: other measures of heads without queries, and of queries without a choice; 2: without `digest`
RESULTS_FORMAT = 3

# The types of attention and their names in tables and figures.
ATTENTION_TYPES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
}
MEASURED = ("sparsity", "null_rate", "shuffled_null_rate", "entropy", "density")  # by head
# Values of learned parameters at which a kind is another one.
LANDMARKS = {"alpha": {1.0: "softmax", 1.5: "1.5-entmax", 2.0: "sparsemax"}}


@dataclass(frozen=True)
class ModelResult:
    """The measures of one model.

    `statistics` holds a `SiteStatistics.summary` by type of attention and `layer_N`, with
    `shuffled_null_rate` and the learned parameters of the heads where these exist. `aer` is the
    table of a `GoldComparison`, or None without gold links.
    """

    name: str
    path: str
    parameters: int
    attention: dict[str, str]  # by type: a description of the kind
    nullable: dict[str, bool]  # by type: whether a query can attend to nothing
    statistics: dict[str, dict[str, Any]]
    aer: dict[str, Any] | None = None
    digest: str = ""  # of the files of the model, as in its manifest

    def layers(self, type_: str) -> list[dict[str, Any]]:
        """The statistics of each layer of one type of attention, in order."""
        of_type = self.statistics[type_]
        return [of_type[f"layer_{number}"] for number in range(len(of_type))]

    @property
    def num_heads(self) -> int:
        """The number of heads per layer."""
        return len(self.layers("cross")[0]["heads"]["sparsity"])


@dataclass(frozen=True)
class Analysis:
    """The results of all models on the same sentence pairs."""

    source: str  # file names
    target: str
    pairs: int
    seed: int  # of the shuffled targets
    models: list[ModelResult]
    gold: str | None = None
    development: int | None = None  # gold pairs on which the best heads were chosen
    weights: str = "attention"  # whose links are compared with the gold ones, or "norm"
    # By name of a model: the results that it is the mean of. They are not in analysis.json.
    seeds: Mapping[str, Sequence[ModelResult]] = field(default_factory=dict)

    def with_seeds(self, model: ModelResult) -> list[ModelResult]:
        """A model, and the results that it is the mean of."""
        return [model, *self.seeds.get(model.name, ())]

    def document(self) -> dict[str, Any]:
        """The content of analysis.json, rounded so that the order of additions does not show."""
        values = asdict(self)
        del values["seeds"]
        rounded: dict[str, Any] = without_noise({"format": RESULTS_FORMAT, **values})
        return rounded


def chosen_heads(development: int | None, weights: str = "attention") -> str:
    """Sentences that say on which pairs, and by which weights, the best heads were chosen."""
    links = "" if weights == "attention" else "Links are those of norm-based weights. "
    if development:
        return (
            f"{links}The best heads were chosen on the first {development} pairs; the rates are "
            "those of the other pairs"
        )
    return (
        f"{links}The best heads were chosen on the pairs that they are scored on, as in the paper"
    )


def without_noise(value: Any) -> Any:
    """The same value with all floats rounded to nine digits after the point."""
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: without_noise(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_noise(item) for item in value]
    return value


def learned_names(models: Sequence[ModelResult]) -> list[str]:
    """The names of the parameters that heads of these models have learned, such as alpha."""
    layers = (
        layer for model in models for type_ in ATTENTION_TYPES for layer in model.layers(type_)
    )
    names = dict.fromkeys(name for layer in layers for name in layer["heads"])
    return [name for name in names if name not in MEASURED]


def diversity(layer: dict[str, Any]) -> float:
    """The head diversity of a layer, at temperature 1 where weights do not sum to 1."""
    values = layer["diversity"]
    return float(values.get("plain", values.get("1.0", 0.0)))


def mean_density(layer: dict[str, Any]) -> float:
    """The number of keys that a query attends to, mean over queries and heads."""
    means: list[float] = []
    for counts in layer["heads"]["density"]:
        queries = max(sum(counts), 1)
        means.append(sum(number * count for number, count in enumerate(counts)) / queries)
    return sum(means) / len(means)
