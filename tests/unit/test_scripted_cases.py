"""Every case file loads, and every variant with answers describes an engine."""

from __future__ import annotations

import pytest

from serve.scripted import ScriptedEngine
from tests.scenario import all_cases, load_case


def test_every_variant_can_be_driven() -> None:
    cases = list(all_cases())
    assert len(cases) >= 25
    for case in cases:
        for variant in case.variants:
            assert variant.expect, f"{case.id} {variant.v}"
            assert variant.all_requests(), f"{case.id} {variant.v}"
            assert isinstance(variant.engine(), ScriptedEngine)


def test_shorthand_is_expanded() -> None:
    (request,) = load_case("W15").variants[0].all_requests()
    assert request.body["messages"][0]["content"] == "word " * 43_000


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(FileNotFoundError):
        load_case("W99")
    with pytest.raises(KeyError, match="W05"):
        load_case("W05").variant("nothing")
