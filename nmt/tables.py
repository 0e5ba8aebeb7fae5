"""Tables of text cells, written as Markdown, as LaTeX or as plain text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# An underscore inside a word is no markup and is left alone, so that `gain_init` stays readable.
MARKDOWN = re.compile(r"[\\`*{}\[\]<>#|]|(?<![^\W_])_|_(?![^\W_])")
LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
    }
)


@dataclass(frozen=True)
class Table:
    """Cells as plain text. The first `labels` columns name a row, the others hold its numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    title: str = ""
    note: str = ""

    def markdown(self) -> str:
        """The table in Markdown, without title and note; labels align left, numbers right."""
        rule = ["---" if place < self.labels else "---:" for place in range(len(self.columns))]
        rows = [[escape_markdown(cell) for cell in row] for row in (self.columns, *self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))

    def text(self) -> str:
        """Lines of plain text, without title and note; labels align left, numbers right."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]
        lines = []
        for row in (self.columns, *self.rows):
            cells = [
                cell.ljust(width) if place < self.labels else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def latex(self) -> str:
        """A LaTeX table environment for the package booktabs, with title and note as caption."""
        alignment = "l" * self.labels + "r" * (len(self.columns) - self.labels)
        header, *rows = [
            " & ".join(escape_latex(cell) for cell in row) + r" \\"
            for row in (self.columns, *self.rows)
        ]
        caption = ": ".join(part for part in (self.title, self.note) if part)
        return "\n".join(
            [
                r"% \usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{{alignment}}}",
                r"\toprule",
                header,
                r"\midrule",
                *rows,
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{escape_latex(caption)}}}",
                r"\end{table}",
            ]
        )


def escape_markdown(text: str) -> str:
    """Text that Markdown renders as it is, on one line."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return MARKDOWN.sub(lambda match: f"\\{match[0]}", plain)


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return text.translate(LATEX)
