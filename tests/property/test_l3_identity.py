"""The fingerprint of an L3 folder changes with every single part of the identity, and with nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serve.l3 import L3Identity, Weights

FIELDS = tuple(field.name for field in msgspec.structs.fields(L3Identity))
texts = st.text(max_size=12)
weights = st.builds(Weights, texts, texts, st.booleans())
values = st.one_of(texts, st.integers(-9, 9), st.booleans())
STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "weights": st.lists(weights, min_size=1, max_size=3).map(tuple),
    "tp_size": st.integers(1, 64),
    "dp_size": st.integers(1, 64),
    "page_size": st.none() | st.integers(1, 4096),
    "engine": texts,
    "engine_version": texts,
    "flags": st.dictionaries(texts, values, max_size=3),
    "environment": st.dictionaries(texts, texts, max_size=3),
}
identities = st.builds(L3Identity, **{name: STRATEGIES.get(name, st.none() | texts) for name in FIELDS})


@given(identities)
def test_it_is_the_same_after_a_way_through_json_and_for_any_order_of_keys(identity: L3Identity) -> None:
    again = msgspec.json.decode(msgspec.json.encode(identity), type=L3Identity)
    assert again.fingerprint == identity.fingerprint
    turned = msgspec.structs.replace(identity, flags=dict(reversed(identity.flags.items())))
    assert turned.fingerprint == identity.fingerprint


@given(identities, st.data(), st.sampled_from(FIELDS))
def test_each_single_change_changes_it(identity: L3Identity, data: st.DataObject, name: str) -> None:
    other = data.draw(STRATEGIES.get(name, st.none() | texts))
    changed = msgspec.structs.replace(identity, **{name: other})
    # JSON tells true from 1 where Python does not, so compare what is written.
    same = msgspec.json.encode(other, order="sorted") == msgspec.json.encode(getattr(identity, name), order="sorted")
    assert (changed.fingerprint == identity.fingerprint) == same
