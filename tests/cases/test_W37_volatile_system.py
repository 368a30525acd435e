"""W37 volatile-system-prompt: a clock in the system prompt is named by place and shape, or kept as it was by policy."""

from __future__ import annotations

from pathlib import Path

from governor.store.model import TurnClosed
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W37").variants
PIN = {"alice": 'request.system_bytes = "pin"\n'}


async def _play(root: Path, policies: dict[str, str]) -> tuple[list[bytes], list[TurnClosed]]:
    async with VARIANT.engine() as engine, governed(engine.url, root, policies=policies) as governor:
        for request in VARIANT.requests:
            assert (await send(governor, request)).status_code == 200
        return [hit.body for hit in engine.hits], await governor.ends()


async def test_W37_pinned_prefixes_are_equal(tmp_path: Path) -> None:
    bodies, ends = await _play(tmp_path, PIN)
    opening = bodies[0].index(b'"messages"')
    shared = bodies[0][opening : bodies[0].index(b"]", bodies[0].index(b'"content":"a"'))]
    assert b"12:00 PM. NOTES [40%]" in shared
    assert all(shared in body for body in bodies)
    for body, request in zip(bodies, VARIANT.requests, strict=True):
        assert sent_body(body)["messages"] == VARIANT.requests[0].body["messages"][:1] + request.body["messages"][1:]
    assert [[edit for edit in end.edits if "system" in edit] for end in ends] == [
        [],
        ["system pinned: 2 volatile spans"],
        ["system pinned: 2 volatile spans"],
    ]
    assert len({end.session for end in ends}) == 1


async def test_W37_as_sent_is_untouched_and_named(tmp_path: Path) -> None:
    bodies, ends = await _play(tmp_path, {})
    for body, request in zip(bodies, VARIANT.requests, strict=True):
        assert sent_body(body)["messages"] == request.body["messages"]
    first, second = (request.body["messages"][0]["content"] for request in VARIANT.requests[:2])
    offset = next(place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
    assert [end.flags for end in ends] == [
        (),
        (f"volatile_system: byte {offset} '##:##' and 1 more",),
        (f"volatile_system: byte {offset} '##:##' and 1 more",),
    ]
    assert "volatile" in str(ends[2].broke_at)
    assert not any("system" in edit for end in ends for edit in end.edits)


async def test_W37_a_new_rule_is_sent(tmp_path: Path) -> None:
    """What is pinned is the clock, not the prompt."""
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path, policies=PIN) as governor:
        for request in VARIANT.requests[:2]:
            await send(governor, request)
        messages = VARIANT.requests[2].body["messages"]
        ruled = [{"role": "system", "content": messages[0]["content"] + "And never delete a file."}, *messages[1:]]
        await send(governor, VARIANT.requests[2], messages=ruled)
        assert sent_body(engine.hits[2].body)["messages"] == ruled
