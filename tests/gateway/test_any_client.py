"""Clients of all habits before a real governor, step by step: whatever they do to their history, what the engine is
sent is no worse a chat than theirs, nothing is lost without a handle, and the beginning stays the same between cuts."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.histories import TEXTS, seeded
from governor.compress.messages import read_message
from governor.compress.validate import new_rules_broken
from governor.tokens.digests import digest_loosely
from governor.types import AgentName
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import Governed, governed

WINDOW = 8_192
TARGET = 3_000
POLICY = f"""
[compression]
mode = "enforce"
stages = ["reasoning", "repeated", "superseded", "images", "oversized", "trim", "stub", "drop"]
trigger = 5000
target = {TARGET}
gain = 400
recent = 600
cooldown_tokens = 100
stub_over_tokens = 60
trim_over_tokens = 300
trim_target_tokens = 150
exhausted = "pass"
"""
STEPS = 70
_HANDLE = re.compile(rb"gov-[0-9a-f]{16}")
_CUT = re.compile(r"compressed: [\d,]+ -> ([\d,]+) tokens")
_CARRIER = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> {} <<<END_OPENCLAW_INTERNAL_CONTEXT>>>"


class AnyClient:
    """A conversation, and the habits in which its client writes it down."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - the same seed, the same client
        self._texts = seeded(seed)
        self._ids = count()
        self.messages: list[dict[str, Any]] = [
            {"role": self._random.choice(["system", "developer"]), "content": f"You are number {seed}. " * 10},
            {"role": "user", "content": f"Find out why the tests of cache {seed} fail."},
        ]
        self.reuses_ids = self._random.random() < 0.3
        self.bare_ids = self.drops_reasoning = self.spaces = self.has_carrier = False
        self.done: list[str] = []

    def go_on(self) -> str:
        """One thing that clients do."""
        acts = [
            (self.calls, 10), (self.asks, 4), (self.retries, 1), (self.changes_habit, 2), (self.goes_back, 1),
            (self.compacts, 1), (self.edits, 1), (self.steers, 1), (self.leaves_open, 1),
        ]  # fmt: skip
        act = self._random.choices([each for each, _ in acts], [weight for _, weight in acts])[0]
        self.done.append(act.__name__)
        act()
        return act.__name__

    def calls(self) -> None:
        ids = [self._id(number) for number in range(self._random.choice([1, 1, 1, 2, 3]))]
        self.messages.append(self._asking(ids))
        self.messages += [self._result(each) for each in ids]

    def steers(self) -> None:
        """The user's word comes between calls and results."""
        ids = [self._id(number) for number in range(2)]
        said = {"role": "user", "content": "Look at the other one first."}
        self.messages += [self._asking(ids), self._result(ids[0]), said, self._result(ids[1])]

    def leaves_open(self) -> None:
        """A call without its result, as after a crash."""
        ids = [self._id(number) for number in range(2)]
        self.messages += [self._asking(ids), self._result(ids[0])]

    def asks(self) -> None:
        self.messages += [
            {"role": "assistant", "content": self._text(10), "reasoning_content": self._text(8)},
            {"role": "user", "content": self._text(self._random.choice([1, 1, 20]))},
        ]

    def retries(self) -> None:
        pass

    def changes_habit(self) -> None:
        habit = self._random.choice(["bare_ids", "drops_reasoning", "spaces", "has_carrier"])
        setattr(self, habit, not getattr(self, habit))

    def goes_back(self) -> None:
        ends = [index for index, each in enumerate(self.messages) if each["role"] == "user" and index > 1]
        if ends:
            del self.messages[self._random.choice(ends) :]
            self.messages.append({"role": "user", "content": self._text(1)})

    def compacts(self) -> None:
        ends = [index for index, each in enumerate(self.messages) if each["role"] == "user" and index > 1]
        if ends:
            summary = {"role": "user", "content": f"[CONTEXT COMPACTION] {self._text(5)}"}
            self.messages[1 : self._random.choice(ends)] = [summary]

    def edits(self) -> None:
        index = self._random.randrange(1, len(self.messages))
        if isinstance(self.messages[index]["content"], str):
            self.messages[index] = self.messages[index] | {"content": self._text(3)}

    def written(self) -> list[dict[str, Any]]:
        """As it is sent."""
        written = copy.deepcopy(self.messages)
        last_user = max(index for index, each in enumerate(written) if each["role"] == "user")
        for index, each in enumerate(written):
            if self.drops_reasoning and index < last_user:
                each.pop("reasoning_content", None)
            for call in each.get("tool_calls", ()):
                call["id"] = self._as_written(call["id"])
                if self.spaces:
                    call["function"]["arguments"] = call["function"]["arguments"].replace(":", " : ")
            if "tool_call_id" in each:
                each["tool_call_id"] = self._as_written(each["tool_call_id"])
        if self.has_carrier:
            written.append({"role": "user", "content": _CARRIER.format(len(written))})
        return written

    def _as_written(self, id_: str) -> str:
        return id_.replace("_", "") if self.bare_ids else id_

    def _id(self, number: int) -> str:
        return f"call_{number if self.reuses_ids else next(self._ids)}"

    def _asking(self, ids: Sequence[str]) -> dict[str, Any]:
        calls = [
            {
                "id": each,
                "type": "function",
                "function": {"name": "run", "arguments": f'{{"command":"make {self._random.randrange(12)}"}}'},
            }
            for each in ids
        ]
        thought = {"reasoning_content": self._text(12)} if self._random.random() < 0.5 else {}
        return {"role": "assistant", "content": self._random.choice(["", self._text(2)]), "tool_calls": calls} | thought

    def _result(self, id_: str) -> dict[str, Any]:
        lines = self._random.choice([1, 5, 10, 10, 20, 60])
        content: Any = self._text(lines)
        if self._random.random() < 0.1:
            content = [{"type": "text", "text": content}]
        return {"role": "tool", "tool_call_id": id_, "content": content}

    def _text(self, lines: int) -> str:
        if self._random.random() < 0.1:
            return "the very same line of output\n" * lines
        return self._random.choice(TEXTS)(self._texts, lines)


class Judge:
    """What must hold of every prompt."""

    def __init__(self, gateway: Governed, engine: ScriptedEngine) -> None:
        self._gateway = gateway
        self._engine = engine
        self._before: tuple[list[bytes], list[bytes]] | None = None
        self.cuts = 0
        self.heads = 0
        self.rewritten = 0

    async def look(self, client: list[bytes]) -> None:
        body = msgspec.json.decode(self._engine.hits[-1].body, type=dict[str, msgspec.Raw])
        sent = [bytes(raw) for raw in msgspec.json.decode(body["messages"], type=list[msgspec.Raw])]
        end = (await self._gateway.ends())[-1]
        cut = _CUT.search(str(end.edits))
        self.cuts += cut is not None
        self.heads += "head: " in str(end.edits)
        self.rewritten += "compressed_head_rewritten" in str(end.flags)
        if cut is not None:
            assert int(cut[1].replace(",", "")) <= TARGET
        assert new_rules_broken(map(read_message, client), map(read_message, sent)) == ()
        self._check_protected(client, sent)
        await self._check_reachable(client, sent)
        if self._before is not None and cut is None:
            client_before, sent_before = self._before
            if client[: len(client_before)] == client_before:
                assert sent[: len(sent_before)] == sent_before
        self._before = (client, sent)

    def _check_protected(self, client: list[bytes], sent: list[bytes]) -> None:
        messages = [read_message(raw) for raw in client]
        users = [i for i, each in enumerate(messages) if each.role == "user" and b"OPENCLAW" not in client[i]]
        answered = max((i for i, each in enumerate(messages) if each.role in {"assistant", "tool"}), default=-1)
        for index, raw in enumerate(client):
            if messages[index].is_instruction or index in (users[0], users[-1]) or index > answered:
                assert raw in sent, f"message {index} of {len(client)}: {raw[:120]!r}"

    async def _check_reachable(self, client: list[bytes], sent: list[bytes]) -> None:
        there = {digest_loosely(raw) for raw in sent}
        contents: set[bytes] = set()
        todo, seen = list(sent), set[bytes]()
        while todo:
            for handle in set(_HANDLE.findall(todo.pop())) - seen:
                seen.add(handle)
                recalled = await self._gateway.archive.recall(handle.decode(), AgentName("alice"))
                assert recalled is not None, handle
                body = recalled.left.body
                contents.add(body)
                todo.append(body)
                for raw in _messages_in(body):
                    there.add(digest_loosely(raw))
        for index, raw in enumerate(client):
            if digest_loosely(raw) not in there:
                assert bytes(read_message(raw).content) in contents, f"message {index}: {raw[:200]!r}"


def _messages_in(body: bytes) -> Iterator[bytes]:
    try:
        values = msgspec.json.decode(body, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        values = [msgspec.Raw(body)]
    yield from (bytes(raw) for raw in values if bytes(raw).startswith(b"{"))


@pytest.mark.parametrize("seed", [1, 2, 41])
async def test_whatever_a_client_does_to_its_history(seed: int, tmp_path: Path) -> None:
    async with (
        ScriptedEngine(knobs=Knobs(model="m", window_tokens=WINDOW)) as engine,
        governed(engine.url, tmp_path, policies={"alice": POLICY}) as gateway,
    ):
        client, judge = AnyClient(seed), Judge(gateway, engine)
        for _ in range(STEPS):
            client.go_on()
            written = client.written()
            answer = await gateway.chat(messages=written, max_tokens=16)
            if answer.status_code == 400:
                client.compacts()
                continue
            answer.raise_for_status()
            try:
                await judge.look([msgspec.json.encode(each) for each in written])
            except AssertionError as error:
                raise AssertionError(f"after {', '.join(client.done[-12:])}") from error
        assert judge.cuts >= 2
        assert judge.heads >= 8
        await gateway.assert_idle()
