"""Traffic of several agents as a plan that two engines can be asked alike: who says what, and after whom.

A plan is made up once, from a seed, and names no engine's answer: a prompt is runs of *words*, which are the same
everywhere, and of *answers*, which are whatever the engine itself said. So each engine gets its own words back, and all
prompts have equal lengths on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from random import Random

import msgspec

from serve.twin.tiers_key import Key

ANSWERS = 1_000_000
"""Sources from here on are answers, each of the turn with that number; those below are words."""
WINDOW_TOKENS = 8192


class Kind(StrEnum):
    """What a turn does with the conversation before it."""

    FRESH = "fresh"
    CONTINUED = "continued"
    DROPPED = "answer dropped"
    REWRITTEN = "answer rewritten"
    BRANCHED = "branched"
    REPEATED = "repeated"
    COMPACTED = "compacted"


class Part(StrEnum):
    """How turns follow each other."""

    ALONE = "one at a time"
    OVERLAPPING = "overlapping"
    AFTER_FLUSH = "after a flush"
    FREE = "free-running"
    AFTER_RESTART = "after a restart"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    number: int
    agent: int
    part: Part
    kind: Kind
    prompt: Key
    writes_tokens: int
    stop_after_tokens: int | None = None
    """Aborted when the client has seen so many."""
    spoke: tuple[int, ...] = ()
    """Steps that must have given their first token before this one starts."""
    ended: tuple[int, ...] = ()
    """Steps that must have ended."""
    pause_s: float = 0.0
    """After that."""

    @property
    def rid(self) -> str:
        return f"turn-{self.number:05d}"

    @property
    def ignores_eos(self) -> bool:
        """Every other one: admission reserves all that such a turn may write, and a share for others."""
        return self.number % 2 == 0

    @property
    def heard_tokens(self) -> int:
        """Of its answer, what the agent may send back."""
        return self.stop_after_tokens or self.writes_tokens


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """L1 and L2 are forgotten."""

    number: int
    ended: tuple[int, ...]
    pause_s: float = 1.0
    """Until what was said is on disk."""
    spoke: tuple[int, ...] = ()


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A new engine on the same disk."""

    number: int
    ended: tuple[int, ...]
    pause_s: float = 2.0
    spoke: tuple[int, ...] = ()


Step = Turn | Flush | Restart


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine served one turn. Times are seconds since the plan's start; a restart takes none."""

    number: int
    prompt_tokens: int
    completion_tokens: int
    device: int
    host: int
    storage: int
    at: float
    first_s: float
    """From the request to the first token; 0 where none came."""
    last_s: float

    @property
    def cached_tokens(self) -> int:
        return self.device + self.host + self.storage


class _Agent:
    def __init__(self, number: int, limit_tokens: int) -> None:
        self.number = number
        self.limit_tokens = limit_tokens
        self.head = Key()
        self.last: Turn | None = None
        self.prompts: list[Key] = []


class Traffic:
    """Makes up one plan. The same seed and sizes give the same plan."""

    def __init__(self, seed: int, agents: int = 5, writes: Sequence[int] = (4, 12, 30, 60, 90, 130, 200)) -> None:
        """``writes``: lengths of answers."""
        self._writes = tuple(writes)
        self._random = Random(seed)  # noqa: S311 - a game, not a secret
        self._words = seed * 10_000
        self.steps: list[Step] = []
        shared = self._say(320)
        self._agents = [_Agent(number, limit) for number, limit in enumerate(self._limits(agents))]
        for agent in self._agents:
            agent.head = shared if agent.number % 3 != 2 else self._say(self._random.randint(100, 700))

    def alone(self, turns: int, part: Part = Part.ALONE) -> None:
        """Each after the end of the one before."""
        for _ in range(turns):
            self._add(self._random.choice(self._agents), part, ended=self._before(1))

    def overlapping(self, turns: int, together: int = 3) -> None:
        """Each when the one before has its first token, and no more than ``together`` at once."""
        first = len(self.steps)
        for count in range(turns):
            spoke = (self.steps[-1].number,) if count else ()
            ended = (self.steps[-together].number,) if count >= together else self._before(1) if not count else ()
            self._add(self._idle_agent(first, together), Part.OVERLAPPING, ended=ended, spoke=spoke)

    def free(self, turns: int, longest_pause_s: float = 1.5) -> None:
        """Every agent for itself."""
        all_before = tuple(step.number for step in self.steps)
        for count in range(turns):
            agent = self._agents[count % len(self._agents)]
            pause_s = round(self._random.uniform(0.02, longest_pause_s), 3)
            self._add(agent, Part.FREE, ended=all_before, pause_s=pause_s)

    def flush(self) -> None:
        self.steps.append(Flush(number=len(self.steps), ended=tuple(step.number for step in self.steps)))

    def restart(self) -> None:
        self.steps.append(Restart(number=len(self.steps), ended=tuple(step.number for step in self.steps)))

    def _limits(self, agents: int) -> Iterator[int]:
        for number in range(agents):
            yield (1500, 4000, 2600, 3200, 2000, 3600)[number % 6]

    def _say(self, tokens: int) -> Key:
        self._words += 1
        return Key([(self._words, 0, tokens)])

    def _before(self, count: int) -> tuple[int, ...]:
        return tuple(step.number for step in self.steps[-count:])

    def _idle_agent(self, first: int, together: int) -> _Agent:
        """Who spoke last cannot go on before its end."""
        busy = {
            step.agent for step in self.steps[max(first, len(self.steps) - together + 1) :] if isinstance(step, Turn)
        }
        return self._random.choice([agent for agent in self._agents if agent.number not in busy])

    def _add(
        self, agent: _Agent, part: Part, *, ended: tuple[int, ...], spoke: tuple[int, ...] = (), pause_s: float = 0.0
    ) -> None:
        kind, prompt = self._prompt(agent)
        writes = self._random.choice(self._writes)
        stop = None
        if self._random.random() < 0.1:
            writes, stop = 300, self._random.randint(10, 200)
        own = (agent.last.number,) if agent.last else ()
        turn = Turn(
            number=len(self.steps),
            agent=agent.number,
            part=part,
            kind=kind,
            prompt=prompt,
            writes_tokens=writes,
            stop_after_tokens=stop,
            spoke=spoke,
            ended=tuple(sorted({*ended, *own})),
            pause_s=pause_s,
        )
        self.steps.append(turn)
        agent.last = turn
        agent.prompts.append(prompt)

    def _prompt(self, agent: _Agent) -> tuple[Kind, Key]:
        random, last = self._random, agent.last
        grows = self._say(random.choice((15, 40, 80, 150, 300, 500)))
        if last is None:
            return Kind.FRESH, agent.head + self._say(random.randint(200, agent.limit_tokens - 500))
        if len(last.prompt) + last.heard_tokens > agent.limit_tokens:
            return Kind.COMPACTED, agent.head + self._say(random.randint(150, 500)) + grows
        heard = Key([(ANSWERS + last.number, 0, last.heard_tokens)])
        pick = random.random()
        if pick < 0.55:
            return Kind.CONTINUED, last.prompt + heard + grows
        if pick < 0.63:
            return Kind.DROPPED, last.prompt + grows
        if pick < 0.70:
            return Kind.REWRITTEN, last.prompt + heard.cut(0, random.randint(0, len(heard) - 1)) + self._say(30) + grows
        if pick < 0.84:
            context = random.choice(agent.prompts[-6:])
            return Kind.BRANCHED, context.cut(0, random.randint(1, len(context))) + grows
        if pick < 0.93:
            return Kind.REPEATED, random.choice(agent.prompts[-6:])
        return Kind.FRESH, agent.head + self._say(random.randint(200, 900))


def long_plan(seed: int = 1) -> list[Step]:
    """All that there is; four minutes on the engine."""
    traffic = Traffic(seed, agents=6)
    traffic.alone(60)
    traffic.overlapping(50)
    traffic.flush()
    traffic.alone(16, Part.AFTER_FLUSH)
    traffic.free(70)
    traffic.restart()
    traffic.alone(16, Part.AFTER_RESTART)
    return traffic.steps


def short_plan(seed: int = 2) -> list[Step]:
    """Without a restart; half a minute on the engine."""
    traffic = Traffic(seed, agents=5)
    traffic.alone(20)
    traffic.overlapping(15)
    traffic.flush()
    traffic.alone(8, Part.AFTER_FLUSH)
    traffic.free(12, longest_pause_s=0.5)
    return traffic.steps


def crowded_plan(seed: int = 3) -> list[Step]:
    """More than L1 holds at once, so that turns wait for room; a minute on the engine."""
    traffic = Traffic(seed, agents=6, writes=(30, 90, 200, 400, 700))
    traffic.free(60, longest_pause_s=0.3)
    return traffic.steps


def in_order_of(steps: list[Step], served: Sequence[Served]) -> list[Step]:
    """The same plan, with each turn of the free-running part held back until what had happened on that engine when it
    was sent there has happened: the order is the engine's, the times are not."""
    seen = {each.number: each for each in served}
    ordered: list[Step] = []
    for step in steps:
        if not isinstance(step, Turn) or step.part is not Part.FREE:
            ordered.append(step)
            continue
        sent = seen[step.number].at
        spoke = {
            each.number: each.at + each.first_s for each in served if each.first_s and each.at + each.first_s < sent
        }
        ended = {each.number: each.at + each.last_s for each in served if each.at + each.last_s < sent}
        ordered.append(
            msgspec.structs.replace(
                step,
                spoke=tuple(spoke),
                ended=tuple({*step.ended, *ended}),
                pause_s=min(sent - each for each in (0.0, *spoke.values(), *ended.values())),
            )
        )
    return ordered


def turns_of(steps: list[Step]) -> list[Turn]:
    return [step for step in steps if isinstance(step, Turn)]


PLANS = {"long": long_plan, "short": short_plan, "crowded": crowded_plan}
