"""W38 tool-order-flips: one order of tools by policy, whatever the client's; a tool that is missing stays so, and is
named."""

from __future__ import annotations

from pathlib import Path

from governor.store.model import TurnClosed
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W38").variants
BY_NAME = {"alice": 'request.tool_order = "by_name"\n'}


async def _play(root: Path, policies: dict[str, str]) -> tuple[list[bytes], list[TurnClosed]]:
    async with VARIANT.engine() as engine, governed(engine.url, root, policies=policies) as governor:
        for request in (*VARIANT.requests, VARIANT.requests[1]):
            assert (await send(governor, request)).status_code == 200
        return [hit.body for hit in engine.hits], await governor.ends()


def _tools(body: bytes) -> bytes:
    """The field's own bytes."""
    start = body.index(b'"tools":') + len(b'"tools":')
    depth = 0
    for place in range(start, len(body)):
        depth += {ord("["): 1, ord("]"): -1}.get(body[place], 0)
        if depth == 0:
            return body[start : place + 1]
    raise AssertionError("no end of the tools")


async def test_W38_permutations_leave_as_the_same_bytes(tmp_path: Path) -> None:
    bodies, ends = await _play(tmp_path, BY_NAME)
    assert _tools(bodies[0]) == _tools(bodies[1]) == _tools(bodies[3])
    for body, request in zip(bodies, VARIANT.requests, strict=False):
        by_name = sorted(request.body["tools"], key=lambda tool: str(tool["function"]["name"]))
        assert sent_body(body)["tools"] == by_name
    assert all("tools by name" in end.edits for end in ends)


async def test_W38_a_missing_tool_is_named_and_not_added(tmp_path: Path) -> None:
    for policies in (BY_NAME, {}):
        bodies, ends = await _play(tmp_path / str(len(policies)), policies)
        assert [tool["function"]["name"] for tool in sent_body(bodies[2])["tools"]] == ["alpha"]
        assert ends[2].flags == ("tool_missing: zeta, prefix lost",)
        assert ends[3].flags == ("tool_new: zeta, prefix lost",)


async def test_W38_untouched_by_default(tmp_path: Path) -> None:
    bodies, ends = await _play(tmp_path, {})
    for body, request in zip(bodies, VARIANT.requests, strict=False):
        assert sent_body(body)["tools"] == request.body["tools"]
        assert _tools(request.content()) == _tools(body)
    assert ends[1].flags == ("tool_order: from alpha on, prefix lost",)
    assert not any("tools" in edit for end in ends for edit in end.edits)
