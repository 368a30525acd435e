"""A real Hermes holds a session on the real SGLang: later turns are served from cache, and the turn log says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.store.model import TurnClosed
from governor.types import PromptShape, TurnState
from tests.e2e.clients.hermes import HermesAgent, ensure_hermes
from tests.harness import governed
from tests.sglang.server import ServerOptions, SglangServer

pytestmark = [pytest.mark.sglang, pytest.mark.clients, pytest.mark.slow]

WINDOW_TOKENS = 131_072
ROOMY = ServerOptions(
    context_length=WINDOW_TOKENS, max_total_tokens=147_456, max_mamba_cache_size=128, chunked_prefill_size=2048
)
AGENT = "hermes-one"
POLICY = """
[output]
tool_step = 24
final = 24
"""


@pytest.fixture(scope="module")
def roomy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    with SglangServer(tmp_path_factory.mktemp("sglang-roomy"), ROOMY) as server:
        yield server


async def test_a_session_of_three_turns_is_served_from_cache(roomy_server: SglangServer, tmp_path: Path) -> None:
    program = ensure_hermes(print)
    async with governed(
        roomy_server.url, tmp_path / "governor", agents=(AGENT,), engine_kind="sglang", policies={AGENT: POLICY}
    ) as governor:
        hermes = HermesAgent(
            program,
            tmp_path / "hermes",
            base_url=f"{governor.url}/v1",
            api_key=governor.keys[AGENT],
            model="tiny-hybrid",
            max_tokens=24,
            context_length=WINDOW_TOKENS,
        )
        session = None
        turns: list[list[TurnClosed]] = []
        for prompt in ("Say hello.", "Say it once more.", "And a last time."):
            result = await hermes.run(prompt, resume=session)
            assert result.session_id is not None, result.stderr
            session = result.session_id
            turns.append((await governor.ends())[sum(map(len, turns)) :])
        assert all(turns)
        assert {end.state for turn in turns for end in turn} <= {TurnState.OK, TurnState.TRUNCATED}
        assert turns[0][0].usage.cached_tokens == 0
        for turn in turns[1:]:
            first = turn[0]
            usage = first.usage
            assert first.shape is PromptShape.CONTINUATION
            assert first.window_tokens == WINDOW_TOKENS
            assert usage.prompt_tokens is not None
            assert usage.cached_tokens is not None
            assert usage.cached_tokens > 0.9 * usage.prompt_tokens
            assert usage.cached_device_tokens == usage.cached_tokens
