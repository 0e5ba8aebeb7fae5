"""Test sets come out of SGML in order, one segment per line, entities and all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.recipes.sgm import read_parallel, read_segments, unescape

SOURCE = """<srcset setid="newstest2016" srclang="any">
<doc sysid="ref" docid="a.ro" genre="news" origlang="ro">
<p>
<seg id="1">Ana &amp; Ion: &quot;2 &lt; 3&quot; &#259; &#x219;.</seg>
<seg id="2">  two
   lines  </seg>
</p>
</doc>
<DOC docid='b.ro'><hl><SEG id=1>AT&amp;T&apos;s &euro; &amp;lt;</SEG></hl></DOC>
</srcset>
"""


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_segments_are_unwrapped_in_order(tmp_path):
    segments = read_segments(write(tmp_path / "a.sgm", SOURCE))
    assert [(each.document, each.number) for each in segments] == [
        ("a.ro", "1"),
        ("a.ro", "2"),
        ("b.ro", "1"),
    ]
    assert [each.text for each in segments] == [
        'Ana & Ion: "2 < 3" ă ș.',
        "two lines",
        "AT&T's &euro; &lt;",
    ]


def test_both_sides_have_to_hold_the_same_segments(tmp_path):
    source = write(tmp_path / "src.sgm", SOURCE)
    target = write(tmp_path / "ref.sgm", SOURCE.replace("srcset", "refset"))
    left, right = read_parallel(source, target)
    assert left == right
    write(target, SOURCE.replace("docid='b.ro'", "docid='c.ro'"))
    with pytest.raises(DataError, match=r"segment 1 of 'b.ro' .* 1 of 'c.ro'"):
        read_parallel(source, target)
    write(target, SOURCE.replace("<SEG id=1>AT&amp;T&apos;s &euro; &amp;lt;</SEG>", ""))
    with pytest.raises(DataError, match=r"has 3 segments but .* has 2"):
        read_parallel(source, target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<seg id="1">a\n<seg id="2">b</seg>', r"a.sgm:1: a <seg> that has no </seg>"),
        ('<doc>\n\n<seg id="1">a', r"a.sgm:3: a <seg> that has no </seg>"),
        ("<doc></doc>", "expected <seg> elements"),
    ],
)
def test_what_is_broken_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_segments(write(tmp_path / "a.sgm", text))


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "a.sgm").write_bytes(b'<doc>\n<seg id="1">\xff</seg>')
    with pytest.raises(DataError, match=r"a.sgm:2: invalid UTF-8 \(byte 18\)"):
        read_segments(tmp_path / "a.sgm")


@pytest.mark.parametrize("text", ["&#0;", "&#xD800;", "&#9999999;", "&#x110000;", "&;", "&nbsp;"])
def test_impossible_characters_stay_as_they_are(text):
    assert unescape(text) == text


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters=" \t\r\n"), min_size=1)))
def test_any_text_survives(tmp_path_factory, lines):
    def escape(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    path = tmp_path_factory.getbasetemp() / "any.sgm"
    body = "".join(f'<seg id="{n}"> {escape(line)} </seg>\n' for n, line in enumerate(lines))
    write(path, f'<doc docid="d">{body}<seg id="end">x</seg></doc>')
    assert [each.text for each in read_segments(path)] == [*lines, "x"]
