"""An archive that lasts as long as its process."""

from __future__ import annotations

from governor.store.archive_model import ArchiveHealth, Compaction, Head, LeftText, Recalled
from governor.types import AgentName, SessionId


class MemoryArchive:
    def __init__(self) -> None:
        self.kept: list[Head] = []
        self.left: dict[str, Recalled] = {}
        self.rows: list[Compaction] = []

    def keep(self, head: Head, left: tuple[LeftText, ...], compaction: Compaction) -> None:
        self.kept.append(head)
        for each in left:
            self.left[each.handle] = Recalled(
                left=each, agent=head.agent, session=head.session, turn_id=compaction.turn_id, left_at=compaction.at
            )
        self.rows.append(compaction)

    def note(self, compaction: Compaction) -> None:
        self.rows.append(compaction)

    async def heads(self, agent: AgentName, session: SessionId) -> tuple[Head, ...]:
        return tuple(head for head in self.kept if (head.agent, head.session) == (agent, session))

    async def recall(self, handle: str, agent: AgentName | None = None) -> Recalled | None:
        return self.left.get(handle)

    async def compactions(self, agent: AgentName | None = None, most: int = 100) -> tuple[Compaction, ...]:
        return tuple(reversed(self.rows))[:most]

    def health(self) -> ArchiveHealth:
        return ArchiveHealth(ok=True, pending=0, dropped=0)
