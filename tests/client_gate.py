"""The pure parts of the gateway that a client's compactions meet, put together without a socket: the hash chain, the
watch, frozen heads, and our own compression with its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec

from governor.compress.client_model import ClientEnd, ClientPass, ClientPrompt, News, advise, limits_for
from governor.compress.clients import ClientWatch
from governor.compress.heads import Covering, HeadBook, chain_of, find, frozen
from governor.compress.limits import Limits, limits_of
from governor.compress.messages import read_message
from governor.compress.plan import Plan, plan
from governor.compress.verify import Attempt, Outcome, Permit, Record, can_try, digest_prompt, judge, on_prompt
from governor.policy.model import CompressionMode, CompressionPolicy
from governor.tokens.chain import Located, SessionIndex, digest_head, digest_message
from governor.types import AgentName, SessionId, TurnId, TurnKind
from tests.compressing import FIXED_TOKENS, size_of

ME = AgentName("me")
_HEAD = digest_head("m", None)


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What a client learns from a call."""

    ok: bool
    overflow: bool = False
    told_tokens: int | None = None
    was_true: bool = True
    """It was told what the engine reported."""


class Gate:
    """Answers chat calls as a governor does that is in front of an engine with a window of so many tokens."""

    def __init__(self, policy: CompressionPolicy, window_tokens: int, agent: AgentName = ME) -> None:
        self.policy = policy
        self.window_tokens = window_tokens
        self.watch = ClientWatch()
        self.found: list[ClientPass] = []
        """Clients' compactions, as recognised."""
        self.loops_begun = 0
        self.was_deaf = False
        self.lowered = 0
        """Calls after which the client was told less than the engine reported."""
        self.most_misses = 0
        """Of ours, in a row."""
        self.tries = 0
        self.accepted = 0
        self._agent = agent
        self._index = SessionIndex()
        self._heads = HeadBook()
        self._records: dict[SessionId, Record] = {}
        self._turns = count(1)
        self._sizes: dict[bytes, int] = {}

    def size(self, raw: bytes | msgspec.Raw) -> int:
        """Of a message in tokens."""
        raw = bytes(raw)
        if raw not in self._sizes:
            self._sizes[raw] = size_of(raw)
        return self._sizes[raw]

    def tokens(self, messages: Sequence[bytes]) -> int:
        """Of a prompt."""
        return FIXED_TOKENS + sum(map(self.size, messages))

    def chat(
        self,
        messages: Sequence[bytes],
        session: str | None,
        kind: TurnKind = TurnKind.TOOL_STEP,
        *,
        fails: bool = False,
    ) -> Answered:
        """One call. ``fails``: the engine refuses it."""
        at = self._index.locate(self._agent, _HEAD, messages, session)
        policy, tokens = self.policy, self.tokens(messages)
        turn_id = TurnId(f"t{next(self._turns)}")
        limits = limits_of(policy, self.window_tokens)
        prompt = ClientPrompt(
            turn_id=turn_id,
            agent=self._agent,
            session=at.session_id,
            path=at.path,
            parent=at.parent,
            kind=kind,
            shape=at.shape,
            cause=at.broke_at.cause if at.broke_at else None,
            tokens=tokens,
        )
        standing = self.watch.on_prompt(prompt, attempts=policy.attempts, gain_tokens=limits.gain_tokens)
        advice = advise(standing, policy)
        sent: Sequence[bytes] = messages
        if policy.mode is CompressionMode.ENFORCE and kind is not TurnKind.COMPACTION:
            sent = self._shortened(messages, at, limits_for(advice, limits))
        true_tokens = self.tokens(sent)
        overflow = true_tokens > self.window_tokens
        ok = not overflow and not fails
        reported = true_tokens if ok and sent is messages else None
        at_most = advise(self.watch.standing(turn_id, reported), policy).tell_at_most
        lowered = ok and at_most is not None and true_tokens > at_most
        self.lowered += lowered
        told = (at_most if lowered else true_tokens) if ok else None
        found = self.watch.on_end(
            ClientEnd(
                turn_id=turn_id,
                ok=ok,
                reported_tokens=reported,
                told_tokens=told,
                lowered=lowered,
            )
        )
        if found is not None:
            self.found.append(found)
            self.loops_begun += found.news is News.LOOP
            self.was_deaf = self.was_deaf or found.news is News.DEAF
        return Answered(ok=ok, overflow=overflow, told_tokens=told, was_true=not lowered)

    def _shortened(self, messages: Sequence[bytes], at: Located, limits: Limits) -> Sequence[bytes]:
        head = find(self._heads.of(at.session_id), at.digests, lambda: at.digests)
        covering = head.head if head else None
        now = messages if covering is None else (*covering.messages, *messages[covering.covered :])
        tokens, digest = self.tokens(now), digest_prompt(now)
        record = on_prompt(self._records.get(at.session_id, Record()), tokens, limits)
        self._records[at.session_id] = record
        permit = can_try(
            record,
            digest,
            tokens,
            limits=limits,
            attempts=self.policy.attempts,
            cooldown_tokens=self.policy.cooldown_tokens,
        )
        if permit is not Permit.TRY:
            return now
        self.tries += 1
        made = plan(
            now,
            [self.size(raw) for raw in now],
            size_of=self.size,
            fixed_tokens=FIXED_TOKENS,
            policy=self.policy,
            limits=limits,
        )
        shorter = tuple(bytes(raw) for raw in made.messages) if isinstance(made, Plan) else None
        attempt = Attempt(
            before_digest=digest,
            before_tokens=tokens,
            after_digest=None if shorter is None else digest_prompt(shorter),
            after_tokens=0 if shorter is None else self.tokens(shorter),
        )
        outcome, record = judge(record, attempt, limits)
        self._records[at.session_id] = record
        self.most_misses = max(self.most_misses, record.misses)
        if outcome is not Outcome.ACCEPTED or shorter is None or not isinstance(made, Plan):
            return now
        self.accepted += 1
        covered, frozen_messages = frozen(covering, made, [read_message(raw).role or "" for raw in now])
        name = chain_of([digest_message(raw) for raw in messages[:covered]])
        head_now = Covering(covered=covered, chain=name, loose_chain=name, messages=frozen_messages)
        self._heads.add(at.session_id, head_now)
        return shorter
