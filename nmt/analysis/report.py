"""Builds report.html: one file that contains everything and runs no script but its own.

All text goes into one JSON element, in which no character can end a script, and is shown as plain
text. A Content-Security-Policy allows the script and the style sheet by their hashes, and no
connections.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

import numpy as np

from nmt.analysis.analyze import ModelAnalysis
from nmt.analysis.explorer_data import model_data, side_data
from nmt.analysis.figures import PICTURED_HEADS, HeadWeights, Picture
from nmt.analysis.pairs import PairAttention
from nmt.analysis.results import Analysis, ModelResult, learned_names
from nmt.data.codec import Codec
from nmt.errors import UserError
from nmt.model.observe import Site
from nmt.tables import Table

# In the order in which they import each other; nmt-serve serves those of the explorer as they are.
REPORT_SCRIPTS = (
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
    script = MODULE_SYNTAX.sub("", "".join(page_file(name) for name in REPORT_SCRIPTS))
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
