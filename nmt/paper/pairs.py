"""Figure 10: the attention of a head on the best and the worst pairs by null rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.patches import Patch

from nmt.analysis.explorer_data import side_data
from nmt.analysis.figures import (
    NULL_COLOUR,
    POSITIVE,
    Drawing,
    Picture,
    coloured,
)
from nmt.analysis.pairs import PairBatch, SegmentedPair, batch_attention
from nmt.analysis.plotting import legend, new_figure, styled
from nmt.checkpoint.model_directory import LoadedModel, load_model
from nmt.data.text import read_text
from nmt.decoding.alignment import Weights
from nmt.model.observe import Site

SHOWN = 2  # pairs of each quality
READABLE_WORDS = (4, 14)  # of a readable pair, on both sides
CELL = 0.19  # inches


@dataclass(frozen=True)
class RankedPair:
    """A pair with its line from 1, and its scores by nmt-filter."""

    line: int
    source: str
    target: str
    null_rate: float
    log_probability: float


def read_ranked(source: Path, target: Path, scores: Path) -> list[RankedPair]:
    """The pairs of readable length, from the lowest to the highest null rate."""
    header, *rows = [line.split("\t") for line in read_text(scores)]
    places = [header.index(name) for name in ("null_rate", "log_probability")]
    pairs = []
    texts = zip(read_text(source), read_text(target), rows, strict=True)
    for number, (one, other, row) in enumerate(texts, start=1):
        null_rate, log_probability = (float(row[place]) for place in places)
        readable = all(
            READABLE_WORDS[0] <= len(text.split()) <= READABLE_WORDS[1] for text in (one, other)
        )
        if readable and null_rate == null_rate:
            pairs.append(RankedPair(number, one, other, null_rate, log_probability))
    return sorted(pairs, key=lambda pair: pair.null_rate)


def extremes(ranked: Sequence[RankedPair]) -> dict[str, list[RankedPair]]:
    """The first and the last few pairs, none of them twice."""
    count = min(SHOWN, len(ranked) // 2)
    worst = list(ranked[len(ranked) - count :])
    return {"good": list(ranked[:count]), "bad": worst[::-1]}


def pairs_picture(
    model: Path, ranked: Sequence[RankedPair], *, layer: int, head: int, name: str
) -> Picture | None:
    """Heat maps of one head of cross-attention: good pairs above, bad pairs below."""
    found = extremes(ranked)
    if not found["good"]:
        return None
    loaded = load_model(model)
    maps = {
        quality: [(pair, pair_map(loaded, pair, layer=layer, head=head)) for pair in pairs]
        for quality, pairs in found.items()
    }
    with styled():
        drawing = pairs_drawing(maps, f"{name}, layer {layer}, head {head}")
        return drawing.render(pdf=True)


@dataclass(frozen=True)
class PairMap:
    """The weights [Q, K] of one head on one pair, and the subwords that they belong to."""

    queries: Sequence[str]
    keys: Sequence[str]
    weights: Weights


def pair_map(loaded: LoadedModel, pair: RankedPair, *, layer: int, head: int) -> PairMap:
    """The attention of one head on one pair."""
    codec = loaded.codec
    segmented = SegmentedPair(
        pair.line - 1, codec.source.segment(pair.source), codec.target.segment(pair.target)
    )
    batch = PairBatch.of([segmented], loaded.model.target_embedding.device)
    (seen,) = batch_attention(loaded.model.eval(), batch, types=("cross",))
    return PairMap(
        [*side_data(codec.target, segmented.target)["pieces"], "⟨end⟩"],
        [*side_data(codec.source, segmented.source)["pieces"], "⟨end⟩"],
        seen.weights[Site("cross", layer)][head],
    )


def pairs_drawing(maps: Mapping[str, Sequence[tuple[RankedPair, PairMap]]], text: str) -> Drawing:
    """One row of heat maps for each quality."""
    every = [one for pairs in maps.values() for _, one in pairs]
    most_keys, most_queries = (
        max(len(getattr(one, side)) for one in every) for side in ("keys", "queries")
    )
    columns = max(map(len, maps.values()))
    width = max(3.4, CELL * most_keys + 1.6) * columns
    figure = new_figure(width, (CELL * most_queries + 1.9) * len(maps) + 0.8)
    grid = figure.subplots(len(maps), columns, squeeze=False)
    for row, (quality, pairs) in zip(grid, maps.items(), strict=True):
        for axes, (pair, one) in zip(row, pairs, strict=True):
            axes.imshow(coloured(one.weights, normalised=False), interpolation="nearest")
            axes.set_xticks(range(len(one.keys)), one.keys, rotation=90, fontsize=8.5)
            axes.set_yticks(range(len(one.queries)), one.queries, fontsize=8.5)
            axes.tick_params(length=0)
            axes.grid(visible=False)
            axes.set_title(
                f"{quality} pair (line {pair.line}): {100 * pair.null_rate:.0f} % null,\n"
                f"log probability {pair.log_probability:.2f} per subword",
                fontsize=9,
            )
    legend(
        figure,
        {
            "weight (darker is more)": Patch(facecolor=POSITIVE(0.75)),
            "attends to nothing": Patch(facecolor=NULL_COLOUR),
        },
    )
    caption = (
        "The pairs of readable length with the lowest (good) and the highest (bad) null rate over "
        "all layers and heads, among the first training pairs; the head whose links are most "
        "informative. Rows are target subwords, columns the source. White is exactly 0"
    )
    return Drawing("pairs", "Good and bad pairs by null rate", text, caption, figure)
