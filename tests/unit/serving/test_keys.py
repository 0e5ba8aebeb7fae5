"""Keys of clients and the requests that they allow."""

from pathlib import Path

import pytest

from nmt.errors import DataError
from nmt.serving.keys import Keys
from nmt.serving.waiting import RefusedError

KEY = "0123456789abcdef"


def test_a_key_gives_the_name_of_its_client_and_is_refilled(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# all\none {KEY}\n\ntwo {KEY}x 60  # per minute\n", encoding="utf-8")
    keys = Keys.read(path)
    assert [keys.check(KEY) for _ in range(100)] == ["one"] * 100
    assert [keys.check(f"{KEY}x") for _ in range(60)] == ["two"] * 60
    with pytest.raises(RefusedError) as refused:
        keys.check(f"{KEY}x")
    assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "1"})
    keys.keys[1].updated -= 2.0  # as if two seconds had passed
    assert keys.check(f"{KEY}x") == "two"
    for wrong in (None, "", KEY[:-1], f"{KEY}\ud800"):
        with pytest.raises(RefusedError) as refused:
            keys.check(wrong)
        assert refused.value.status == 403


def test_a_hash_within_a_key_is_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f" # all\none {KEY}#more 60 #two {KEY}\n#\n", encoding="utf-8")
    keys = Keys.read(path)
    assert keys.check(f"{KEY}#more") == "one"
    with pytest.raises(RefusedError):
        keys.check(KEY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines"),
        ("one\n", ":1: expected `NAME KEY"),
        (f"a {KEY}\na {KEY}\n", ":2: there is another key of the name a"),
        (f"a {KEY}\nb {KEY}x\nc {KEY} 60\n", ":3: the key of c is that of a, too"),
        (f"a {KEY} 0\n", "1 to 1,000,000 requests"),
        (f"a {KEY} ten\n", "1 to 1,000,000 requests"),
        (f"a {KEY} {'9' * 5000}\n", "1 to 1,000,000 requests"),
        ("a short\n", "at least 16 characters"),
    ],
)
def test_a_bad_file_is_refused_without_showing_keys(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        Keys.read(path)
    assert message in str(refused.value)
    assert KEY not in str(refused.value)
