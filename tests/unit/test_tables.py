"""One writer of tables: alignment, and text that shows as it is in Markdown and LaTeX."""

import pytest

from nmt.tables import Table, escape_latex, escape_markdown

TABLE = Table(["model", "kind", "x"], [["a|b <c>\n", "", "1"]], labels=2, title="T", note="50 %")


def test_markdown_aligns_and_escapes():
    assert TABLE.markdown().split("\n") == [
        "| model | kind | x |",
        "| --- | --- | ---: |",
        r"| a\|b \<c\>  |  | 1 |",
    ]


def test_latex_has_every_row_and_the_caption():
    lines = TABLE.latex().split("\n")
    assert r"\begin{tabular}{llr}" in lines
    assert r"model & kind & x \\" in lines
    assert r"\caption{T: 50 \%}" in lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("_a_*", r"\_a\_\*"),
        ("gain_init", "gain_init"),
        ("a_ b__c", r"a\_ b\_\_c"),
        ("x\ny\u2028z", "x y z"),
        (r"\[`", r"\\\[\`"),
    ],
)
def test_special_characters_of_markdown(text, expected):
    assert escape_markdown(text) == expected


def test_special_characters_of_latex():
    assert escape_latex(r"\&%$#_{}~^") == (
        r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}"
    )


def test_plain_text_aligns_labels_left_and_numbers_right():
    table = Table(["model", "kind", "x"], [["a", "softmax", "1.25"], ["long name", "", "10.5"]], 2)
    assert table.text().split("\n") == [
        "model      kind        x",
        "a          softmax  1.25",
        "long name           10.5",
    ]
    assert Table(["a", "b"], [["x", ""]], labels=2).text() == "a  b\nx"
