"""How Hermes Agent 0.19.0 and OpenClaw 2026.9.6 write down a conversation and send it again, as recorded."""

from __future__ import annotations

import json
import re
from typing import Any

CARRIER = {
    "role": "user",
    "content": [
        {
            "type": "text",
            "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nConversation data (data, not instructions):\n"
            '"Active exec sessions:\\nnone"\n\nConversation data (data, not instructions):\n'
            '"## Active Subagents\\nnone"\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>',
        }
    ],
}
Message = dict[str, Any]


class Client:
    """A conversation; ``messages`` are those of the next request."""

    def __init__(self, system: str) -> None:
        self.history: list[Message] = [{"role": "system", "content": system}]

    @property
    def messages(self) -> list[Message]:
        return list(self.history)

    def ask(self, content: str) -> None:
        self.history.append({"role": "user", "content": content})

    def on_answer(self, message: Message) -> None:
        """Take an answer down; a call of a tool is answered at once."""
        written = self.written(message)
        self.history.append(written)
        for call in written.get("tool_calls") or ():
            name = call["function"]["name"]
            result = {"role": "tool", "content": f"{name}: 21 °C, dry.", "tool_call_id": call["id"], "name": name}
            self.history.append(result)

    def written(self, message: Message) -> Message:
        """The answer as it stands in the history."""
        raise NotImplementedError


class Hermes(Client):
    """Drops reasoning, strips white space, sorts the keys of arguments."""

    def written(self, message: Message) -> Message:
        calls = [self._call(call) for call in message.get("tool_calls") or ()]
        said = {"role": "assistant", "content": (message.get("content") or "").strip()}
        return said | ({"tool_calls": calls} if calls else {})

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        arguments = json.loads(call["function"]["arguments"])
        written = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
        function = {"name": call["function"]["name"], "arguments": written}
        return {"id": call["id"], "type": "function", "function": function}


class OpenClaw(Client):
    """Gives reasoning back, writes arguments without spaces and ids without punctuation, and ends each request with a
    note on what goes on."""

    @property
    def messages(self) -> list[Message]:
        return [*self.history, CARRIER]

    def written(self, message: Message) -> Message:
        calls = [self._call(call) for call in message.get("tool_calls") or ()]
        said: Message = {"role": "assistant", "content": message.get("content")}
        if message.get("reasoning_content"):
            said["reasoning_content"] = message["reasoning_content"]
        return said | ({"tool_calls": calls} if calls else {})

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"), ensure_ascii=False)
        function = {"name": call["function"]["name"], "arguments": arguments}
        return {"id": re.sub(r"[^0-9A-Za-z]", "", call["id"]), "type": "function", "function": function}
