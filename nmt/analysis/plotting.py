"""The look of all figures, and PNG and PDF files from them.

Every model has its own colour and marker in all figures. They can be told apart without colour
vision and in print without colours.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, without its yellow, which is too light for lines on white.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#332288", "#44AA99", "#AA7744"),  # for grids of many variants
)
MARKS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
DPI = 160
TITLE_SIZE = 11.0
NOT_WRITTEN = {"png": ("Software",), "pdf": ("Creator", "Producer", "CreationDate")}
PLOT_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType, so that text in a PDF can be searched and edited
    "text.parse_math": False,  # a dollar sign in a word is a dollar sign
}
# The first font that has a character is used.
FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans")


@contextmanager
def styled() -> Iterator[None]:
    """Use our style, whatever the user's own settings of matplotlib are."""
    import matplotlib
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    family = [font for font in FONTS if font in installed]
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**PLOT_STYLE, "font.family": family or ["sans-serif"]})
        # A character that no font has is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def new_figure(width: float, height: float) -> "Figure":
    """A figure outside pyplot, which would keep global state; sizes are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: "Figure") -> bytes:
    """The figure as a PNG file."""
    return render(figure, "png")


def render(figure: "Figure", kind: Literal["png", "pdf"]) -> bytes:
    """The figure as a file, without a date or a version, so that equal figures have equal bytes."""
    data = io.BytesIO()
    figure.savefig(data, format=kind, metadata=dict.fromkeys(NOT_WRITTEN[kind]))
    return data.getvalue()


def look(number: int) -> dict[str, Any]:
    """The colour and marker of a model."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}


def draw_band(
    axes: "Axes", places: Sequence[int], values: Sequence[Sequence[float]], colour: str
) -> None:
    """Shade the range from the lowest to the highest of several values at each place."""
    if any(len(of_place) > 1 for of_place in values):
        lowest, highest = ([extreme(of_place) for of_place in values] for extreme in (min, max))
        axes.fill_between(places, lowest, highest, color=colour, alpha=0.15, linewidth=0)


def legend(figure: "Figure", entries: dict[str, Any]) -> None:
    """Add a legend below all panels."""
    # matplotlib leaves out labels that begin with an underscore.
    labels = [f" {label}" if label.startswith("_") else label for label in entries]
    # A column has a handle of 0.7 inches and letters of at most a tenth of an inch.
    width = 0.7 + 0.1 * max(map(len, labels), default=0)
    columns = max(1, min(len(labels), 4, int(figure.get_figwidth() / width)))
    figure.legend(list(entries.values()), labels, loc="outside lower center", ncols=columns)
