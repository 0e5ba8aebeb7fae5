"""Hostile and broken YAML is refused at once, without being built."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.loading import load_config, parse_config
from nmt.errors import ConfigError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

HOSTILE = {
    "python tag": ("a: !!python/object/apply:os.system ['touch /tmp/x']", ":1: ", "tags"),
    "python name": ("run_dir: !!python/name:os.system", ":1: ", "tags"),
    "harmless tag": ("seed: !!int 1", ":1: ", "tags"),
    "own tag": ("x: 1\nseed: !x 1", ":2: ", "tags"),
    "binary tag": ("run_dir: !!binary aGVsbG8=", ":1: ", "tags"),
    "alias bomb": (BOMB, ":1: ", "anchors"),
    "anchor": ("x: &a 1", ":1: ", "anchors"),
    "alias": ("x: *a", ":1: ", "anchors"),
    "merge": ("a: &a {b: 1}\nc:\n  <<: *a", ":1: ", "anchors"),
    "recursive": ("&a [*a]", ":1: ", "anchors"),
    "brackets": ("a: " + "[" * 3000 + "]" * 3000, ":1: ", "levels of nesting"),
    "braces": ("a: " + "{a: " * 3000 + "}" * 3000, ":1: ", "levels of nesting"),
    "open brackets": ("[" * 300_000, ":1: ", "levels of nesting"),
    "indents": ("\n".join(" " * n + "a:" for n in range(300)), ":50: ", "levels of nesting"),
    "dashes": ("- " * 3000, ":1: ", "levels of nesting"),
    "large": ("# " + "x" * 2_000_000, "", "at most 1,000,000 bytes"),
    "many keys": ("\n".join(f"k{n}: 1" for n in range(60_000)), ":10000: ", "values"),
    "many items": ("a: [" + "1," * 300_000 + "]", ":1: ", "values"),
    "unknown keys": ("\n".join(f"k{n}: 1" for n in range(9_000)), ":1: ", "... and 8902 more"),
    "a long key": ("? " + "x" * 900_000 + "\n: 1", ":1: ", "xxx...'"),
    "a long value": ("seed: " + "x" * 900_000, ":1: ", "xxx...'"),
    "control characters in a key": ('"\\e[2J": {a: 1, a: 1}', ":1: ", "'\\x1b[2J'"),
    "two documents": ("seed: 1\n---\nseed: 2", ":2: ", "one YAML document"),
    "a list as key": ("[a, b]: 1", ":1: ", "as key"),
    "no key": ("~: 1", ":1: ", "as key"),
    "a list": ("- a\n- b", ":1: ", "expected a mapping"),
    "a word": ("seed", ":1: ", "expected a mapping"),
    "tab": ("data:\n\tx: 1", ":2: ", "not valid YAML: the line is indented with a tab; use spaces"),
    "unclosed": ("seed: [1, 2\nx: 3", ":2: ", "not valid YAML"),
    "unclosed quote": ("seed: 'x\n", "", "not valid YAML"),
    "control character": ("seed: \x07", "", "not valid YAML"),
    "nothing": ("", ":1: ", "run_dir: missing"),
    "only comments": ("# x\n# y\n", ":1: ", "data: missing"),
}


@pytest.mark.parametrize(("text", "line", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_documents_are_refused(write, text, line, reason):
    path = write("hostile.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert reason in message
    assert f"hostile.yaml{line}" in message
    assert len(message) < 30_000


@pytest.mark.clock
@pytest.mark.parametrize("text", [text for text, _, _ in HOSTILE.values()], ids=HOSTILE.keys())
def test_hostile_documents_are_refused_fast(write, text):
    path = write("hostile.yaml", text)
    started = time.process_time()
    with pytest.raises(ConfigError):
        load_config(path)
    assert time.process_time() - started < 2.0


def test_duplicates_are_found_at_any_depth_with_both_lines(write):
    text = "run_dir: x\nmodel:\n  attention:\n    cross:\n      k: 1\n      k: 2\nmodel: {}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write("c.yaml", text))
    message = str(caught.value)
    assert (
        "c.yaml:6: model.attention.cross: key 'k' is given twice, on line 5 and on line 6"
        in message
    )
    assert "c.yaml:7: key 'model' is given twice, on line 2 and on line 7" in message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot read .*No such file"):
        load_config(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match=r"cannot read .*directory"):
        load_config(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("# ok\nrun_dir: caf\u00e9\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: expected UTF-8"):
        load_config(latin)


def test_a_byte_order_mark_is_dropped(write):
    example = (Path(__file__).parent / "example.yaml").read_text(encoding="utf-8")
    config = load_config(write("plain.yaml", example))
    assert load_config(write("marked.yaml", "\ufeff" + example)) == config


EXAMPLE = (Path(__file__).parent / "example.yaml").read_text(encoding="utf-8")


@given(
    start=st.integers(0, len(EXAMPLE)),
    length=st.integers(0, 40),
    text=st.text(max_size=20) | st.text(" \n\t-:,[]{}&*!|>'\"%@`#?~0129.eE_", max_size=20),
)
def test_any_damage_is_survived_or_a_config_error(start, length, text):
    damaged = EXAMPLE[:start] + text + EXAMPLE[start + length :]
    with contextlib.suppress(ConfigError):
        parse_config(damaged, name="damaged.yaml", directory=Path("/"))


@given(st.text(max_size=30) | st.text("seddatmodel.train=[]{}:&*!'\"~ ", max_size=30))
def test_any_override_is_survived_or_a_config_error(override):
    with contextlib.suppress(ConfigError):
        load_config(Path(__file__).parent / "example.yaml", [override, f"model.{override}"])
