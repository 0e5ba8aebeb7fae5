"""Figures: which there are, and what their pixels say."""

import dataclasses
import io

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from nmt.analysis.figures import (
    COLOURS,
    NULL_COLOUR,
    HeadWeights,
    alignment_drawing,
    all_pictures,
    coloured,
    density_edges,
    density_shares,
    heads_drawing,
    learned_drawing,
    look,
    null_drawing,
    sparsity_drawing,
)
from nmt.analysis.plotting import legend, new_figure, styled
from nmt.analysis.results import ATTENTION_TYPES, Analysis, ModelResult

WEIGHTS = np.array([[0.0, 0.5, 2.0], [0.0, 0.0, 0.0], [0.25, 0.0, -0.5]], dtype=np.float32)


def model(name: str, *, nullable: bool, learned: str | None = None) -> ModelResult:
    layer = {
        "sparsity": 0.5,
        "null_rate": 0.1,
        "shuffled_null_rate": 0.2,
        "entropy": 1.0,
        "diversity": {"plain": 0.5},
        "heads": {
            "density": [[1, 2, 3], [0, 4]],
            "sparsity": [0.5, 0.5],
            **({learned: [1.3, 1.7]} if learned else {}),
        },
    }
    return ModelResult(
        name=name,
        path=name,
        parameters=1,
        attention=dict.fromkeys(ATTENTION_TYPES, "rela-g"),
        nullable=dict.fromkeys(ATTENTION_TYPES, nullable),
        statistics={type_: {"layer_0": layer, "layer_1": layer} for type_ in ATTENTION_TYPES},
    )


def test_all_variants_of_a_grid_look_different() -> None:
    assert len({tuple(look(number).values()) for number in range(50)}) == 50
    assert len({look(number)["color"] for number in range(12)}) == 12


def test_a_legend_of_long_names_fits_into_its_figure() -> None:
    with styled():
        figure = new_figure(6.5, 3.6)
        entries = {f"rela-g-encoder-only-{n}": Line2D([], []) for n in range(10)}
        legend(figure, entries)
        figure.canvas.draw()
        box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def analysis(*models: ModelResult) -> Analysis:
    return Analysis("a", "b", 3, 1, list(models))


def names(*models: ModelResult) -> list[str]:
    return [picture.name for picture in all_pictures(analysis(*models), [])]


def test_only_figures_with_something_to_show() -> None:
    plain = model("plain", nullable=False)
    assert names(plain) == ["sparsity", "diversity", "density"]
    row = {"layer_attention": 0.5, "best_head_aer": 0.25}
    aer = {step: {"layers": [row, row]} for step in ("normal", "shifted")}
    rated = dataclasses.replace(model("rela", nullable=True, learned="threshold"), aer=aer)
    assert names(plain, rated, model("entmax", nullable=False, learned="alpha")) == [
        "sparsity",
        "alignment",
        "diversity",
        "null_rate",
        "density",
        "threshold",
        "alpha",
    ]


def test_titles_name_model_sublayer_layer_and_sentence() -> None:
    drawing = heads_drawing(0, HeadWeights("mine", 1, 8, "abc", "def", {2: WEIGHTS}), "test.en")
    drawing.render(pdf=False)
    title = "Cross-attention of mine, layer 1, sentence 8 of test.en"
    assert drawing.figure.get_suptitle() == title
    assert drawing.figure.axes[0].get_title().startswith("head 2, 33 % null")
    whole = sparsity_drawing(analysis(model("mine", nullable=True)))
    assert whole is not None
    whole.render(pdf=False)
    assert whole.figure.get_suptitle() == "Sparsity rate, 3 pairs of a and b"


def test_panels_that_cannot_have_content_are_left_out() -> None:
    mixed = model("mixed", nullable=False, learned="alpha")
    mixed.nullable["cross"] = True
    layer = mixed.statistics["encoder_self"]["layer_0"]
    dense = {**layer, "sparsity": 0.0, "heads": {"density": [[0, 1]], "sparsity": [0.0]}}
    mixed.statistics["encoder_self"] = {"layer_0": dense}
    whole = analysis(mixed)
    shown = {
        name: [axes.get_title() for axes in drawing.figure.axes]
        for name, drawing in {
            "null": null_drawing(whole),
            "sparsity": sparsity_drawing(whole),
            "alpha": learned_drawing(whole, "alpha"),
        }.items()
        if drawing is not None
    }
    both = ["decoder self-attention", "cross-attention"]
    assert shown == {"null": ["cross-attention"], "sparsity": both, "alpha": both}
    softmax = analysis(
        dataclasses.replace(
            model("softmax", nullable=False),
            statistics={type_: {"layer_0": dense} for type_ in ATTENTION_TYPES},
        )
    )
    assert "sparsity" not in [picture.name for picture in all_pictures(softmax, [])]


def test_a_mean_has_a_band_from_the_lowest_to_the_highest_seed() -> None:
    def rated(rate: float) -> ModelResult:
        one = model("mean", nullable=True)
        layer = {**one.statistics["cross"]["layer_0"], "sparsity": rate, "null_rate": rate}
        statistics = {type_: {"layer_0": layer, "layer_1": layer} for type_ in ATTENTION_TYPES}
        row = {"layer_attention": 0.9, "best_head_aer": rate}
        aer = {step: {"layers": [row, row]} for step in ("normal", "shifted")}
        return dataclasses.replace(one, statistics=statistics, aer=aer)

    seeds = [rated(0.25), rated(0.75)]
    for draw in (sparsity_drawing, null_drawing, alignment_drawing):
        whole = dataclasses.replace(analysis(rated(0.5)), seeds={"mean": seeds})
        drawing, alone = draw(whole), draw(analysis(rated(0.5)))
        assert drawing is not None
        assert alone is not None
        for axes in drawing.figure.axes:
            (band,) = axes.collections
            assert {y for _, y in band.get_paths()[0].vertices} == {25.0, 75.0}
        assert not any(axes.collections for axes in alone.figure.axes)
        assert "seeds" not in whole.document()


def test_a_model_has_its_colour_in_the_picture() -> None:
    first, second = (model(name, nullable=True) for name in ("one", "two"))
    (picture, *_) = all_pictures(analysis(first, second), [])
    pixels = image.imread(io.BytesIO(picture.png), format="png")[..., :3]
    # Both curves have the same values, so the first shows in the legend only.
    for number in range(2):
        near = np.abs(pixels - np.array(to_rgb(COLOURS[number]))).max(axis=-1) < 0.02
        assert near.sum() > 50
    assert look(0) != look(1)


def test_pictures_are_the_same_each_time_and_take_any_text() -> None:
    odd = ["$\\frac{", "_hidden", "<b>", "שלום", "日本", "\x07", "‮"]
    heads = HeadWeights("$x_", 0, 3, odd[:3], odd[3:6], {0: WEIGHTS, 5: WEIGHTS})
    whole = analysis(model("_$\\alpha$ & co", nullable=True))
    first, second = (all_pictures(whole, [heads], pdf=True) for _ in range(2))
    assert [(one.png, one.pdf) for one in first] == [(one.png, one.pdf) for one in second]
    assert "heads_0" in [one.name for one in first]


def test_zeros_are_white_and_null_rows_have_their_colour() -> None:
    pixels = coloured(WEIGHTS, normalised=False)
    assert (pixels[0, 0] == 1.0).all()
    assert (pixels[2, 1] == 1.0).all()
    np.testing.assert_allclose(pixels[1], np.tile(to_rgb(NULL_COLOUR), (3, 1)))
    # Darker is more.
    assert pixels[0, 2].sum() < pixels[0, 1].sum() < pixels[2, 0].sum() < 3.0
    # A negative weight is red, not blue.
    assert pixels[2, 2][0] > pixels[2, 2][2]
    assert pixels[0, 1][0] < pixels[0, 1][2]


def test_shades_of_weights_that_sum_to_one_are_absolute() -> None:
    even = np.full((1, 4), 0.25)
    assert coloured(even, normalised=True).sum() > coloured(even, normalised=False).sum()
    assert (coloured(even, normalised=True) == coloured(even / 0.25, normalised=True)).mean() < 0.5


def test_density_is_over_heads_and_layers() -> None:
    # Two layers of heads with counts 1, 2, 3 and 0, 4.
    assert density_shares(model("x", nullable=True), "cross") == pytest.approx(
        np.array([2, 12, 6]) / 20
    )


@pytest.mark.parametrize("last", [0, 1, 29, 30, 31, 200])
def test_bars_cover_all_numbers_once(last: int) -> None:
    edges = density_edges(last)
    assert edges[0] == 0
    assert edges[1] == 1  # null queries have a bar of their own
    assert edges[-1] > last
    assert (np.diff(edges) > 0).all()
    assert len(edges) <= 33
