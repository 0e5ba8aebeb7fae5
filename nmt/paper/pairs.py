"""Figure 10: the attention of a head on the best and the worst pairs by null rate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nmt.analysis.explorer_data import side_data
from nmt.analysis.figures import HeadWeights, Picture, heads_drawing
from nmt.analysis.pairs import PairBatch, SegmentedPair, batch_attention
from nmt.analysis.plotting import styled
from nmt.checkpoint.model_directory import LoadedModel, load_model
from nmt.checkpoint.selection import find_model
from nmt.data.text import read_text
from nmt.model.observe import Site

SHOWN = 2  # pairs of each quality
WORDS = (4, 14)  # of a readable pair, on both sides


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
        readable = all(WORDS[0] <= len(text.split()) <= WORDS[1] for text in (one, other))
        if readable and null_rate == null_rate:
            pairs.append(RankedPair(number, one, other, null_rate, log_probability))
    return sorted(pairs, key=lambda pair: pair.null_rate)


def extremes(ranked: Sequence[RankedPair]) -> dict[str, list[RankedPair]]:
    """The first and the last few pairs, none of them twice."""
    count = min(SHOWN, len(ranked) // 2)
    worst = list(ranked[len(ranked) - count :])
    return {"good": list(ranked[:count]), "bad": worst[::-1]}


def pair_pictures(
    run: Path, ranked: Sequence[RankedPair], *, layer: int, head: int, name: str
) -> list[Picture]:
    """Heat maps of one head of cross-attention on good and bad pairs."""
    loaded = load_model(find_model(run))
    pictures = []
    with styled():
        for quality, pairs in extremes(ranked).items():
            for number, pair in enumerate(pairs):
                shown = pair_weights(loaded, pair, layer=layer, head=head, name=name)
                drawing = heads_drawing(number, shown, "the training text")
                title = (
                    f"A {quality} pair by null rate: {100 * pair.null_rate:.0f} % null over all "
                    f"heads, log probability {pair.log_probability:.2f} per subword; {name}, "
                    f"layer {layer}"
                )
                drawing = replace(drawing, name=f"pair_{quality}_{number}", title=title)
                pictures.append(drawing.render(pdf=True))
    return pictures


def pair_weights(
    loaded: LoadedModel, pair: RankedPair, *, layer: int, head: int, name: str
) -> HeadWeights:
    """The weights of one head on one pair."""
    codec = loaded.codec
    segmented = SegmentedPair(
        pair.line - 1, codec.source.segment(pair.source), codec.target.segment(pair.target)
    )
    batch = PairBatch.of([segmented], loaded.model.target_embedding.device)
    (seen,) = batch_attention(loaded.model.eval(), batch, types=("cross",))
    return HeadWeights(
        model=name,
        layer=layer,
        sentence=pair.line,
        queries=[*side_data(codec.target, segmented.target)["pieces"], "⟨end⟩"],
        keys=[*side_data(codec.source, segmented.source)["pieces"], "⟨end⟩"],
        heads={head: seen.weights[Site("cross", layer)][head]},
        normalised=False,
    )
