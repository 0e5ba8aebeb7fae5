"""The colours of the pages: text and controls are easy to see, in light and in dark (WCAG AA)."""

import re

import pytest
from matplotlib.colors import to_rgb

from nmt.analysis.report import page_file

TEXT, CONTROL = 4.5, 3.0  # the least contrast
PAIRS = [
    *[(ink, paper, TEXT) for ink in ("ink", "faint", "accent") for paper in ("paper", "soft")],
    ("null-ink", "null", TEXT),
    ("null-ink", "soft", TEXT),
    ("edge", "paper", CONTROL),
    ("accent", "null", CONTROL),
]


def themes() -> dict[str, dict[str, str]]:
    """The variables of the style sheet in light and in dark."""
    style = page_file("explorer/explorer.css")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w+);", block))
        for block in re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)[:2]
    )
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in to_rgb(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("front", "back", "least"), PAIRS)
def test_contrast(theme: str, front: str, back: str, least: float) -> None:
    colours = themes()[theme]
    high, low = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= least
