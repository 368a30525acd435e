"""Clients make their histories shorter: the calls that they make for it, and what their conversation is afterwards."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from governor.simulate.acts import Act, Answer, Compacted
from governor.simulate.behaviour import (
    FALLBACK_TOKENS,
    FLUSH_HEAD_TOKENS,
    FLUSH_TOKENS,
    INSTRUCTION_TOKENS,
    SUMMARY_LEAST,
    SUMMARY_SHARE,
    CompactionRules,
)
from governor.simulate.conversation import Conversation, Message, Part, Sources
from governor.simulate.result import GOOD_ENDS, CompactionEnd, TurnEnd
from governor.types import PromptShape, TurnKind
from serve.twin.tiers_key import Key
from serve.twin.trace import Shared

_INSTRUCTIONS = Shared(name="\0summary", tokens=INSTRUCTION_TOKENS)
_FLUSH_HEAD = Shared(name="\0flush", tokens=FLUSH_HEAD_TOKENS)

Asking = Generator[Act, Answer | None, Answer]


class Caller(Protocol):
    """Who makes the calls: a session's loop."""

    def once(
        self,
        kind: TurnKind,
        shape: PromptShape,
        prompt: Key,
        output: Key,
        *,
        cap: int | None,
        patience_s: float,
        streams: bool,
        attempt: int = 1,
    ) -> Asking:
        """One request, not asked again."""
        ...


class Compactor:
    """One session's compactions, by its client's rules."""

    def __init__(
        self,
        rules: CompactionRules,
        conversation: Conversation,
        sources: Sources,
        summary_output: int | None = None,
    ) -> None:
        """``summary_output``: what the model writes to a summary call, where that is known."""
        self.rules = rules
        self._summary_output = summary_output
        self._conversation = conversation
        self._instructions = sources.shared(_INSTRUCTIONS)
        self._flush_head = sources.shared(_FLUSH_HEAD)

    def is_due(self, tokens: int, *, from_user: bool) -> bool:
        """Whether a call of so many tokens is one before which it compacts."""
        return tokens >= self.rules.threshold_tokens and (from_user or not self.rules.only_before_user)

    def compact(self, caller: Caller) -> Generator[Act, Answer | None, bool]:
        """Try it once. Returns whether the conversation is another one."""
        rules, conversation = self.rules, self._conversation
        before = len(conversation)
        first = rules.first_messages if conversation.compactions == 0 else 0
        middle = conversation.middle(first, rules.tail_tokens, rules.tail_messages)
        end = CompactionEnd.ABANDONED
        if middle:
            if rules.flushes:
                yield from self._flush(caller)
            end, summary = yield from self._summarise(caller, middle)
            if end is not CompactionEnd.ABANDONED:
                conversation.compact(first, rules.tail_tokens, rules.tail_messages, summary)
        yield Compacted(
            before_tokens=before,
            after_tokens=len(conversation),
            threshold_tokens=rules.threshold_tokens,
            end=end,
        )
        return end is not CompactionEnd.ABANDONED

    def _flush(self, caller: Caller) -> Asking:
        prompt = self._conversation.under(self._flush_head) + self._conversation.say(FLUSH_TOKENS)
        return caller.once(
            TurnKind.COMPACTION,
            PromptShape.BRANCH,
            prompt,
            self._conversation.write(FLUSH_TOKENS),
            cap=self.rules.cap,
            patience_s=self.rules.patience_s,
            streams=True,
        )

    def _summarise(
        self, caller: Caller, middle: list[Message]
    ) -> Generator[Act, Answer | None, tuple[CompactionEnd, int]]:
        """The calls for a summary; returns its length besides."""
        rules = self.rules
        tokens = sum(self._text_tokens(message) for message in middle)
        aim = min(max(int(tokens * SUMMARY_SHARE), SUMMARY_LEAST), rules.summary_tokens)
        writes = self._summary_output or aim
        share = -(-tokens // rules.calls)
        prompt = self._conversation.digest(self._instructions, share)
        written = 0
        for call in range(rules.calls):
            if call:
                prompt = self._instructions + self._conversation.say(written + share)
            answer = yield from self._call(caller, prompt, writes)
            if answer.end not in GOOD_ENDS:
                # A summary that does not come in time is an error of the network to Hermes, and nothing is lost (src);
                # OpenClaw cancels whatever the reason (seen openclaw-32).
                lost = rules.falls_back and answer.end not in {TurnEnd.GAVE_UP, TurnEnd.CUT_OFF}
                return (CompactionEnd.FALLBACK, FALLBACK_TOKENS) if lost else (CompactionEnd.ABANDONED, 0)
            written = min(answer.written, aim)  # reasoning is no part of it
        return CompactionEnd.SUMMARY, written

    def _call(self, caller: Caller, prompt: Key, writes: int) -> Asking:
        attempt = 1
        while True:
            answer = yield from caller.once(
                TurnKind.COMPACTION,
                PromptShape.FRESH,
                prompt,
                self._conversation.write(writes),
                cap=self.rules.cap,
                patience_s=self.rules.patience_s,
                streams=self.rules.streams,
                attempt=attempt,
            )
            was_refused = answer.end not in GOOD_ENDS and answer.end is not TurnEnd.GAVE_UP
            if not was_refused or attempt == self.rules.tries:
                return answer
            attempt += 1

    def _text_tokens(self, message: Message) -> int:
        is_tool = message.part is Part.TOOL
        return min(message.tokens, self.rules.tool_result_tokens) if is_tool else message.tokens
