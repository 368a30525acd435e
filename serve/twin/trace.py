"""The trace format: what agents ask of an engine, written so that it can be asked again under other rules.

A trace is JSON lines. The first is the header; each other one is an agent, a session, a turn or a generator, told by
``"line"``. Order matters in two ways only: a session stands after its agent, and a session's turns stand in the order
in which they are asked. Content is nowhere: a prompt is told by how it relates to the one before it in its session.

A turn begins some time after the one before it in its session has ended (a closed loop: slower answers make a longer
day), or at a moment of its own. Sessions go on side by side. A generator stands for a session whose turns are drawn.

It lives beside the twin because both the simulator and the recorder of real traffic speak it. ``docs/design/trace.md``
has the same with examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

from governor.types import PromptShape, TurnKind
from serve.errors import ServeError

VERSION = 1

Tokens = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
Some = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class Client(StrEnum):
    """Which program an agent is; decides how it takes refusals, silence and a full context."""

    PLAIN = "plain"
    """A script on an SDK: two retries with backoff, no compaction."""
    HERMES = "hermes"
    OPENCLAW = "openclaw"


class PieceKind(StrEnum):
    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"


class Echo(StrEnum):
    """How a client sends back what the model wrote in the turn before."""

    EXACT = "exact"
    """Token for token."""
    REWRITTEN = "rewritten"
    """As other tokens: arguments sorted anew, spaces stripped. As many, unless ``echo_tokens`` says how many."""
    DROPPED = "dropped"
    """Not at all."""


class _Line(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="line", forbid_unknown_fields=True, omit_defaults=True
):
    pass


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Header(_Line, frozen=True, kw_only=True, tag="header"):
    """The first line."""

    version: int = VERSION
    name: Name
    summary: str = ""
    window_tokens: Some | None = None
    """What the agents believe to be the engine's window; ``None``: what the engine has."""
    until_s: Seconds | None = None
    """When watching ends; who runs then is cut off. ``None``: when all turns have ended."""
    sources: tuple[str, ...] = ()
    """Where the figures are from."""
    calibration: dict[str, str] = {}
    """Figures chosen so that the trace does what was seen, each with its reason."""
    unknown: tuple[str, ...] = ()
    """What whoever recorded it could not know, and what stands in its place."""


class Compaction(_Part, frozen=True, kw_only=True):
    """It compacts by its client's own rules (``governor.simulate.behaviour``), but for what stands here."""

    threshold: Share | None = None
    """Share of the window at which it compacts."""
    summary_output: Some | None = None
    """Tokens that the model writes to a summary call, its reasoning included; ``None``: as many as the client aims
    at."""


class Agent(_Line, frozen=True, kw_only=True, tag="agent"):
    """One agent: what a policy is for."""

    name: Name
    client: Client = Client.PLAIN
    policy: Name | None = None
    """Shipped policy it stands on where nothing else names one."""
    compaction: Compaction | None = None
    """``None``: its compactions are turns of the trace, as in one that was recorded."""


class Shared(_Part, frozen=True, kw_only=True):
    """What a fresh prompt of the session begins with: system prompt and tools."""

    name: Name
    """Equal names are equal tokens, whoever sends them; the shorter one is a beginning of the longer."""
    tokens: Some


class Session(_Line, frozen=True, kw_only=True, tag="session"):
    """A conversation."""

    agent: Name
    session: Name
    start_s: Seconds = 0.0
    """What the first turn's ``after_s`` counts from, in seconds from the trace's beginning."""
    shared: Shared | None = None


class Piece(_Part, frozen=True, kw_only=True):
    """Something new in a prompt: one message."""

    kind: PieceKind = PieceKind.USER
    tokens: Tokens


class Turn(_Line, frozen=True, kw_only=True, tag="turn"):
    """One request, and what the model will write to it."""

    agent: Name
    session: Name
    kind: TurnKind = TurnKind.TOOL_STEP
    after_s: Seconds = 0.0
    """Think or tool time: from the end of the session's turn before, or from its start."""
    at_s: Seconds | None = None
    """Not before this moment, counted from the trace's beginning; ``after_s`` holds besides."""
    shape: PromptShape = PromptShape.CONTINUATION
    """How the prompt relates to the session's conversation: what was sent and written last. A first turn is fresh,
    whatever stands here."""
    branch_at: Tokens | None = None
    """``branch``: how many of the conversation's tokens it begins with."""
    echo: Echo = Echo.EXACT
    """``continuation``: what has become of the answer before."""
    echo_tokens: Tokens | None = None
    """``rewritten``: how many tokens it is now."""
    new: tuple[Piece, ...] = ()
    """What follows, in order. ``repeat`` has nothing new."""
    carrier_tokens: Tokens = 0
    """Of ``new``, at its end: moved to the end of each next prompt, and so cut off by it (OpenClaw's carrier)."""
    output_tokens: Some
    """Where the model would stop by itself."""
    cap: Some | None = None
    """What the client asks for as most; ``None``: nothing, which is: up to the window."""
    accept_length: Annotated[float, msgspec.Meta(ge=1)] | None = None
    """Tokens a decode step, where this text is easier or harder to guess than the machine's."""
    patience_s: Seconds | None = None
    """Silence after which the client hangs up, over the client's own."""
    aside: bool = False
    """A side call: the conversation goes on as if it had not been."""


class Distribution(_Part, frozen=True, kw_only=True):
    """A quantity that is drawn: log-normal, the form of think times and answer lengths. ``sigma`` 0 is a constant."""

    median: Seconds
    sigma: Seconds = 0.0
    """Of the logarithm: 0.5 puts 95 % within a factor of 2.7."""
    low: Seconds = 0.0
    high: Seconds | None = None


class Generator(_Line, frozen=True, kw_only=True, tag="generator"):
    """A session that goes on until ``until_s``: a user asks, the model calls tools for some steps and answers, the user
    thinks. After ``rounds`` such rounds it begins anew, with an empty context."""

    agent: Name
    session: Name
    start_s: Seconds = 0.0
    until_s: Seconds
    shared: Shared | None = None
    first_tokens: Distribution = Distribution(median=2000, sigma=0.5)
    """Of the first user message: the task and its files."""
    user_tokens: Distribution = Distribution(median=200, sigma=0.8)
    tool_tokens: Distribution = Distribution(median=1500, sigma=1.0, high=20_000)
    """Of one tool result."""
    steps: Distribution = Distribution(median=6, sigma=0.7)
    """Tool calls before the answer."""
    rounds: Distribution = Distribution(median=8, sigma=0.5, low=1)
    tool_s: Distribution = Distribution(median=4, sigma=1.2, high=600)
    think_s: Distribution = Distribution(median=60, sigma=1.0, high=3600)
    step_output: Distribution = Distribution(median=250, sigma=0.8, low=1, high=8000)
    """Tokens written with a tool call."""
    final_output: Distribution = Distribution(median=700, sigma=0.8, low=1, high=16_000)
    runaway: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Chance that an answer does not stop by itself before its cap or the window."""
    echo: Echo = Echo.REWRITTEN
    carrier_tokens: Tokens = 0
    cap: Some | None = None
    accept_length: Annotated[float, msgspec.Meta(ge=1)] | None = None


Line = Header | Agent | Session | Turn | Generator


class Script(msgspec.Struct, frozen=True):
    """A session with its turns."""

    session: Session
    turns: tuple[Turn, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A whole trace, its references checked."""

    header: Header
    agents: tuple[Agent, ...]
    scripts: tuple[Script, ...] = ()
    generators: tuple[Generator, ...] = ()

    def lines(self) -> list[Line]:
        """As they are written to a file."""
        lines: list[Line] = [self.header, *self.agents]
        for script in self.scripts:
            lines += [script.session, *script.turns]
        return [*lines, *self.generators]


_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


def write_trace(trace: Trace) -> bytes:
    """The file's content."""
    return b"".join(_encoder.encode(line) + b"\n" for line in trace.lines())


def read_trace(content: bytes, file: str = "trace") -> Trace:
    """The other way. Raises :class:`~serve.errors.ServeError`, naming file and line."""
    lines: list[Line] = []
    for number, text in enumerate(content.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            lines.append(_decoder.decode(text))
        except msgspec.DecodeError as error:
            raise ServeError(f"{file}:{number}: {error}.") from error
    try:
        return assembled(lines)
    except ServeError as error:
        raise ServeError(f"{file}: {error}") from error


def assembled(lines: Sequence[Line]) -> Trace:
    """A trace of its lines. Raises :class:`~serve.errors.ServeError` where they do not belong together."""
    if not lines or not isinstance(lines[0], Header):
        raise ServeError("The first line must be the header.")
    header = lines[0]
    if header.version != VERSION:
        raise ServeError(f"This is a trace of version {header.version}; this program reads version {VERSION}.")
    agents: dict[str, Agent] = {}
    sessions: dict[tuple[str, str], Session | Generator] = {}
    turns: dict[tuple[str, str], list[Turn]] = {}
    for line in lines[1:]:
        match line:
            case Header():
                raise ServeError("There is a second header.")
            case Agent(name=name):
                _once(name not in agents, f"agent {name!r}")
                agents[name] = line
            case Session() | Generator():
                if line.agent not in agents:
                    raise ServeError(f"Session {line.session!r} is of an agent that is not there, {line.agent!r}.")
                _once((line.agent, line.session) not in sessions, f"session {line.session!r} of {line.agent!r}")
                sessions[line.agent, line.session] = line
            case Turn():
                owner = sessions.get((line.agent, line.session))
                if not isinstance(owner, Session):
                    raise ServeError(f"A turn is of a session that is not there, {line.session!r} of {line.agent!r}.")
                _check(line)
                turns.setdefault((line.agent, line.session), []).append(line)
    return Trace(
        header=header,
        agents=tuple(agents.values()),
        scripts=tuple(
            Script(each, tuple(turns.get(key, ()))) for key, each in sessions.items() if isinstance(each, Session)
        ),
        generators=tuple(each for each in sessions.values() if isinstance(each, Generator)),
    )


def new_tokens(pieces: Iterable[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _once(is_first: bool, what: str) -> None:
    if not is_first:
        raise ServeError(f"There is a second {what}.")


def _check(turn: Turn) -> None:
    if turn.shape is PromptShape.BRANCH and turn.branch_at is None:
        raise ServeError(f"A turn of {turn.session!r} branches off, but branch_at is missing.")
    if turn.shape is PromptShape.REPEAT and turn.new:
        raise ServeError(f"A turn of {turn.session!r} repeats its prompt and has something new.")
    if turn.carrier_tokens > new_tokens(turn.new):
        raise ServeError(f"A turn of {turn.session!r} has a carrier larger than what is new in it.")
