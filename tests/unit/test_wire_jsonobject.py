"""A JSON object as bytes: reading, editing, refusing; and that an edit touches nothing but what it names."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import BadRequest
from governor.wire.jsonobject import JsonObject

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.text(max_size=5) | st.sampled_from(["a", "model", 'q"\\', "é", "a,b", "{", "}:"])
_SPACE = st.text(" \t\r\n", max_size=2)


@st.composite
def _written(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, bytes], bytes]:
    """An object, the bytes of each value, and the whole as somebody might have written it."""
    fields = draw(st.dictionaries(_NAMES, _VALUES, max_size=5))
    raw: dict[str, bytes] = {}
    out = [draw(_SPACE), "{"]
    for place, (name, value) in enumerate(fields.items()):
        written = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1)))
        raw[name] = written.encode()
        key = json.dumps(name, ensure_ascii=draw(st.booleans()))
        out += [draw(_SPACE), key, draw(_SPACE), ":", draw(_SPACE), written, draw(_SPACE)]
        out += [","] if place < len(fields) - 1 else []
    out += [*([] if fields else [draw(_SPACE)]), "}", draw(_SPACE)]
    return fields, raw, "".join(out).encode()


@given(_written())
def test_reads_what_was_written(written: tuple[dict[str, Any], dict[str, bytes], bytes]) -> None:
    fields, raw, body = written
    read = JsonObject(body)
    assert read.names() == tuple(fields)
    assert {name: bytes(read.raw(name) or b"") for name in fields} == raw
    assert read.edited({}) == body
    assert read.edited(dict(raw)) == body
    assert read.edited({"absent from all": None}) == body


@given(_written(), st.dictionaries(_NAMES, st.none() | _VALUES.map(msgspec.json.encode), max_size=4), st.data())
def test_an_edit_changes_only_what_it_names(
    written: tuple[dict[str, Any], dict[str, bytes], bytes], changes: dict[str, bytes | None], data: st.DataObject
) -> None:
    fields, raw, body = written
    if fields:
        chosen = data.draw(st.sets(st.sampled_from(sorted(fields))))
        changes |= {name: data.draw(st.none() | st.just(b'{"new": [1]}')) for name in chosen}
    edited = JsonObject(JsonObject(body).edited(changes))
    kept = {name: value for name, value in raw.items() if name not in changes}
    new = {name: value for name, value in changes.items() if value is not None}
    assert {name: bytes(edited.raw(name) or b"") for name in edited.names()} == kept | new
    in_place = [name for name in fields if name not in changes or changes[name] is not None]
    appended = [name for name, value in changes.items() if value is not None and name not in fields]
    assert list(edited.names()) == in_place + appended


@given(_written())
def test_setting_one_field_leaves_all_bytes_around_it(
    written: tuple[dict[str, Any], dict[str, bytes], bytes],
) -> None:
    fields, raw, body = written
    marker = b'"a value that no strategy here draws"'
    for name in fields:
        before, _, after = JsonObject(body).edited({name: marker}).partition(marker)
        assert before + raw[name] + after == body


@pytest.mark.parametrize(
    ("body", "edited"),
    [
        (b"{}", b'{"a":1}'),
        (b" { } ", b' {"a":1 } '),
        (b'{"b": 2}', b'{"b": 2,"a":1}'),
        (b'{ "a" : 0 , "b":2}\n', b'{ "a" : 1 , "b":2}\n'),
        (b'{"\\u0061":0}', b'{"\\u0061":1}'),
    ],
)
def test_set(body: bytes, edited: bytes) -> None:
    assert JsonObject(body).edited({"a": b"1"}) == edited


@pytest.mark.parametrize(
    ("body", "edited"),
    [
        (b'{"a":0}', b"{}"),
        (b'{"a":0, "b":2}', b'{"b":2}'),
        (b'{"b":2 , "a":0 }', b'{"b":2 }'),
        (b'{"b":2,"a":0,"c":3}', b'{"b":2,"c":3}'),
    ],
)
def test_remove(body: bytes, edited: bytes) -> None:
    result = JsonObject(body).edited({"a": None})
    assert result.replace(b" ", b"") == edited.replace(b" ", b"")
    assert json.loads(result) == json.loads(edited)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a":1,"a":2}', "'a'"),
        (b'{"a":1,"\\u0061":1}', "'a'"),
        (b'{"a":1,"b":2,"a":1}', "'a'"),
        (b'{"a":[1],"b":"a","a":[1]}', "'a'"),
        (b'{"a":1,"a":1}', "'a'"),
        (b"[1]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
        (b'{"a":1}{"b":2}', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
    ],
)
def test_refused(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        JsonObject(body)


def test_nested_too_deeply() -> None:
    with pytest.raises(BadRequest):
        JsonObject(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
