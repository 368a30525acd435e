"""W04 include-usage-injection: the books always get the usage; a client gets the chunk only if it asked for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governor.types import TurnState
from serve.scripted import Knobs, ModeOptions, ScriptedEngine
from serve.scripted.ask import Dialect
from tests.cases.play import chunks, payloads, send, sent_body
from tests.harness import governed
from tests.scenario import CaseVariant, load_case

CASE = load_case("W04")


@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
async def test_W04_usage_is_recorded_and_shown_only_on_request(variant: CaseVariant, tmp_path: Path) -> None:
    assert variant.request is not None
    asked = bool(variant.request.body.get("stream_options", {}).get("include_usage"))
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.status_code == 200
        shown = [place for place, chunk in enumerate(chunks(answer.content)) if chunk.get("usage")]
        assert shown == ([len(chunks(answer.content)) - 1] if asked else [])
        assert payloads(answer.content)[-1] == "[DONE]"
        end = await governor.end()
        assert end.state is TurnState.OK
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (7, 3)
        assert end.completion_tokens_estimated is None
        options = sent_body(engine.hits[0].body)["stream_options"]
        assert options == variant.request.body.get("stream_options", {}) | {"include_usage": True}
        if asked:
            assert answer.content == bytes(engine.hits[0].body_sent)


_ASKS: dict[Dialect, dict[str, Any]] = {
    Dialect.COMPLETIONS: {"prompt": "hi"},
    Dialect.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
    Dialect.RESPONSES: {"input": "hi"},
}


@pytest.mark.parametrize("dialect", _ASKS, ids=lambda dialect: dialect.name.lower())
async def test_W04_usage_of_the_other_dialects(dialect: Dialect, tmp_path: Path) -> None:
    engine = ScriptedEngine("honour_include_usage", knobs=Knobs(model="m"), options=ModeOptions(tokens=(7, 3)))
    async with engine, governed(engine.url, tmp_path) as governor, governor.client() as client:
        answer = await client.post(dialect.value, json={"model": "m", "stream": True} | _ASKS[dialect])
        assert answer.status_code == 200
        end = await governor.end()
        assert (end.state, end.usage.prompt_tokens, end.usage.completion_tokens) == (TurnState.OK, 7, 3)
        if dialect is Dialect.COMPLETIONS:
            assert not [chunk for chunk in chunks(answer.content) if chunk.get("usage")]
        else:
            assert answer.content == bytes(engine.hits[0].body_sent)
