"""What a trace holds, in figures: its prompts are sized as if every answer became as long as it stands there. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from governor.simulate.conversation import Conversation, Sources
from serve.twin.trace import Client, Script, Trace


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One agent of a trace; what its generators will ask is not known before a run."""

    agent: str
    client: Client
    policy: str | None
    sessions: int
    generators: int
    turns: int
    prompt_tokens: int
    """All its prompts together."""
    longest_prompt_tokens: int
    output_tokens: int
    longest_output_tokens: int
    uncapped_turns: int
    """Those in which the client asks for no cap."""
    think_s: float
    """Think and tool times together."""


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A whole trace."""

    name: str
    summary: str
    window_tokens: int | None
    until_s: float | None
    last_start_s: float
    """Seconds to the last moment that stands in it; how long a run takes depends on the engine."""
    turns: int
    agents: tuple[AgentSummary, ...]
    sources: tuple[str, ...]
    calibration: dict[str, str]
    unknown: tuple[str, ...]


def summarised(trace: Trace) -> TraceSummary:
    """The figures of a trace."""
    agents = tuple(_agent(trace, agent.name, agent.client, agent.policy) for agent in trace.agents)
    starts = [script.session.start_s for script in trace.scripts]
    starts += [turn.at_s for script in trace.scripts for turn in script.turns if turn.at_s is not None]
    starts += [generator.until_s for generator in trace.generators]
    return TraceSummary(
        name=trace.header.name,
        summary=trace.header.summary,
        window_tokens=trace.header.window_tokens,
        until_s=trace.header.until_s,
        last_start_s=max(starts, default=0.0),
        turns=sum(agent.turns for agent in agents),
        agents=agents,
        sources=trace.header.sources,
        calibration=trace.header.calibration,
        unknown=trace.header.unknown,
    )


def _agent(trace: Trace, name: str, client: Client, policy: str | None) -> AgentSummary:
    scripts = [script for script in trace.scripts if script.session.agent == name]
    turns = [turn for script in scripts for turn in script.turns]
    prompts = [size for script in scripts for size in _prompt_sizes(script)]
    return AgentSummary(
        agent=name,
        client=client,
        policy=policy,
        sessions=len(scripts),
        generators=sum(1 for generator in trace.generators if generator.agent == name),
        turns=len(turns),
        prompt_tokens=sum(prompts),
        longest_prompt_tokens=max(prompts, default=0),
        output_tokens=sum(turn.output_tokens for turn in turns),
        longest_output_tokens=max((turn.output_tokens for turn in turns), default=0),
        uncapped_turns=sum(1 for turn in turns if turn.cap is None),
        think_s=sum(turn.after_s for turn in turns),
    )


def _prompt_sizes(script: Script) -> Sequence[int]:
    conversation = Conversation(Sources(), script.session.shared)
    sizes = []
    for turn in script.turns:
        sizes.append(len(conversation.prompt_for(turn)))
        if not turn.aside:
            conversation.answered(conversation.write(turn.output_tokens))
    return sizes
