"""Heads from memory and from the archive, whoever asks at the same time."""

from __future__ import annotations

import asyncio

from governor.gateway.heads import Heads
from governor.store.archive_model import ArchiveHealth, Compaction, Head, LeftText, Recalled
from governor.types import AgentName, SessionId

AGENT, SESSION = AgentName("alice"), SessionId("s")
STORED = 8


def head(number: int) -> Head:
    return Head(
        agent=AGENT, session=SESSION, covered=number, chain=bytes([number]), loose_chain=bytes([number]),
        messages=(b"{}",), made_at=number, before_tokens=2, after_tokens=1,
    )  # fmt: skip


class SlowArchive:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[None]] = []

    async def heads(self, agent: AgentName, session: SessionId) -> tuple[Head, ...]:
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return tuple(head(number) for number in range(1, STORED + 1))

    def keep(self, head: Head, left: tuple[LeftText, ...], compaction: Compaction) -> None:
        raise NotImplementedError

    def note(self, compaction: Compaction) -> None:
        raise NotImplementedError

    async def recall(self, handle: str, agent: AgentName | None = None) -> Recalled | None:
        raise NotImplementedError

    async def compactions(self, agent: AgentName | None = None, most: int = 100) -> tuple[Compaction, ...]:
        raise NotImplementedError

    def health(self) -> ArchiveHealth:
        return ArchiveHealth(ok=True, pending=0, dropped=0)


async def test_a_second_answer_does_not_push_out_a_head_made_since() -> None:
    """Two turns of a conversation are the first after a restart; one makes a head before the other has its answer."""
    archive = SlowArchive()
    heads = Heads(archive)
    turns = [asyncio.create_task(heads.find(AGENT, SESSION, (), ())) for _ in range(2)]
    await asyncio.sleep(0)
    assert len(archive.answers) == len(turns)
    archive.answers[0].set_result(None)
    await turns[0]
    made = head(99)
    heads.add(made)
    archive.answers[1].set_result(None)
    await turns[1]
    held = heads.book.of((AGENT, SESSION))
    assert held[-1] is made
    assert len(held) == len({each.covered for each in held}) == STORED
