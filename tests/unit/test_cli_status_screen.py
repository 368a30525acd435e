"""The status on terminals of any size: it fits, says what matters at 80 columns without colour, makes nothing up."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from governor.cli.status_screen import NARROWEST, screen, short
from governor.context import words_of
from governor.snapshot import (
    AgentView,
    CacheView,
    EngineView,
    LeaseView,
    LossView,
    PrefillView,
    QueueView,
    ResidencyView,
    Snapshot,
    StoreView,
    TierView,
    TurnView,
    WaitingView,
)
from governor.types import TurnState, Usage

SIZES = [(40, 10), (80, 24), (120, 40), (200, 60), (80, None)]
EVIL = "\x1b[31m[bold red]日本語👩‍👩‍👧[/]\n" * 4
WHERE = "http://127.0.0.1:1/v1 (pid 7)"


def snapshot(agents: int = 3, name: str = "agent-{}", text: str = "needs 64,000 KV tokens") -> Snapshot:
    names = [name.format(number) for number in range(agents)]
    return Snapshot(
        version="0.1.0",
        started_at=0.0,
        now=5000.0,
        last_event_id=1,
        engine=EngineView(name="sglang", mode="ready", version="0.5.23", models=("qwen",), window_tokens=131_072),
        agents=tuple(
            AgentView(
                name=each,
                running=number == 0,
                waiting=number == 1,
                turns={TurnState.OK: 120, TurnState.REFUSED: 2},
                prompt_tokens=1000,
                cached_tokens=970,
                window_tokens=131_072,
                last_ttft_ms=1234.0,
                last_seen=4000.0 - number,
                held=number == 2,
                held_reason=text if number == 2 else None,
                losses=(
                    LossView(cause="first_prompt", count=1, tokens=99_999, seconds=9.0),
                    LossView(cause="evicted", count=2, tokens=1_000, seconds=2.0),
                ),
            )
            for number, each in enumerate(names)
        ),
        turns=tuple(
            TurnView(turn_id=f"t{number}", agent=each, route="/v1", phase=phase, since=4980.0)
            for number, (each, phase) in enumerate(zip(names[:2], ("decode", "waiting"), strict=False))
        ),
        queue=QueueView(
            leases=(LeaseView(turn_id="t0", agent="x", since=1.0, booked_tokens=100_000, output_tokens=1),),
            waiting=tuple(
                WaitingView(turn_id="t1", agent=each, position=number, since=4988.0, due=9e9, reason=text)
                for number, each in enumerate(names[1:], start=1)
            ),
            booked_tokens=100_000,
            free_tokens=52_000,
            capacity_tokens=231_872,
        ),
        cache=CacheView(
            contexts=(
                ResidencyView(
                    agent=names[0] if names else "x",
                    context="c",
                    session="s",
                    context_tokens=98_500,
                    l1_tokens=90_000,
                    l2_tokens=8_000,
                    answered_at=0.0,
                ),
            ),
            tiers=(
                TierView(tier="L1", capacity_tokens=231_872, held_tokens=150_000, held_states=20, state_slots=72),
                TierView(tier="L3", written_tokens=2_000_000, served_tokens=0, complaint=text),
            ),
        ),
        prefill=PrefillView(tokens_per_s=1234.0, low=1.0, high=2000.0, turns=9),
        store=StoreView(ok=True, pending=0, dropped=0),
        alerts=(text,) * 9 if agents > 10 else (),
    )


def lines_of(now: Snapshot, width: int = 80, height: int | None = None) -> list[str]:
    return [line.plain for line in screen(now, where=WHERE, width=width, height=height)]


EMPTY = Snapshot(
    version="0.1.0",
    started_at=0.0,
    now=0.0,
    last_event_id=0,
    engine=EngineView(name="upstream", mode="down", detail="it does not answer"),
    store=StoreView(ok=False, pending=4, dropped=2, last_error="disk full"),
)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    "now", [EMPTY, snapshot(), snapshot(64), snapshot(5, EVIL + "{}", EVIL)], ids=["empty", "normal", "64", "hostile"]
)
def test_no_line_is_wider_and_nothing_becomes_markup(now: Snapshot, width: int, height: int | None) -> None:
    for line in screen(now, where=WHERE, width=width, height=height):
        assert line.cell_len <= max(width, NARROWEST)
        assert "\x1b" not in line.plain
        assert "\n" not in line.plain
        console = Console(file=io.StringIO(), width=400, force_terminal=False)
        console.print(line, no_wrap=True, crop=False)
        assert console.file.getvalue().rstrip("\n") == line.plain  # type: ignore[attr-defined]


def test_one_screen_with_64_agents() -> None:
    for height in (30, 40, 60):
        lines = lines_of(snapshot(64), 80, height)
        assert len(lines) == height - 1  # the shell's prompt has one
    assert any("more, of whom" in line for line in lines)
    assert any("more ('governor queue')" in line for line in lines)
    assert len(lines_of(snapshot(64), 80, None)) > 64


def test_at_80_columns_all_that_matters_can_be_read() -> None:
    page = "\n".join(lines_of(snapshot()))
    assert "engine   sglang 0.5.23 ready" in page
    assert "prefill 1,234 tokens/s" in page
    assert "KV       100,000 booked by 1, 52,000 free, 0 foreign of 231,872" in page
    assert "L1        150k/232k  65%    20/72" in page
    assert "gives nothing" in page
    assert "agent-0 decode     98.5k/131k  75%   90k    8k     -  97%  1.2 s" in page
    assert "agent-2 held" in page
    assert "queue    2 wait, the oldest for 12 s" in page
    assert "1. agent-1, 12 s: needs 64,000 KV tokens" in page
    assert "lost     3k (6 s) evicted" in page
    assert "turns    366 ended, 6 of them not well" in page
    assert "log      written, 0 pending" in page
    assert "alerts   none" in page


def test_on_a_wide_screen_reasons_stand_beside_the_agents() -> None:
    line = next(line for line in lines_of(snapshot(), 130) if "agent-1 " in line)
    assert line.endswith("12 s: needs 64,000 KV tokens")


def test_what_is_unknown_is_no_zero() -> None:
    page = "\n".join(lines_of(EMPTY))
    assert "engine   upstream unknown down it does not answer" in page
    assert "KV       0 booked by 0; the engine does not tell how much it has" in page
    assert "tiers    not known: nothing is told of them" in page
    assert "agents   none has a key" in page
    assert "log      4 pending, 2 dropped: disk full" in page
    quiet = AgentView(name="ada", last_usage=Usage())
    now = Snapshot(
        version="1", started_at=0, now=0, last_event_id=0, engine=EMPTY.engine, agents=(quiet,), store=EMPTY.store
    )
    (line,) = [line for line in lines_of(now) if "ada" in line]
    assert line.split() == ["ada", "idle", "-/-", "-", "-", "-", "-", "-"]


def test_a_loss_of_which_size_or_price_are_unknown_is_no_zero() -> None:
    losses = (
        LossView(cause="evicted", count=2, tokens=1_500, seconds=4.0, unmeasured=1),
        LossView(cause="volatile", count=1, tokens=900),
        LossView(cause="edited", count=1, tokens=0, unmeasured=1),
    )
    now = replace(snapshot(), agents=(AgentView(name="a", losses=losses),))
    (line,) = (line for line in lines_of(now, 200) if line.startswith("lost"))
    assert [part.split()[:2] for part in line.removeprefix("lost").split(";")] == [
        ["1.5k+", "(4"],
        ["900", words_of("volatile").split()[0]],
        ["-", words_of("edited").split()[0]],
    ]


def test_what_may_be_more_says_so() -> None:
    tier = TierView(tier="L1", capacity_tokens=200_000, held_tokens=1_000, is_part=True)
    now = replace(snapshot(), cache=CacheView(tiers=(tier,)))
    (line,) = (line for line in lines_of(now) if line.startswith("  L1"))
    assert "1k+/200k" in line
    assert "%" not in line


def test_short_figures() -> None:
    figures = {None: "-", 0: "0", 999: "999", 1_000: "1k", 98_512: "98.5k", 131_072: "131k", 999_499: "999k"}
    figures |= {2_000_000: "2M", 1_234_567_890: "1,235M"}
    assert {tokens: short(tokens) for tokens in figures} == figures
