"""A report of tables and figures, written as one HTML file and as Markdown."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from nmt.analysis.figures import Picture
from nmt.tables import Table, escape_markdown

PAGE_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid #ddd; padding: 0.2rem 0.6rem; text-align: right; }
th.label, td.label { text-align: left; }
.wide { overflow-x: auto; }
.missing { background: #fff3cd; border-left: 4px solid #e0a800; padding: 0.5rem 1rem; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption, .note { color: #444; }
"""


@dataclass(frozen=True)
class Section:
    """A heading with its tables and figures, or with what is missing and how to get it."""

    title: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    missing: str = ""


@dataclass(frozen=True)
class Document:
    """The report."""

    title: str
    introduction: str
    sections: Sequence[Section]

    @property
    def pictures(self) -> list[Picture]:
        """The figures of all sections."""
        return [picture for section in self.sections for picture in section.pictures]

    def markdown(self) -> str:
        """The report in Markdown; figures are files beside it."""
        lines = [f"# {self.title}", "", self.introduction]
        for section in self.sections:
            lines += ["", f"## {section.title}"]
            if section.missing:
                lines += ["", f"**Missing.** {section.missing}"]
            for table in section.tables:
                lines += ["", table.markdown(), "", f"{escape_markdown(table.note)}."]
            for picture in section.pictures:
                name = escape_markdown(picture.title)
                lines += ["", f"![{name}]({picture.name}.png)", ""]
                lines.append(f"{escape_markdown(picture.caption)}. ([PDF]({picture.name}.pdf))")
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """The report as one HTML file that contains its figures and runs no script."""
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
            f"<title>{escape(self.title)}</title><style>{PAGE_STYLE}</style></head><body>",
            f"<h1>{escape(self.title)}</h1><p>{escape(self.introduction)}</p>",
        ]
        for section in self.sections:
            parts.append(f"<h2>{escape(section.title)}</h2>")
            if section.missing:
                parts.append(f'<p class="missing">Missing. {escape(section.missing)}</p>')
            parts += [html_table(table) for table in section.tables]
            parts += [html_picture(picture) for picture in section.pictures]
        return "\n".join([*parts, "</body></html>"]) + "\n"


def html_table(table: Table) -> str:
    """A table with its note."""

    def row(cells: Sequence[str], tag: str) -> str:
        marked = [
            f'<{tag} class="label">' if place < table.labels else f"<{tag}>"
            for place in range(len(cells))
        ]
        inner = "".join(
            f"{start}{escape(cell)}</{tag}>" for start, cell in zip(marked, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    head = row(table.columns, "th")
    return (
        f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">{escape(table.note)}.</p>'
    )


def html_picture(picture: Picture) -> str:
    """A figure with its caption."""
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.title)}. {escape(picture.caption)}.</figcaption></figure>"
    )
