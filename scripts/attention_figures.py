"""Draws the figures of docs/sparse_attention.md and prints its table of weights.

python scripts/attention_figures.py [--output DIR]
"""

import argparse
from pathlib import Path

import torch

from nmt.analysis.plotting import COLOURS, GREY, new_figure, png, styled
from nmt.config.config import AttentionConfig

SCORES = (2.0, 1.2, 0.9, 0.1, -0.6, -1.5)
KINDS = (
    AttentionConfig("softmax"),
    AttentionConfig("entmax", alpha=1.2),
    AttentionConfig("entmax15"),
    AttentionConfig("sparsemax"),
    AttentionConfig("topk", k=2),
    AttentionConfig("rela-g"),
    AttentionConfig("rela-g", activation="squared_relu"),
)
FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def weights(kind: AttentionConfig, rows: torch.Tensor) -> torch.Tensor:
    """The weights [N, K] of rows of scores [N, K]: the definition that the model uses."""
    mapping = kind.row.mapping(kind.values)
    return mapping.weights(rows[None, None], None)[0, 0]


def table() -> str:
    """The weights of one row of scores for each kind, as Markdown."""
    row = torch.tensor([SCORES])
    lines = [
        f"| scores | {' | '.join(f'{score:g}' for score in SCORES)} | sum |",
        "|---" * (len(SCORES) + 2) + "|",
    ]
    for kind in KINDS:
        found = weights(kind, row)[0].tolist()
        cells = ["0" if weight == 0.0 else f"{weight:.3f}" for weight in found]
        lines.append(f"| {kind} | {' | '.join(cells)} | {sum(found):.3f} |")
    return "\n".join(lines) + "\n"


def draw_two_keys() -> bytes:
    """The weight of the first of two keys by the difference of their scores; beside it ReLA's."""
    difference = torch.linspace(-3, 3, 301)
    rows = torch.stack([difference, torch.zeros(301)], dim=-1)
    with styled():
        figure = new_figure(8.4, 3.2)
        left, right = figure.subplots(1, 2)
        for kind, colour in zip(KINDS[:4], COLOURS, strict=False):
            left.plot(difference, weights(kind, rows)[:, 0], color=colour, label=str(kind))
        left.set(
            title="Weights that sum to 1: one of two keys",
            xlabel="score of the key - score of the other key",
            ylabel="weight of the key",
        )
        for kind, colour in zip(KINDS[5:], COLOURS[4:], strict=False):
            right.plot(difference, weights(kind, rows)[:, 0], color=colour, label=str(kind))
        right.set(
            title="ReLA: each key by itself",
            xlabel="score of the key",
            ylabel="weight of the key",
            ylim=(-0.1, 3.1),
        )
        for axes in (left, right):
            axes.legend(fontsize=8.5)
        return png(figure)


def draw_row() -> bytes:
    """The weights of one row of scores, a panel per kind; a cross marks a weight of exactly 0."""
    row = torch.tensor([SCORES])
    with styled():
        figure = new_figure(8.4, 4.0)
        panels = figure.subplots(2, 4).flatten()
        panels[0].bar(range(len(SCORES)), SCORES, color=GREY)
        panels[0].set_title("scores")
        for axes, kind in zip(panels[1:], KINDS, strict=True):
            found = weights(kind, row)[0].tolist()
            axes.bar(range(len(SCORES)), found, color=COLOURS[0])
            zero = [key for key, weight in enumerate(found) if weight == 0.0]
            axes.plot(zero, [0.0] * len(zero), "x", color=COLOURS[1], clip_on=not zero)
            axes.set_title(str(kind).replace(", activation ", ",\n"))
            axes.set_ylim(0.0, max(1.0, *found))
        for axes in panels:
            axes.set_xticks(range(len(SCORES)))
            axes.grid(visible=False)
        figure.supxlabel("key")
        return png(figure)


def main() -> None:
    """Write the figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=FIGURES, metavar="DIR")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "two_keys.png").write_bytes(draw_two_keys())
    (folder / "one_row.png").write_bytes(draw_row())
    print(table(), end="")


if __name__ == "__main__":
    main()
