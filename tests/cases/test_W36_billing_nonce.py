"""W36 billing-nonce-in-system: the nonce before the system prompt stays here; a user who quotes it is passed on."""

from __future__ import annotations

from pathlib import Path

from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W36").variants
FIRST, SECOND = VARIANT.requests
KEEP = {"alice": 'request.attribution = "keep"\n'}


async def test_W36_the_prefix_is_that_of_the_turn_before(tmp_path: Path) -> None:
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        for request in (FIRST, SECOND):
            assert (await send(governor, request)).status_code == 200
        first, second = (hit.body for hit in engine.hits)
        assert second.startswith(first[: first.index(b"]}", first.index(b'"messages"'))])
        assert sent_body(first)["system"] == sent_body(second)["system"] == FIRST.body["system"][1:]
        assert sent_body(second)["messages"] == SECOND.body["messages"]
        ends = await governor.ends()
        for end in ends:
            assert "system: billing line dropped" in end.edits
            assert not end.flags
        assert ends[0].session == ends[1].session


async def test_W36_every_other_field_leaves_as_it_came(tmp_path: Path) -> None:
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        await send(governor, SECOND)
        sent = sent_body(engine.hits[0].body)
        assert sent == SECOND.body | {"system": SECOND.body["system"][1:]}


async def test_W36_kept_by_policy(tmp_path: Path) -> None:
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path, policies=KEEP) as governor:
        await send(governor, SECOND)
        assert engine.hits[0].body == SECOND.content()
        assert not (await governor.end()).edits


async def test_W36_a_chat_with_the_line_in_its_system_message(tmp_path: Path) -> None:
    """As gateways write it that turn one dialect into the other."""
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        for request in (FIRST, SECOND):
            joined = "\n".join(block["text"] for block in request.body["system"])
            messages = [{"role": "system", "content": joined}, *request.body["messages"]]
            assert (await governor.chat(messages=messages)).status_code == 200
        for hit, request in zip(engine.hits, (FIRST, SECOND), strict=True):
            kept = [{"role": "system", "content": "You are a coding helper."}, *request.body["messages"]]
            assert sent_body(hit.body)["messages"] == kept
