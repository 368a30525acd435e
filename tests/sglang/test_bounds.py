"""Thinking is closed at its budget on the real engine, and what follows is the answer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from governor.gateway.bounds import Bounds
from governor.types import TurnState
from serve.engines.sglang import Sglang
from tests.harness import governed
from tests.pausing import call_of, play
from tests.sglang.server import SglangServer
from tests.sglang_adapter import MODEL, TOOLS, chat_body, streamed, words

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

BUDGET = 48
CAP = 240
THINKS = {"chat_template_kwargs": {"enable_thinking": True}, "ignore_eos": True, "max_tokens": CAP}
POLICY = f"""
[output]
thinking = {BUDGET}
"""


async def test_the_model_is_asked_how_it_ends_its_thinking(sglang_server: SglangServer) -> None:
    engine = Sglang(sglang_server.url)
    end = await engine.continuation.thinking_end()
    assert len(await engine.continuation.tokens_of("</think>")) == 1
    assert end == await engine.continuation.tokens_of("\n</think>\n\n")
    await engine.aclose()


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
async def test_thinking_is_closed_and_content_follows(with_tools: bool, sglang_server: SglangServer) -> None:
    engine = Sglang(sglang_server.url)
    await engine.describe()
    end = await engine.continuation.thinking_end()
    body = chat_body(words(60, 400), stream=True, **THINKS) | {"stream_options": {"include_usage": True}}
    body |= {"tools": TOOLS} if with_tools else {}
    played = await play(
        engine,
        call_of(engine, body, "t-bounded-tools" if with_tools else "t-bounded"),
        bounds=Bounds(thinking_tokens=BUDGET, loop_chars=4000),
    )
    await engine.aclose()
    view, (usage,) = played.seen, played.seen.usage
    (flag,) = played.told.flags
    thought = int(flag.removeprefix("thinking_closed: at ").removesuffix(" tokens"))
    assert thought >= BUDGET - 8  # when a stop arrives is up to the machine
    print(f"budget {BUDGET}, closed at {thought}")
    assert view.reasoning
    assert view.content
    assert (view.finishes, view.roles, view.dones, len(view.ids)) == (["length"], 1, 1, 1)
    assert usage["completion_tokens"] == CAP
    assert usage["completion_tokens_details"]["reasoning_tokens"] == thought + len(end)
    assert played.told.went_on == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_the_gateway_holds_a_turn_to_its_budget(
    stream: bool, sglang_server: SglangServer, tmp_path: Path
) -> None:
    async with governed(sglang_server.url, tmp_path, engine_kind="sglang", policies={"alice": POLICY}) as gateway:
        body = chat_body(words(61, 300), stream=stream, **THINKS)
        if stream:
            shown = [each["choices"][0]["delta"] for each in await streamed(gateway, body) if each["choices"]]
        else:
            answer = (await gateway.chat(**body)).raise_for_status()
            shown = [msgspec.json.decode(answer.content)["choices"][0]["message"]]
        end = await gateway.end()
    assert all(any(each.get(part) for each in shown) for part in ("reasoning_content", "content"))
    assert (end.state, end.finish_reason, end.model) == (TurnState.TRUNCATED, "length", MODEL)
    assert (end.pieces, end.usage.completion_tokens) == (2, CAP)
    assert [flag.partition(":")[0] for flag in end.flags] == ["thinking_closed"]
