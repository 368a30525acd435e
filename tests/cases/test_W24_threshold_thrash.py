"""W24 threshold-thrash: a tool loop that refills right after each compaction is not compressed at every turn.

The variant with a summariser of a smaller window belongs to the summary call.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from bench.histories import asks, call, log, message, result, seeded
from governor.compress.clients import REACTIONS
from governor.compress.limits import limits_of
from governor.compress.plan import Plan
from governor.compress.verify import Attempt, Outcome, Permit, Record, can_try, digest_prompt, judge, on_prompt
from governor.policy.model import ClientLoops, CompressionPolicy
from governor.types import AgentName
from serve.scripted import Knobs, ScriptedEngine
from tests.client_gate import Gate
from tests.compressing import FIXED_TOKENS, check, shorten, size_of
from tests.harness import governed
from tests.misbehaving import Client, Traits, Way
from tests.tool_loop import ToolLoop

TURNS = 20
WINDOW = 32_768
POLICY = CompressionPolicy()


@pytest.mark.parametrize("lines", [10, 60, 200])
def test_W24_a_loop_that_refills(lines: int) -> None:
    """The head, once compressed, is sent again as it came out, as a client with a frozen head sends it."""
    limits = limits_of(POLICY, 32_768)
    history = [message("system", "rules"), message("user", "go")]
    record, compressed, prefixes = Record(), list[int](), list[bytes]()
    for turn in range(TURNS * 5):
        history += [asks(call(f"c{turn}", n=turn)), result(f"c{turn}", log(seeded(turn), lines))]
        tokens = FIXED_TOKENS + sum(map(size_of, history))
        record = on_prompt(record, tokens, limits)
        digest = digest_prompt(history)
        permit = can_try(
            record, digest, tokens, limits=limits, attempts=POLICY.attempts, cooldown_tokens=POLICY.cooldown_tokens
        )
        prefixes.append(b"".join(history[:3]))
        if permit is not Permit.TRY:
            continue
        made = shorten(history, limits)
        assert isinstance(made, Plan), str(made)
        check(history, made, limits)
        shorter = [bytes(raw) for raw in made.messages]
        attempt = Attempt(
            before_digest=digest,
            before_tokens=tokens,
            after_digest=digest_prompt(shorter),
            after_tokens=made.after_tokens,
        )
        outcome, record = judge(record, attempt, limits)
        assert outcome is Outcome.ACCEPTED
        history = shorter
        compressed.append(turn)
    # Between two compactions the prompt grows from the target to the trigger.
    turn_tokens = size_of(asks(call("c0", n=0))) + size_of(result("c0", log(seeded(0), lines)))
    room = (limits.trigger_tokens - limits.target_tokens) / turn_tokens
    assert len(compressed) <= 1 + TURNS * 5 / room
    assert all(later - earlier >= 2 for earlier, later in pairwise(compressed))
    changed = {turn + 1 for turn in compressed}
    for turn in range(1, len(prefixes)):
        assert prefixes[turn] == prefixes[turn - 1] or turn in changed


def test_W24_what_cannot_be_reached_is_tried_twice_not_twenty_times() -> None:
    """Most of the prompt is protected: no compaction reaches its target, and that is seen after two."""
    limits = limits_of(POLICY, 10_000)
    history = [message("system", "s" * 28_000), message("user", "go")]
    record, attempts = Record(), 0
    for turn in range(TURNS):
        history += [asks(call(f"c{turn}", n=turn)), result(f"c{turn}", log(seeded(turn), 60))]
        tokens = FIXED_TOKENS + sum(map(size_of, history))
        record = on_prompt(record, tokens, limits)
        digest = digest_prompt(history)
        permit = can_try(record, digest, tokens, limits=limits, attempts=2, cooldown_tokens=500)
        if permit is Permit.TRY:
            attempts += 1
            assert not isinstance(shorten(history, limits), Plan)
            _, record = judge(record, Attempt(before_digest=digest, before_tokens=tokens), limits)
    assert attempts == 2
    assert permit is Permit.STOPPED


async def test_a_tool_loop_that_refills_at_once_at_the_gateway(tmp_path: Path) -> None:
    """Forty turns whose results fill the window again after each cut: each cut is worth it, and the prefix changes on
    the turns that cut, and on no other."""
    knobs = Knobs(model="m", window_tokens=WINDOW)
    policy = '[compression]\nmode = "enforce"\nstages = ["superseded", "trim", "stub", "drop"]\n'
    async with (
        ScriptedEngine(knobs=knobs) as engine,
        governed(engine.url, tmp_path, policies={"alice": policy}) as gateway,
    ):
        loop = ToolLoop(gateway, "alice", "m")
        for _ in range(40):
            await loop.step(lines=150)
        ends = await gateway.ends()
        tries = await gateway.archive.compactions(AgentName("alice"))
    prompts = [msgspec.json.decode(hit.body)["messages"] for hit in engine.hits]
    cuts = [index for index, end in enumerate(ends) if any(edit.startswith("compressed: ") for edit in end.edits)]
    assert 3 <= len(cuts) <= 15
    assert [each.outcome for each in tries] == ["accepted"] * len(cuts)
    for each in tries:
        assert (each.before_tokens or 0) - (each.after_tokens or 0) >= WINDOW * 0.1
        assert (each.after_tokens or 0) <= WINDOW * 0.5
    for index, (before, now) in enumerate(pairwise(prompts), start=1):
        assert (now[: len(before)] == before) is (index not in cuts)
    assert all((end.usage.prompt_tokens or 0) < WINDOW * 0.8 for end in ends)


@pytest.mark.parametrize("loops", ClientLoops)
def test_W24_a_client_whose_compactions_gain_one_message(loops: ClientLoops) -> None:
    """It compacts before every call, unless it is stopped after two in vain and what it takes to find its threshold."""
    gate = Gate(CompressionPolicy(client_loops=loops), window_tokens=16_000)
    client = Client(gate, Traits(ways=(Way.GAINS_LITTLE,), threshold_tokens=1500))
    client.play(TURNS * 2)
    assert len(gate.found) == client.shown
    if loops is ClientLoops.TELL:
        assert client.longest_row > TURNS
    else:
        assert client.longest_row <= POLICY.attempts + REACTIONS
    assert gate.loops_begun == 1
