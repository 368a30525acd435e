"""The context page on terminals of any size: nothing runs over its edge, nothing becomes markup, nothing is made up."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench import histories
from governor.cli.context_screen import LOOKS, screen
from governor.compress.report import Measured, report_of
from governor.context import ContextKind, ContextPage, ContextReport, Growth, SessionNote
from governor.policy.model import CompressionMode, CompressionPolicy
from governor.store.growth import growth_of
from governor.tokens.counter import EstimateCounter
from governor.tokens.model import PromptParts
from governor.types import TokenCount
from tests.logged import Talk
from tests.replay.recorded import recorded_requests
from tests.unit.test_compress_report import prompt_of

SIZES = [(40, 10), (80, 24), (120, 40), (200, 60), (80, None)]
EVIL = "\\x1b[31m[bold red]日本語👩‍👩‍👧[/]" * 4


def reported(
    messages: list[bytes], tools: bytes | None = None, *, engine_tokens: int | None = None, tokens: int | None = 50_000
) -> ContextReport:
    counter = EstimateCounter()
    counted = counter.count(PromptParts(messages=messages, tools=tools))
    return report_of(
        Measured(
            messages=messages,
            tools=tools,
            total=counted if tokens is None else TokenCount(tokens=tokens, source="reported"),
            sizes=counter.sizes(messages),
            tools_tokens=0 if tools is None else 4_000,
            counted=False,
        ),
        size_of=lambda raw: counter.sizes([raw])[0],
        policy=CompressionPolicy(mode=CompressionMode.OBSERVE),
        window_tokens=65_536,
        engine_tokens=engine_tokens,
    )


def grown(turns: int = 30) -> Growth:
    talk = Talk()
    for number in range(turns):
        clock = "1" if number % 7 else str(number)
        talk.ask([f"It is {clock}. " + "s" * 900, *["m" * 500] * (number + 1)], at=number, cached=400 if number else 0)
    return growth_of(talk.rows, last=40)


def page(report: ContextReport | None = None, growth: Growth | None = None, agent: str = "ada") -> ContextPage:
    sessions = tuple(SessionNote(session=f"s{number}", messages=3, held=True) for number in range(3))
    return ContextPage(
        agent=agent,
        session="s0",
        now=0.0,
        report=report,
        why_no_report="nothing is held",
        growth=growth,
        sessions=sessions,
    )


def drawn(shown: ContextPage, width: int, height: int | None, top: int | None = None) -> list[str]:
    """As a terminal without colours has it."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    lines = []
    for line in screen(shown, width=width, height=height, top=top):
        assert line.cell_len <= max(40, width), line.plain
        assert line.plain.isprintable()
        with console.capture() as capture:
            console.print(line, no_wrap=True, overflow="crop")
        lines.append(capture.get().rstrip("\n"))
    return lines


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", [request.name for request in recorded_requests()])
def test_real_prompts_fit_on_every_screen(width: int, height: int | None, name: str) -> None:
    [request] = [each for each in recorded_requests() if each.name == name]
    messages, tools = prompt_of(request)
    lines = drawn(page(reported(messages, tools), grown()), width, height)
    if height is not None and height >= 24:
        assert len(lines) <= height
    text = "\n".join(lines)
    assert "50,000 tokens (reported)" in text or width == 40
    assert "window " in text
    assert "growth " in text
    assert "\nlost " in text


def test_a_larger_screen_tells_more() -> None:
    shown = page(reported(histories.tool_chain(30)), grown())
    small, large = drawn(shown, 80, 24), drawn(shown, 80, 50)
    assert len(large) > len(small) + 10
    assert sum("#" in line for line in drawn(shown, 80, 24, top=2)) == 2


def test_the_bar_has_every_kind_without_colour() -> None:
    messages, tools = prompt_of(next(each for each in recorded_requests() if each.name == "openclaw-chat-2"))
    made = reported(messages, tools)
    [bar] = [
        line for line in drawn(page(made, grown()), 80, 24) if len(line) == 80 and len(set(line)) < 14 and "S" in line
    ]
    assert bar == "".join(sorted(bar, key="SKTUARCOIXMGF".index))
    assert len(set(bar)) == len(made.kinds)


def test_colours_are_there_where_the_terminal_has_them() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        for line in screen(page(reported(histories.tool_chain(5)), grown()), width=80, height=24, top=None):
            console.print(line, no_wrap=True, overflow="crop")
    assert "\x1b[30;44m" in capture.get()  # black on blue


def test_words_of_others_are_no_markup() -> None:
    messages = [histories.message("system", f"# {EVIL}\nrules"), histories.message("user", EVIL * 9)]
    text = "\n".join(drawn(page(reported(messages), grown(), agent="[bold]x"), 120, 40))
    assert "[bold red]" in text
    assert text.startswith("[bold]x")


def test_what_the_engine_sees_stands_beside_what_the_client_sent() -> None:
    text = "\n".join(drawn(page(reported(histories.tool_chain(9), engine_tokens=20_000)), 80, 24))
    assert "engine sees 20,000 tokens in place of the client's 50,000 (-30,000)" in text


def test_an_estimate_says_so() -> None:
    made = reported(histories.tool_chain(9), tokens=None)
    text = "\n".join(drawn(page(made), 100, 24))
    assert f"~{made.tokens:,} tokens (estimate: {made.tokens - made.margin_below:,} to " in text


def test_without_a_prompt_growth_is_still_told() -> None:
    text = "\n".join(drawn(page(None, grown()), 80, 24))
    assert "What the prompt is made of is not known: nothing is held." in text
    assert "no longer cached" in text or "volatile bytes in the system prompt (message 0, byte" in text
    assert "prompt    growth    cached" in text


def test_nothing_known_is_said_in_words() -> None:
    text = "\n".join(drawn(page(None, None), 80, 24))
    assert "the turn log cannot be read now" in text
    assert "no turn of this session has ended yet" in "\n".join(drawn(page(None, Growth()), 80, 24))


def test_every_kind_has_a_letter_of_its_own() -> None:
    assert set(LOOKS) == set(ContextKind)
    assert len({letter for letter, _ in LOOKS.values()}) == len(LOOKS)
