"""Line numbers of keys, in every way that TOML lets one write them."""

from __future__ import annotations

import tomllib

import pytest

from governor.policy.lines import key_lines

TEXT = '''\
# a comment with = and [brackets]
base = "hermes"   # output.final = 1

output.final = 1
"models" = [
  "a",  # ] not the end
  "b]",
]
stream = { keepalive = "chunk", keepalive_after_s = 3.0 }

[limits]
hold_s = 5
  concurrency=2

[ request . sampling ]
"top p" = 0.5
"q\\u0041" = 1
'single.quoted' = """
final = 3
[not.a.table]
""\\"\\"\\""""
after = \'\'\'
x = 1\'\'\'
when = 1979-05-27 07:32:00 # date
last = [{ inside = 1 }, [
]]
end = 1
'''


def test_every_form_of_key_has_its_line() -> None:
    tomllib.loads(TEXT)
    assert key_lines(TEXT) == {
        ("base",): 2,
        ("output",): 4,
        ("output", "final"): 4,
        ("models",): 5,
        ("stream",): 9,
        ("stream", "keepalive"): 9,
        ("stream", "keepalive_after_s"): 9,
        ("limits",): 11,
        ("limits", "hold_s"): 12,
        ("limits", "concurrency"): 13,
        ("request",): 15,
        ("request", "sampling"): 15,
        ("request", "sampling", "top p"): 16,
        ("request", "sampling", "qA"): 17,
        ("request", "sampling", "single.quoted"): 18,
        ("request", "sampling", "after"): 22,
        ("request", "sampling", "when"): 24,
        ("request", "sampling", "last"): 25,
        ("request", "sampling", "end"): 27,
    }


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_of_both_worlds(newline: str) -> None:
    text = newline.join(["[a]", "", "x = 1", "[a.b]", "y = 2", "[[c]]", "z = 3", "[[c]]", "z = 4"])
    assert key_lines(text) == {
        ("a",): 1,
        ("a", "x"): 3,
        ("a", "b"): 4,
        ("a", "b", "y"): 5,
        ("c",): 6,
        ("c", "z"): 7,
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment", "a = ''", 'a = ""', "a = {}", "a = []", "a = 1"])
def test_small_texts(text: str) -> None:
    assert set(key_lines(text)) == {(name,) for name in tomllib.loads(text)}
