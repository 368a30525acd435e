"""A client that compacts in vain, as recorded, through a real governor: shown, kept, answered with a lower usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.events import Alert, Compacted
from governor.store.archive_model import CompactedBy
from serve.scripted import Behaviour, Knobs, ScriptedEngine
from tests.cases.play import chunks
from tests.client_prompts import compaction_requests
from tests.harness import Governed, governed

TRUE_TOKENS = 60_000
FIVE_PASSES = [request for request in compaction_requests("hermes-summary-not-smaller") if 28 <= request.n <= 39]
STOP = '[compression]\nclient_loops = "stop"\n'


async def usage_told(governor: Governed, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """What the client sees in the end."""
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await governor.chat(**body, **options)
    assert answer.status_code == 200, answer.text
    last = chunks(answer.content)[-1] if stream else msgspec.json.decode(answer.content)
    usage: dict[str, Any] = last["usage"]
    return usage


async def played(governor: Governed, *, stream: bool) -> list[dict[str, Any]]:
    """The usage that each request of the main line was answered with."""
    told = []
    for request in FIVE_PASSES:
        is_main = "tools" in request.body
        usage = await usage_told(governor, request.body, stream=stream and is_main)
        if is_main:
            told.append(usage)
    return told


def engine() -> ScriptedEngine:
    knobs = Knobs(model="qwen3-stub", window_tokens=1_000_000)
    return ScriptedEngine(Behaviour(say="ok", usage=(TRUE_TOKENS, 7)), knobs=knobs)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_five_compactions_in_one_turn_are_answered_with_less_until_that_is_seen_to_be_no_use(
    stream: bool, tmp_path: Path
) -> None:
    """The recording goes on whatever it is told. What is counted of its shortened texts is far below what the engine
    reports, and the reports decide."""
    async with engine() as upstream, governed(upstream.url, tmp_path, policies={"alice": STOP}) as governor:
        told = await played(governor, stream=stream)
        assert [usage["prompt_tokens"] for usage in told] == [60_000, 60_000, 60_000, 30_000, 15_000, 7_500, 60_000]
        for usage in told:
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            is_true = usage["prompt_tokens"] == TRUE_TOKENS
            assert usage.get("governor") == (None if is_true else {"prompt_tokens": TRUE_TOKENS})

        ends = await governor.ends()
        assert {end.usage.prompt_tokens for end in ends} == {TRUE_TOKENS}
        flags = [flag.partition(":")[0] for end in ends for flag in end.flags]
        assert flags.count("usage_lowered") == 3
        assert flags.count("client_compaction_loop") == 2

        kept = await governor.archive.compactions()
        assert [each.by for each in kept] == [CompactedBy.CLIENT] * 5
        assert all(each.outcome != "accepted" and each.summary_turn for each in kept)
        happened = [each.event for each in governor.governor.events.since(0)]
        assert len([each for each in happened if isinstance(each, Compacted) and each.by == "client"]) == 5
        alerts = [each.detail for each in happened if isinstance(each, Alert) and each.name == "client_compaction_loop"]
        assert len(alerts) == 2
        assert "whatever usage it is told" in alerts[-1]


async def test_without_a_word_of_the_policy_it_is_only_told(tmp_path: Path) -> None:
    async with engine() as upstream, governed(upstream.url, tmp_path) as governor:
        told = await played(governor, stream=True)
        assert {usage["prompt_tokens"] for usage in told} == {TRUE_TOKENS}
        assert all("governor" not in usage for usage in told)
        assert len(await governor.archive.compactions()) == 5


async def test_bytes_are_the_engines_own_where_nothing_is_lowered(tmp_path: Path) -> None:
    async with engine() as upstream, governed(upstream.url, tmp_path, policies={"alice": STOP}) as governor:
        for request in FIVE_PASSES[:2]:
            answer = await governor.chat(**request.body)
            assert answer.content == bytes(upstream.hits[-1].body_sent)
