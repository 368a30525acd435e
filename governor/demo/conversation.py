"""A conversation as a client of the chat API keeps it, of the lengths that a trace says. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serve.twin.trace import Piece, PieceKind, Shared
from serve.twin_server.pieces import encode
from serve.twin_server.words import Writer

Message = dict[str, Any]

TOOL = "read_file"
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Read a file and return what stands in it, with line numbers.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "From the project's root."}},
                "required": ["path"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "description": "Run a shell command and return what it prints.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    },
)
_TOOLS_TOKENS = 270
"""Of these as the twin's template writes them; the rest of a shared beginning is the system prompt."""
_CALL_TOKENS = 70
"""Of an assistant's message that is a call, and of the frames around it and its result."""
_FRAME_TOKENS = 5
"""Around a message."""
SUMMARY_ASKED = (
    "You are a summarization agent creating a context checkpoint. Write down what the assistant needs to go on: the "
    "goal, what was decided, what was done, which files matter, what is next.\n\n"
)
"""As Hermes 0.19.0 begins it."""
_SUMMARY_HEAD = "[CONTEXT COMPACTION] Earlier turns were replaced by this summary:\n\n"


class Conversation:
    """``tokens`` is what its next prompt has, but for a few."""

    def __init__(self, name: str, shared: Shared | None) -> None:
        """``name``: gives its texts; equal ``shared`` have equal ones."""
        self._name = name
        self._said = 0
        self.messages: list[Message] = []
        self.tokens = 0
        if shared is not None:
            text = Writer(shared.name).text(shared.tokens - _TOOLS_TOKENS - _FRAME_TOKENS)
            self.messages.append({"role": "system", "content": text})
            self.tokens = shared.tokens

    def add(self, pieces: Iterable[Piece]) -> None:
        """New messages at the end. A result that no call asked for gets one."""
        for piece in pieces:
            self.tokens += piece.tokens
            if piece.kind is not PieceKind.TOOL:
                self.messages.append({"role": "user", "content": self._text(piece.tokens - _FRAME_TOKENS)})
                continue
            open_call = self._open_call()
            tokens = piece.tokens - _FRAME_TOKENS
            if open_call is None:
                open_call = f"call_{len(self.messages)}"
                self.messages.append({"role": "assistant", "content": "", "tool_calls": [_call(open_call)]})
                tokens = max(1, piece.tokens - _CALL_TOKENS)
            self.messages.append({"role": "tool", "tool_call_id": open_call, "content": self._text(tokens)})

    def answered(self, content: str, calls: list[Message], tokens: int) -> None:
        """The model's answer, as it came."""
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)
        self.tokens += tokens

    def middle_text(self, first: int, tail_messages: int, result_chars: int) -> str:
        """What a summary is to be made of: without the system prompt, ``first`` messages and the last ones."""
        lines = []
        for message in self.messages[1 + first : len(self.messages) - tail_messages]:
            content = str(message["content"])
            lines.append(f"[{message['role']}] {content[:result_chars]}")
        return "\n".join(lines)

    def compact(self, first: int, tail_messages: int, summary: str) -> None:
        """Replace the middle by a summary. A result whose call has gone goes with it."""
        tail = self.messages[len(self.messages) - tail_messages :]
        while tail and tail[0]["role"] == "tool":
            tail.pop(0)
        self.messages = [*self.messages[: 1 + first], {"role": "user", "content": _SUMMARY_HEAD + summary}, *tail]
        self.tokens = sum(len(encode(str(each["content"]))) + _CALL_TOKENS for each in self.messages)

    def _open_call(self) -> str | None:
        calls = self.messages[-1].get("tool_calls") if self.messages else None
        return None if not calls else str(calls[0]["id"])

    def _text(self, tokens: int) -> str:
        self._said += 1
        return Writer(f"{self._name}/{self._said}").text(max(1, tokens))


def _call(call_id: str) -> Message:
    arguments = f'{{"path": "src/part_{call_id[5:]}.py"}}'
    return {"id": call_id, "type": "function", "function": {"name": TOOL, "arguments": arguments}}
