"""Counts what a chat template makes of a conversation: message by message where that is exact, else as a whole.

A template is *additive* when each message costs the same whatever stands far from it. ChatML is; a template that drops
old thinking at a new user turn is not. This is found out by trying: conversations made for it are counted both ways,
and any difference means whole rendering from then on, with only the tokenizing remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from governor.tokens.bpe import BpeTokenizer
from governor.tokens.template import ChatTemplate, Message, TemplateFailed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """A bounded memory of computed values; the least recently used goes first. Safe to share between threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The value of ``key``, computed outside the lock if it is not remembered."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        value = compute()
        with self._lock:
            self._items[key] = value
            if len(self._items) > self._size:
                self._items.popitem(last=False)
        return value


_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}],
}
_SYSTEM: Message = {"role": "system", "content": "Rules."}
_USER: Message = {"role": "user", "content": "Hello."}
_ANSWER: Message = {"role": "assistant", "content": "Well."}
_RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}

# What may stand before a message: the shortest conversation that ends so.
_BEFORE: dict[str, list[Message]] = {
    "system": [_SYSTEM],
    "user": [_SYSTEM, _USER],
    "assistant": [_SYSTEM, _USER, _ANSWER],
    "call": [_SYSTEM, _USER, _CALL],
    "tool": [_SYSTEM, _USER, _CALL, _RESULT],
}


def kind_of(message: Message) -> str:
    """What the message is to the one after it."""
    if message.get("role") == "assistant" and message.get("tool_calls"):
        return "call"
    return str(message.get("role"))


class Framing:
    """A model's template and tokenizer together. Safe to share between threads.

    Tools that a template does not show cost nothing: llama.cpp b11549 reported the same ``prompt_tokens`` with and
    without them, and SGLang hands them to the template only.
    """

    def __init__(self, template: ChatTemplate, tokenizer: BpeTokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._contexts: dict[str, int] = {}
        self._pieces: Remembered[tuple[int, int], int] = Remembered(65_536)
        self.additive = self._is_additive()
        """True where counting message by message equals counting the whole."""

    def prepare(self, fields: dict[str, Any]) -> Message:
        return self._template.prepare(fields)

    def whole(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> int:
        """Tokens of the rendered prompt. Raises :class:`TemplateFailed`."""
        text = self._template.render(messages, tools, generation_prompt=True)
        bos = self._tokenizer.bos
        start = 1 if bos and not text.startswith(bos) else 0
        return start + sum(
            self._pieces.get((hash(piece), len(piece)), lambda piece=piece: self._tokenizer.count(piece))  # type: ignore[misc]
            for piece in self._tokenizer.pieces(text)
        )

    def opening(self, first: Message, tools: Sequence[Any] | None) -> int:
        """Tokens of the first message, the tools and what starts a prompt. Raises :class:`TemplateFailed`."""
        return self._count([first], tools, generation_prompt=False)

    def message(self, message: Message, before: str) -> int:
        """Tokens that ``message`` adds after one of kind ``before``. Raises :class:`TemplateFailed`."""
        context = _BEFORE.get(before)
        if context is None:
            raise TemplateFailed(f"no context for a message after {before!r}")
        return self._count([*context, message], None, generation_prompt=False) - self._context(before, context)

    def generation_prompt(self, before: str) -> int:
        """Tokens that invite the answer after a message of kind ``before``. Raises :class:`TemplateFailed`."""
        context = _BEFORE.get(before)
        if context is None:
            raise TemplateFailed(f"no context for an answer after {before!r}")
        return self._count(context, None, generation_prompt=True) - self._context(before, context)

    def _context(self, before: str, context: list[Message]) -> int:
        if before not in self._contexts:
            self._contexts[before] = self._count(context, None, generation_prompt=False)
        return self._contexts[before]

    def _count(self, messages: list[Message], tools: Sequence[Any] | None, *, generation_prompt: bool) -> int:
        text = self._template.render(messages, tools, generation_prompt=generation_prompt)
        bos = self._tokenizer.bos
        return self._tokenizer.count(text) + (1 if bos and not text.startswith(bos) else 0)

    def added_up(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> int:
        """Tokens of a conversation, message by message. Raises :class:`TemplateFailed`."""
        kinds = [kind_of(message) for message in messages]
        total = self.opening(messages[0], tools) + self.generation_prompt(kinds[-1])
        return total + sum(self.message(message, before) for message, before in zip(messages[1:], kinds, strict=False))

    def _is_additive(self) -> bool:
        """True if no trial that the template takes counts differently; false if it takes none."""
        agreed = False
        for talk, tools in _trials():
            try:
                whole = self.whole(talk, tools)
            except TemplateFailed:
                continue
            try:
                agreed = self.added_up(talk, tools) == whole
            except TemplateFailed:
                agreed = False
            if not agreed:
                return False
        return agreed


def _trials() -> list[tuple[list[Message], list[Any] | None]]:
    """Conversations in which templates are known to treat a message by what stands elsewhere, and text whose ends are
    apt to melt into its neighbours."""
    edges = [{"role": "user", "content": text} for text in (" a ", "a.\n\n", "\n", "12", "a'", "", "日本", "{")]
    thinking: Message = {"role": "assistant", "content": "Well.", "reasoning_content": "Let me think."}
    inline: Message = {"role": "assistant", "content": "<think>\nLet me think.\n</think>\n\nWell."}
    long_talk = [_SYSTEM, *(part for edge in edges for part in (edge, _ANSWER)), _USER]
    loop = [_SYSTEM, _USER, _CALL, _RESULT, _CALL, _RESULT, _RESULT]
    return [
        ([_USER], None),
        ([_SYSTEM, _USER], None),
        (long_talk, None),
        ([_USER, _ANSWER, _USER, _USER, {**_ANSWER, "content": "a\n"}, _USER], None),
        ([_SYSTEM, _USER, _SYSTEM, _USER, _ANSWER, _SYSTEM], None),
        ([_SYSTEM, _USER, thinking, _USER], None),
        ([_SYSTEM, _USER, inline, _USER], None),
        (loop, None),
        ([*loop, _ANSWER, _USER], None),
        ([_SYSTEM, _USER], [_TOOL]),
        ([*loop, thinking, _USER], [_TOOL, _TOOL]),
        ([{**_CALL, **thinking} if part is _CALL else part for part in loop] + [_ANSWER, _USER], [_TOOL]),
        ([_USER, _CALL, _RESULT], [_TOOL]),
    ]
