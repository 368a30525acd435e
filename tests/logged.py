"""A turn log as the governor would have written it: conversations are held, and the real hash chain relates prompts."""

from __future__ import annotations

import msgspec

from governor.store.model import StoredTurn, TurnClosed
from governor.tokens.chain import SessionIndex
from governor.types import AgentName, PromptShape, TurnId, TurnKind, TurnState, Usage

T0 = 1_700_000_000.0


class Talk:
    """What one agent sends. A message is a text; its tokens are its length, and a prompt's are its messages'."""

    def __init__(self, agent: str = "ada", session: str | None = "one", index: SessionIndex | None = None) -> None:
        self.agent = AgentName(agent)
        self._client_session = session
        self._index = index or SessionIndex()
        self.rows: list[StoredTurn] = []
        self.prompts: list[list[str]] = []
        """By row."""

    def ask(
        self,
        messages: list[str],
        *,
        at: float,
        seconds: float = 1.0,
        output: int | None = 10,
        tools: str = "",
        state: TurnState = TurnState.OK,
        kind: TurnKind = TurnKind.TOOL_STEP,
        cached: int | None = None,
        usage: Usage | None = None,
        **facts: object,
    ) -> StoredTurn:
        """Send a prompt; the first message is the system's. ``output`` ``None``: no answer came."""
        raw = [msgspec.json.encode({"role": "user" if n else "system", "content": m}) for n, m in enumerate(messages)]
        located = self._index.locate(self.agent, tools.encode(), raw, self._client_session, tools=tools.encode())
        size = sum(map(len, messages)) + len(tools)
        reported = Usage() if output is None else Usage(
            prompt_tokens=size, completion_tokens=output, cached_tokens=cached
        )  # fmt: skip
        number = TurnId(f"{self.agent}-{len(self.rows)}")
        plain: dict[str, object] = {
            "session": located.session_id,
            "kind": kind,
            "shape": located.shape,
            "prompt_tokens_counted": size,
            "message_count": len(messages),
            "shared_messages": located.shared_messages,
            "broke_at": str(located.broke_at) if located.broke_at else None,
            "usage": usage or reported,
        }
        closed = msgspec.convert(
            plain | {"turn_id": number, "state": state, "closed_at": T0 + at + seconds} | facts, TurnClosed
        )
        row = StoredTurn(
            turn_id=number, run_id="r", state=state, agent=self.agent, route="/v1/chat/completions",
            opened_at=T0 + at, closed=closed,
        )  # fmt: skip
        self.rows.append(row)
        self.prompts.append(messages)
        return row

    @property
    def shapes(self) -> list[PromptShape | None]:
        return [row.closed.shape if row.closed else None for row in self.rows]
