"""Builds report.html: one file that contains everything and runs no script but its own.

All text goes into one JSON element, in which no character can end a script, and is shown as plain
text. A Content-Security-Policy allows the script and the style sheet by their hashes, and no
connections.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.analysis.analyze import ModelAnalysis
from nmt.analysis.figures import PICTURED_HEADS, HeadWeights, Picture
from nmt.analysis.pairs import PairAttention
from nmt.analysis.plotting import COLOURS
from nmt.analysis.results import TYPES, Analysis, ModelResult, diversity, learned_names
from nmt.data.codec import Codec, Segmentation, SideCodec
from nmt.errors import UserError
from nmt.model.observe import Site
from nmt.tables import Table

LEVELS = 127  # levels of the absolute value of a weight, in a signed byte
# In the order in which they import each other; nmt-serve serves those of the explorer as they are.
SCRIPTS = (
    "explorer/elements.js",
    "explorer/colours.js",
    "explorer/measures.js",
    "explorer/weights.js",
    "explorer/panel.js",
    "explorer/explorer.js",
    "report_page/heads.js",
    "report_page/numbers.js",
    "report_page/page.js",
)
STYLES = ("explorer/explorer.css", "report_page/page.css")
MODULE_SYNTAX = re.compile(r"^import .*?;\n|^export ", flags=re.MULTILINE)
MEASURES = ("sparsity", "entropy")
NULL_MEASURES = ("null_rate", "shuffled_null_rate")
PICTURED_LENGTH = 14  # subwords of a sentence that makes a readable figure
BEGINNING = 70  # characters shown in the list of sentences

Measured = tuple[ModelAnalysis, Codec]


def build_report(
    analysis: Analysis,
    *,
    texts: Mapping[int, str],
    measured: Sequence[Measured],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
) -> bytes:
    """The page; `texts` are the sources of the pairs to show, by their indices."""
    places = sorted(texts)
    data = {
        "summary": summary(analysis),
        "learned": learned_names(analysis.models),
        "sentences": [f"{place + 1}: {shorten(texts[place])}" for place in places],
        "models": [
            model_data(
                number,
                one.result,
                codec,
                [one.shown.get(place) for place in places],
                one.translations,
            )
            for number, (one, codec) in enumerate(measured)
        ],
        "tables": [asdict(table) for table in tables],
        "figures": [
            {
                "title": picture.title,
                "caption": picture.caption,
                "png": base64.b64encode(picture.png).decode(),
            }
            for picture in pictures
        ],
    }
    return assemble(data)


def assemble(data: Any) -> bytes:
    """The page with its data, script and style."""
    script = MODULE_SYNTAX.sub("", "".join(page_file(name) for name in SCRIPTS))
    style = "".join(page_file(name) for name in STYLES)
    policy = (
        f"default-src 'none'; script-src '{policy_hash(script)}'; "
        f"style-src '{policy_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": script_json(data)}
    return re.sub(
        r"{{(\w+)}}", lambda match: parts[match[1]], page_file("report_page/page.html")
    ).encode()


def page_file(name: str) -> str:
    """The text of a file of the page."""
    return (resources.files("nmt.analysis") / name).read_text(encoding="utf-8")


def policy_hash(content: str) -> str:
    """The name of the content of an element in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII without `<`, which could end the element.

    These characters occur only inside strings, where JSON reads the escapes as the characters.
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def summary(analysis: Analysis) -> str:
    """The models and texts of the report, in one line."""
    names = ", ".join(model.name for model in analysis.models)
    gold = f", gold alignments {analysis.gold}" if analysis.gold else ""
    return f"{names} on {analysis.pairs:,} pairs of {analysis.source} and {analysis.target}{gold}"


def shorten(text: str) -> str:
    """The beginning of a sentence."""
    return text if len(text) <= BEGINNING else text[:BEGINNING].rstrip() + " …"


def model_data(
    number: int,
    model: ModelResult,
    codec: Codec,
    seen: Sequence[PairAttention | None],
    translations: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """The measures of one model, and all its heads on every sentence (None if it is too long).

    `translations` are the model's own, by the indices of the pairs.
    """
    return {
        "name": model.name,
        "colour": COLOURS[number % len(COLOURS)],
        "attention": model.attention,
        "nullable": model.nullable,
        "layers": {type_: len(model.layers(type_)) for type_ in TYPES},
        "heads": model.num_heads,
        "measures": {type_: layer_measures(model, type_) for type_ in TYPES},
        "sentences": [
            None if one is None else sentence_data(codec, one, translations) for one in seen
        ],
    }


def layer_measures(model: ModelResult, type_: str) -> list[dict[str, list[float | None]]]:
    """By layer and measure one number per head, and one for the whole layer at the end.

    Measures that cannot be other than 0 are left out.
    """
    result = []
    for number, layer in enumerate(model.layers(type_)):
        measures: dict[str, list[float | None]] = {
            "diversity": [*[None] * model.num_heads, diversity(layer)]  # of all heads of the layer
        }
        names = (*(NULL_MEASURES if model.nullable[type_] else ()), *MEASURES)
        for key in (*names, *learned_names([model])):
            values = layer["heads"].get(key)
            if values:
                measures[key] = [*values, layer.get(key, float(np.mean(values)))]
        if model.aer is not None and type_ == "cross":
            for step in ("normal", "shifted"):
                rates = model.aer[step]["layers"][number]
                measures[f"aer_{step}"] = [*rates["heads"], rates["layer_attention"]]
        result.append(
            {
                key: [None if value is None else round(value, 5) for value in values]
                for key, values in measures.items()
            }
        )
    return result


def sentence_data(
    codec: Codec, seen: PairAttention, translations: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The words of a pair, the weights of all heads, and the model's translation if it is given."""
    packed = base64.b64encode(zlib.compress(quantised(seen), level=9))
    data = {
        "source": side_data(codec.source, seen.pair.source),
        "target": side_data(codec.target, seen.pair.target),
        "weights": packed.decode(),
    }
    if translations is not None:
        data["translation"] = translations[seen.pair.index]
    return data


def side_data(codec: SideCodec, side: Segmentation) -> dict[str, Any]:
    """The words, the subwords without the end token, and the word of each subword."""
    pieces = [codec.vocabulary.piece(number) for number in side.ids[:-1]]
    return {"words": side.words, "pieces": pieces, "word_of_piece": side.word_of_piece}


def quantised(seen: PairAttention) -> bytes:
    """The largest weight of every head as float32, then one signed byte per weight.

    Heads are ordered by type, layer and index. A byte n stands for the largest weight times
    (n / LEVELS)^2, with the sign of n; it is 0 only for weights that are exactly 0.
    """
    order = {type_: number for number, type_ in enumerate(TYPES)}
    sites: list[Site] = sorted(seen.weights, key=lambda site: (order[site.type], site.layer))
    scales, levels = [], []
    for site in sites:
        largest, bytes_ = quantise(seen.weights[site])
        scales.append(largest.astype("<f4").tobytes())
        levels.append(bytes_.tobytes())
    return b"".join([*scales, *levels])


def quantise(
    weights: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """The largest absolute weight [H] and the levels [H, Q, K] of weights [H, Q, K]."""
    largest = np.abs(weights).max(axis=(1, 2))
    sizes = np.abs(weights) / np.maximum(largest, np.finfo(np.float32).tiny)[:, None, None]
    levels = np.maximum(np.rint(LEVELS * np.sqrt(sizes)), weights != 0)
    return largest, (np.sign(weights) * levels).astype(np.int8)


def pictured_heads(
    measured: Sequence[Measured],
    *,
    sentence: int | None = None,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
) -> list[HeadWeights]:
    """For each model a few heads of one layer of cross-attention on one sentence.

    `sentence` counts from 1. By default it is one of readable length, the layer is the middle one,
    and the heads are some that differ.
    """
    places = set.intersection(*(set(one.shown) for one, _ in measured))
    if sentence is not None:
        places &= {sentence - 1}
        if not places:
            raise UserError(f"--sentence {sentence}: has too many subwords; see --max-length")
    if not places:
        return []
    of_first = measured[0][0].shown
    place = min(
        sorted(places), key=lambda place: abs(of_first[place].pair.length - PICTURED_LENGTH)
    )
    return [
        head_weights(one.result, codec, one.shown[place], layer=layer, heads=heads)
        for one, codec in measured
    ]


def head_weights(
    model: ModelResult,
    codec: Codec,
    seen: PairAttention,
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
) -> HeadWeights:
    """Heads of a layer of cross-attention on one sentence (see `pictured_heads`)."""
    layers = model.layers("cross")
    layer = (len(layers) - 1) // 2 if layer is None else layer
    weights = seen.weights[Site("cross", layer)]
    chosen = list(dict.fromkeys(heads or differing_heads(model, layers[layer]["heads"])))
    return HeadWeights(
        model=model.name,
        layer=layer,
        sentence=seen.pair.index + 1,
        queries=[*side_data(codec.target, seen.pair.target)["pieces"], "⟨end⟩"],
        keys=[*side_data(codec.source, seen.pair.source)["pieces"], "⟨end⟩"],
        heads={head: weights[head] for head in chosen},
        normalised=not model.nullable["cross"],
    )


def differing_heads(model: ModelResult, of_heads: Mapping[str, Sequence[float]]) -> list[int]:
    """A few heads of a layer that differ in null rate, or else in sparsity."""
    order = sorted(
        range(model.num_heads),
        key=lambda head: (of_heads["null_rate"][head], of_heads["sparsity"][head]),
    )
    count = min(PICTURED_HEADS, len(order))
    return sorted(order[round(step)] for step in np.linspace(0, len(order) - 1, count))
