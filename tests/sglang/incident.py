"""The incident in small, on the real engine: a hog that writes 3,000 tokens, three small agents with short turns, a
pool of 8,192 tokens. Straight at the engine, and through the governor; the same work both times.

``python -m tests.sglang.incident`` starts an engine, plays both and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from governor.wire.sse import SseSplitter
from tests.harness import governed
from tests.sglang.server import SglangServer

HOG, SMALL = "hog", ("s0", "s1", "s2")
HOG_CONTEXT_WORDS, SMALL_CONTEXT_WORDS, GROWTH_WORDS = 2_500, 2_000, 100
"""A token each, near enough."""
PAUSE_S = 2.0
WAITING_S = 10.0
POLICY = f"""
[output]
tool_step = 4000
final = 4000

[share]
waiting_s = {WAITING_S}

[slices]
quantum_s = 2.5
yield_after_s = 1.0
lookahead = 512
"""
_WORDS = ("engine", "page", "token", "lease", "queue", "slice", "cache", "agent", "turn", "model", "state", "prompt")


class Turn(msgspec.Struct, kw_only=True):
    """One answer, as its client saw it."""

    asked_s: float
    first_s: float = 0.0
    """From the question to the first text."""
    ended_s: float = 0.0
    silence_s: float = 0.0
    """Longest, between two pieces of text."""
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = {}


class Played(msgspec.Struct, kw_only=True):
    """One way to play it."""

    makespan_s: float
    turns: dict[str, list[Turn]]

    @property
    def worst_small_s(self) -> float:
        return max(turn.first_s for name in SMALL for turn in self.turns[name])

    @property
    def hog(self) -> Turn:
        return self.turns[HOG][0]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(count))


async def ask(client: httpx.AsyncClient, messages: list[dict[str, str]], tokens: int) -> Turn:
    """One streamed answer of exactly ``tokens``."""
    turn = Turn(asked_s=time.monotonic())
    body = {
        "model": "tiny-hybrid",
        "messages": messages,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    splitter, last = SseSplitter(), turn.asked_s
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()[:500]}")
        async for chunk in answer.aiter_bytes():
            for event in splitter.feed(chunk):
                if event.data is None or event.data == b"[DONE]":
                    continue
                seen = msgspec.json.decode(event.data)
                if "error" in seen:
                    raise RuntimeError(str(seen["error"]))
                turn.usage = seen.get("usage") or turn.usage
                for choice in seen.get("choices", ()):
                    turn.finish = choice.get("finish_reason") or turn.finish
                    text = choice["delta"].get("content") or ""
                    if text:
                        now = time.monotonic()
                        turn.first_s = turn.first_s or now - turn.asked_s
                        turn.silence_s = max(turn.silence_s, now - last if turn.text else 0.0)
                        turn.text += text
                        last = now
    turn.ended_s = time.monotonic()
    return turn


async def play(clients: dict[str, httpx.AsyncClient], *, seed: int, hog_tokens: int, turns: int) -> Played:
    """All agents, to the end of their work. Another seed has other prompts, which no tier has seen."""
    began = time.monotonic()
    rng = random.Random(seed)  # noqa: S311 - prompts
    contexts = {name: words(rng, SMALL_CONTEXT_WORDS) for name in SMALL}
    hog_context = words(rng, HOG_CONTEXT_WORDS)
    growth = {name: [words(rng, GROWTH_WORDS) for _ in range(turns)] for name in SMALL}

    async def hog() -> list[Turn]:
        return [await ask(clients[HOG], [{"role": "user", "content": hog_context}], hog_tokens)]

    async def small(name: str) -> list[Turn]:
        await asyncio.sleep(3.0)
        messages, done = [{"role": "user", "content": contexts[name]}], []
        for number in range(turns):
            turn = await ask(clients[name], messages, 30)
            done.append(turn)
            messages += [
                {"role": "assistant", "content": turn.text},
                {"role": "user", "content": growth[name][number]},
            ]
            await asyncio.sleep(PAUSE_S)
        return done

    names = (HOG, *SMALL)
    results = await asyncio.gather(hog(), *(small(name) for name in SMALL))
    return Played(makespan_s=time.monotonic() - began, turns=dict(zip(names, results, strict=True)))


@asynccontextmanager
async def direct(url: str) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Everybody straight at the engine."""
    async with httpx.AsyncClient(base_url=url, timeout=900, trust_env=False) as client:
        yield dict.fromkeys((HOG, *SMALL), client)


async def both(url: str, folder: Path, *, hog_tokens: int, turns: int) -> tuple[Played, Played, list[Any]]:
    """Without and with the governor, and the rows of its turn log."""
    async with direct(url) as clients:
        await ask(clients[HOG], [{"role": "user", "content": "warm up"}], 4)
        without = await play(clients, seed=1, hog_tokens=hog_tokens, turns=turns)
        (await clients[HOG].post("/flush_cache", params={"timeout": 10})).raise_for_status()
    names = (HOG, *SMALL)
    policies = dict.fromkeys(names, POLICY)
    async with governed(url, folder, engine_kind="sglang", agents=names, policies=policies) as gov:
        through = {name: gov.client(name) for name in names}
        governed_run = await play(through, seed=2, hog_tokens=hog_tokens, turns=turns)
        for client in through.values():
            await client.aclose()
        rows = await gov.rows()
    return without, governed_run, rows


def table(without: Played, with_it: Played) -> Table:
    """The figures side by side."""
    shown = Table(title="A hog and three small agents on the real engine")
    for column in ("", "no governor", "governed"):
        shown.add_column(column, justify="right" if column else "left")
    rows = [("small agents' worst first token", [f"{run.worst_small_s:.1f} s" for run in (without, with_it)])]
    for name in SMALL:
        worst = [f"{max(turn.first_s for turn in run.turns[name]):.1f} s" for run in (without, with_it)]
        rows.append((f"  {name}", worst))
    rows.append(("hog's longest silence", [f"{run.hog.silence_s:.1f} s" for run in (without, with_it)]))
    rows.append(("hog done after", [f"{run.hog.ended_s - run.hog.asked_s:.1f} s" for run in (without, with_it)]))
    rows.append(("all done after", [f"{run.makespan_s:.1f} s" for run in (without, with_it)]))
    for what, figures in rows:
        shown.add_row(what, *figures)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hog-tokens", type=int, default=3_000)
    parser.add_argument("--turns", type=int, default=12)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SglangServer(Path(folder)) as server:
        without, with_it, rows = asyncio.run(
            both(server.url, Path(folder) / "home", hog_tokens=chosen.hog_tokens, turns=chosen.turns)
        )
    console = Console()
    console.print(table(without, with_it))
    for row in rows:
        if row.closed is not None and row.agent == HOG:
            console.print(
                f"hog: {row.closed.pieces} pieces, {row.closed.paused_ms / 1000:.1f} s paused, {row.closed.usage}"
            )


if __name__ == "__main__":
    main()
