"""A history that was made shorter stays in the real engine's cache, though the client goes on sending all of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from governor.types import TurnKind
from tests.harness import Governed, governed
from tests.sglang.engine import installed_engine
from tests.sglang.server import ServerOptions, SglangServer
from tests.sglang_adapter import MODEL
from tests.tool_loop import ToolLoop

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

WINDOW = 32_768
SUMMARISE = '[compression]\nmode = "enforce"\nstages = ["summary", "drop"]\nsummary_tokens = 64\n'
ENFORCE = '[compression]\nmode = "enforce"\n'
CACHED_SHARE = 0.95
AFTER = 8


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    """With room for prompts that are long beside what a turn adds."""
    options = ServerOptions(
        context_length=WINDOW, max_total_tokens=2 * WINDOW, chunked_prefill_size=2048, max_mamba_cache_size=64
    )
    with SglangServer(tmp_path_factory.mktemp("wide"), options, installed_engine()) as server:
        yield server


async def test_after_a_compression_turns_are_continuations(wide_server: SglangServer, tmp_path: Path) -> None:
    async with governed(wide_server.url, tmp_path, engine_kind="sglang", policies={"alice": ENFORCE}) as gateway:
        loop = ToolLoop(gateway, "alice", MODEL)
        for _ in range(38):
            loop.on_tool(lines=16)
        for _ in range(AFTER + 8):
            await loop.step(lines=4)
        ends = await gateway.ends()
        await gateway.assert_idle()
    cuts = [index for index, end in enumerate(ends) if any(edit.startswith("compressed") for edit in end.edits)]
    assert len(cuts) == 1, [end.edits for end in ends]
    after = ends[cuts[0] + 1 :]
    assert len(after) >= AFTER
    before_tokens, after_tokens = (ends[cuts[0] + shift].usage.prompt_tokens or 0 for shift in (-1, 0))
    assert after_tokens <= WINDOW // 2 < WINDOW * 0.75 < before_tokens
    assert ends[cuts[0]].prompt_tokens_counted == after_tokens
    cached = sum(end.usage.cached_tokens or 0 for end in after)
    prompts = sum(end.usage.prompt_tokens or 0 for end in after)
    print(f"{cached / prompts:.1%} of {prompts:,} prompt tokens after the cut came from cache")
    assert cached >= CACHED_SHARE * prompts
    for was, turn in pairwise(ends[cuts[0] :]):
        assert (turn.usage.prompt_tokens or 0) > (was.usage.prompt_tokens or 0)


async def test_a_summary_is_asked_for_from_cache(wide_server: SglangServer, tmp_path: Path) -> None:
    """The model's weights are random, so that what it writes is no summary: the history is cut without one."""
    async with governed(wide_server.url, tmp_path, engine_kind="sglang", policies={"alice": SUMMARISE}) as gateway:
        loop = ToolLoop(gateway, "alice", MODEL, seed=11)
        while (await ask(gateway, loop)) < WINDOW * 0.75:
            for _ in range(8):
                loop.on_tool(lines=16)
        for _ in range(12):
            loop.on_answer("And what of the others? " * 40)
            await ask(gateway, loop)
        rows = [row.closed for row in await gateway.rows() if row.closed is not None]
        await gateway.assert_idle()
    [summary] = [row for row in rows if row.kind is TurnKind.SUMMARY]
    [cut] = [row for row in rows if row.edits and row.edits[0].startswith("compressed: ")]
    prompt, cached = summary.usage.prompt_tokens or 0, summary.usage.cached_tokens or 0
    print(f"{cached / prompt:.1%} of the summary's {prompt:,} prompt tokens came from cache")
    assert prompt > WINDOW * 0.75
    assert cached >= CACHED_SHARE * prompt
    assert (cut.usage.prompt_tokens or 0) <= WINDOW // 2


async def ask(gateway: Governed, loop: ToolLoop) -> int:
    """Prompt tokens of one turn."""
    (await loop.ask()).raise_for_status()
    return (await gateway.ends())[-1].usage.prompt_tokens or 0
