"""The page: what is packed into it, and that text cannot get out of its place."""

import base64
import hashlib
import json
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nmt.analysis.explorer_data import WEIGHT_LEVELS, quantise
from nmt.analysis.report import assemble, page_file, script_json

ODD = ["</script><script>alert(1)</script>", "<!--", "{{script}}", "a\u2028b\u2029", '"\\', "שלום"]

weights = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    elements=st.one_of(st.just(0.0), st.floats(-8, 8, width=32)),
)


@given(weights)
def test_levels_are_zero_where_weights_are_and_near_elsewhere(weights: np.ndarray) -> None:
    largest, levels = quantise(weights)
    assert ((levels == 0) == (weights == 0)).all()
    assert (np.sign(levels) == np.sign(weights)).all()
    sizes = (np.abs(levels.astype(np.float64)) / WEIGHT_LEVELS) ** 2 * largest[:, None, None]
    # Half a level, which is widest at the largest weight; the smallest level is never rounded off.
    error = np.abs(sizes - np.abs(weights.astype(np.float64)))
    assert (error <= largest[:, None, None] * 1.01 / WEIGHT_LEVELS + 1e-12).all()


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_comes_back_and_has_no_markup(value: object) -> None:
    text = script_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


def page(data: object) -> str:
    return assemble(data).decode()


def elements(html: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", html, flags=re.DOTALL)


def test_the_policy_names_exactly_the_script_and_style_of_the_page() -> None:
    html = page(ODD)
    data, script = elements(html, "script")
    (style,) = elements(html, "style")
    assert json.loads(data) == ODD
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    hashes = re.findall(r"'sha256-([^']*)'", policy)
    assert hashes == [
        base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        for content in (script, style)
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_page_loads_nothing() -> None:
    html = page([])
    assert not re.search(r"\b(?:https?:|//[a-z]|@import|url\()", html.replace("// ", ""))
    assert "innerHTML" not in html
    assert "{{" not in html.replace("${{", "")
    assert page_file("report_page/page.html").count("{{") == 4
