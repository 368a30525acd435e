"""What a model's recall comes to: the results from the archive, and the prompt with which its answer goes on.

Nothing is written here: :mod:`governor.gateway.recalling` has the answer go on, and relays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from governor.budget.claim import Claim
from governor.compress import recall
from governor.compress.left_text import left_text
from governor.compress.recall import Wanted
from governor.gateway.claims import claim_to_go_on
from governor.gateway.planner import TurnPlan
from governor.gateway.turn import Turn
from governor.output.edits import ALL_CAP_FIELDS
from governor.policy.model import Policy
from governor.schedule.loop import Lease
from governor.store.archive_model import Archive
from governor.tokens.counter import Counter
from governor.tokens.model import PromptParts
from governor.types import TokenCount
from governor.wire.jsonobject import JsonObject
from governor.wire.messages import joined
from governor.wire.spliced import Generation, OwnCall
from serve.engine import Endpoint, Engine, EngineAnswer, EngineCall

_MOST_TOKENS = 16_384
"""Of all that is recalled in one turn."""
_ANSWER_TOKENS = 1_024
"""Of what the turn may still write, left free for that when a text is brought back, if it may write so much."""
_FRAME_TOKENS = 64
"""Of role marks and line ends around the new messages, by estimate."""
_BYTES_PER_TOKEN = 3
_SHARES = (1.0, 0.5, 0.0)
"""Of the room, to be tried one after the other until the engine's own count fits."""
_PARTS = 1_000
"""Pieces that one generation may come to; each has its number within the turn."""
_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])


class GoOn(msgspec.Struct, frozen=True, kw_only=True):
    """The next generation of an answer."""

    call: EngineCall
    claim: Claim
    cap_tokens: int


class Recalling(msgspec.Struct, frozen=True, kw_only=True):
    """A turn whose model may recall."""

    turn: Turn
    lease: Lease
    plan: TurnPlan
    policy: Policy
    call: EngineCall
    """What the engine was sent at first."""
    claim: Claim
    pauses: bool
    open: Callable[[GoOn], AbstractAsyncContextManager[EngineAnswer]]
    """Start another generation, as the first one was."""
    on_hidden: Callable[[], None]
    """Told, at the latest before the end is passed on, that the client does not see all that was written."""


class _Asked(msgspec.Struct, frozen=True):
    """One call: what it asks for, and the text that there is; or what the model is told in its place."""

    wanted: Wanted | None
    text: str = ""
    told: str = ""
    flag: str = ""
    """For the row, beside what it is told."""


class _Result(msgspec.Struct, frozen=True):
    """One call's result."""

    message: bytes
    tokens: int
    flag: str
    """For the row."""
    recalled: Wanted | None
    """What the model has now."""


class Recalls:
    """Of one turn."""

    def __init__(self, archive: Archive, engine: Engine, counter: Counter, asking: Recalling) -> None:
        self._archive = archive
        self._engine = engine
        self._counter = counter
        self._asking = asking
        body = JsonObject(asking.plan.edits.body)  # not the first call's: that may have tokens for its prompt
        self._body = body
        self._messages = [bytes(raw) for raw in _MESSAGES.decode(body.raw("messages") or b"[]")]
        self._prompt_tokens = asking.plan.measure.count.tokens
        self._generations = 1
        self._written = 0
        self._recalled_tokens = 0
        self._calls = 0
        self._before: set[Wanted] = set()
        self._refused = False
        """The model was told that it has had enough."""

    async def next(self, generation: Generation) -> GoOn | None:
        """How the answer goes on behind a generation that asks; ``None``: it is at its end, and the turn's flags say
        why. Asks the archive and the engine; raises nothing."""
        asking, turn = self._asking, self._asking.turn
        if self._refused:
            turn.note(f"recall_limit: asked again after {recall.MOST_RECALLS}")
            return None
        prompt, written = self._tokens_of(generation)
        self._written += written
        left = asking.plan.cap.tokens - self._written
        if left < 1:
            turn.note("recall_cut: the output cap is used up")
            return None
        calls = generation.own[: recall.MOST_PARALLEL]
        asked = [await self._look_up(call) for call in calls]
        made = await self._fitted(generation, calls, asked, base_tokens=prompt + written, left=left)
        if made is None:
            turn.note("recall_cut: the window is full")
        return made

    def _tokens_of(self, generation: Generation) -> tuple[int, int]:
        """Of its prompt and what it has written; where the engine does not tell, as good as can be guessed."""
        prompt, written = (generation.usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        if type(written) is not int:
            said = [generation.content, generation.reasoning, *(call.arguments for call in generation.own)]
            written = sum(len(text.encode(errors="replace")) for text in said) // _BYTES_PER_TOKEN
        return (prompt if type(prompt) is int else self._prompt_tokens), written

    async def _look_up(self, call: OwnCall) -> _Asked:
        if self._calls >= recall.MOST_RECALLS:
            self._refused = True
            return _Asked(None, told=recall.no_more(recall.MOST_RECALLS), flag=f"recall_limit: {recall.MOST_RECALLS}")
        self._calls += 1
        wanted = recall.wanted(call.arguments)
        if isinstance(wanted, str):
            return _Asked(None, told=wanted, flag="recall_misasked: its arguments cannot be read")
        if wanted in self._before:
            return _Asked(wanted, told=recall.said_before(wanted), flag=f"recall_repeated: {wanted.handle}")
        found = await self._archive.recall(wanted.handle, self._asking.turn.agent)
        if found is None:
            return _Asked(wanted, told=recall.unknown(wanted.handle), flag=f"recall_unknown: {wanted.handle}")
        return _Asked(wanted, text=await asyncio.to_thread(left_text, found.left.body))

    async def _fitted(
        self, generation: Generation, calls: Sequence[OwnCall], asked: Sequence[_Asked], *, base_tokens: int, left: int
    ) -> GoOn | None:
        """The next call with as much of the texts as there is room for; ``None``: not even without."""
        asking, window = self._asking, self._asking.plan.measure.window_tokens
        reserve = min(left, max(asking.policy.output.floor, _ANSWER_TOKENS))
        room = _MOST_TOKENS - self._recalled_tokens
        if window is not None:
            room = min(room, window - base_tokens - reserve - _FRAME_TOKENS * len(calls))
        ids = _ids(calls, self._generations)
        reasoning = "" if asking.policy.request.strip_reasoning else generation.reasoning
        own = recall.answered_message(generation.content, reasoning, calls, ids)
        for share in _SHARES:
            results = await asyncio.to_thread(self._results, asked, ids, int(room * share))
            weighed = sum(result.tokens for result in results)
            messages = [*self._messages, own, *(result.message for result in results)]
            body = self._body.edited({"messages": joined(messages), "continue_final_message": None})
            count = await self._count(body, base_tokens + weighed + _FRAME_TOKENS * len(calls))
            cap = left if window is None else min(left, window - count.upper)
            if cap >= (reserve if share else min(left, asking.policy.output.floor)):
                break
        else:
            return None
        true = max(0, count.tokens - base_tokens)
        for result in results:
            if result.recalled is not None:
                self._before.add(result.recalled)
                asking.turn.note(f"recalled: {result.recalled.handle}, {true * result.tokens // weighed:,} tokens")
            elif result.flag:
                asking.turn.note(result.flag)
        self._messages = messages
        self._prompt_tokens = count.tokens
        self._recalled_tokens += true
        self._generations += 1
        return GoOn(
            call=self._call(body, cap),
            claim=claim_to_go_on(asking.claim, asking.policy, count, output_cap=cap, pauses=asking.pauses),
            cap_tokens=cap,
        )

    def _results(self, asked: Sequence[_Asked], ids: Sequence[str], room: int) -> list[_Result]:
        results, left = [], room
        for each, id_ in zip(asked, ids, strict=True):
            text, flag, recalled = each.told, each.flag, None
            if each.wanted is not None and not text:
                part = recall.excerpt(each.text, each.wanted, self._size, left)
                if part is None:
                    text, flag = recall.no_room(each.wanted.handle, left), f"recall_no_room: {each.wanted.handle}"
                else:
                    text, recalled = part, each.wanted
            tokens = self._size(text)
            left -= tokens
            results.append(_Result(recall.result_message(id_, text), tokens, flag, recalled))
        return results

    def _size(self, text: str) -> int:
        """Of a text as a result; at most, where the engine is not asked for the true figure."""
        message = recall.result_message("", text)
        if self._engine.capabilities.counts_prompts:
            return self._counter.sizes([message])[0]
        return self._counter.count(PromptParts(messages=[message])).upper

    async def _count(self, body: bytes, estimated_tokens: int) -> TokenCount:
        if self._engine.capabilities.counts_prompts:
            exact = await self._engine.count_prompt(Endpoint.CHAT, body)
            if exact is not None:
                return exact
        return TokenCount(tokens=estimated_tokens)

    def _call(self, body: bytes, cap: int) -> EngineCall:
        fields = JsonObject(body)
        caps: Mapping[str, bytes] = {name: str(cap).encode() for name in ALL_CAP_FIELDS if name in fields}
        part = (self._generations - 1) * _PARTS
        call = msgspec.structs.replace(self._asking.call, body=fields.edited(caps), part=part - 1)
        continuation = self._engine.continuation
        return msgspec.structs.replace(call, part=part) if continuation is None else continuation.again(call)


def _ids(calls: Sequence[OwnCall], generation: int) -> list[str]:
    """Of the calls, each another; an engine may have given none, or the same twice."""
    ids: list[str] = []
    for number, call in enumerate(calls):
        ids.append(call.id if call.id and call.id not in ids else f"call_recall_{generation}_{number}")
    return ids
