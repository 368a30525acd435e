"""Output caps: prompt and cap fit the window, never under the floor, never more than the client asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import ContextOverflow
from governor.output.caps import CapDecision, CapReason, decide_cap, effective_window, wanted_cap
from governor.policy.model import ContextPolicy, OutputPolicy, Policy
from governor.types import TokenCount, TurnKind

_TOKENS = st.integers(1, 300_000)
_KINDS = st.sampled_from([kind for kind in TurnKind if kind is not TurnKind.SUMMARY])


def _policy(floor: int = 16, default: int | None = None, cap: int = 8192, ceiling: int | None = None) -> Policy:
    output = OutputPolicy(
        tool_step=cap, final=cap, compaction=cap, title=cap, background=cap, default=default, floor=floor
    )
    return Policy(output=output, context=ContextPolicy(ceiling_tokens=ceiling))


@given(
    prompt=st.integers(0, 300_000),
    margin=st.integers(0, 50_000),
    margin_below=st.none() | st.integers(0, 50_000),
    window=st.none() | _TOKENS,
    requested=st.none() | _TOKENS,
    floor=st.integers(1, 500),
    above_floor=st.integers(0, 100_000),
    default=st.none() | _TOKENS,
    kind=_KINDS,
    tools_usable=st.booleans(),
)
def test_every_cap(
    prompt: int,
    margin: int,
    margin_below: int | None,
    window: int | None,
    requested: int | None,
    floor: int,
    above_floor: int,
    default: int | None,
    kind: TurnKind,
    tools_usable: bool,
) -> None:
    policy = _policy(floor=floor, default=default, cap=floor + above_floor)
    below = None if margin_below is None else min(margin_below, margin)
    count = TokenCount(tokens=prompt, margin=margin, margin_below=below)
    wanted, _ = wanted_cap(policy, kind, requested)
    too_long = window is not None and count.lower + min(floor, wanted) > window
    self_clamped = window is not None and tools_usable and prompt > window // 2
    self_clamped = self_clamped and requested is not None and requested < floor

    def decide() -> CapDecision:
        return decide_cap(
            policy, kind, requested=requested, prompt=count, window_tokens=window, tools_usable=tools_usable
        )

    if too_long or self_clamped:
        with pytest.raises(ContextOverflow) as caught:
            decide()
        assert (caught.value.prompt_tokens, caught.value.window_tokens) == (prompt, window)
        return
    cap = decide()
    assert 1 <= cap.tokens <= floor + above_floor
    assert requested is None or cap.tokens <= requested
    assert cap.tokens >= min(floor, wanted)
    if window is not None and cap.tokens > min(floor, wanted):
        assert prompt + margin + cap.tokens <= window
    if window is not None:
        assert count.lower + cap.tokens <= window or cap.tokens == min(floor, wanted)
    assert (cap.reason is CapReason.WINDOW) == (cap.tokens < wanted)


@pytest.mark.parametrize(
    ("requested", "default", "cap", "reason"),
    [
        (100, None, 100, CapReason.CLIENT),
        (8192, None, 8192, CapReason.CLIENT),
        (65_536, None, 8192, CapReason.POLICY),
        (None, None, 8192, CapReason.POLICY),
        (None, 500, 500, CapReason.DEFAULT),
        (None, 9000, 8192, CapReason.POLICY),
        (1, None, 1, CapReason.CLIENT),
    ],
)
def test_before_the_window(requested: int | None, default: int | None, cap: int, reason: CapReason) -> None:
    assert wanted_cap(_policy(default=default), TurnKind.FINAL, requested) == (cap, reason)


def test_stock_hermes_on_a_small_window() -> None:
    """65,536 asked for on a window of 65,536 simply works."""
    cap = decide_cap(
        _policy(cap=100_000),
        TurnKind.TOOL_STEP,
        requested=65_536,
        prompt=TokenCount(tokens=20_000, margin=1_000),
        window_tokens=65_536,
        tools_usable=True,
    )
    assert (cap.tokens, cap.reason, cap.requested) == (44_536, CapReason.WINDOW, 65_536)


@pytest.mark.parametrize("requested", [1, 15])
def test_a_client_that_has_clamped_itself_to_nothing_hears_that_it_is_full(requested: int) -> None:
    def decide(prompt_tokens: int, *, tools_usable: bool) -> int:
        return decide_cap(
            _policy(),
            TurnKind.TOOL_STEP,
            requested=requested,
            prompt=TokenCount(tokens=prompt_tokens),
            window_tokens=65_536,
            tools_usable=tools_usable,
        ).tokens

    with pytest.raises(ContextOverflow):
        decide(60_000, tools_usable=True)
    assert decide(1_000, tools_usable=True) == requested
    assert decide(60_000, tools_usable=False) == requested


def test_an_inexact_count_refuses_only_beyond_its_margin() -> None:
    def decide(prompt: TokenCount) -> int:
        return decide_cap(_policy(), TurnKind.FINAL, requested=None, prompt=prompt, window_tokens=4096).tokens

    assert decide(TokenCount(tokens=5000, margin=2000)) == 16
    assert decide(TokenCount(tokens=4080)) == 16
    for surely_over in (TokenCount(tokens=4081), TokenCount(tokens=5000, margin=2000, margin_below=800)):
        with pytest.raises(ContextOverflow) as caught:
            decide(surely_over)
        assert "maximum context length is 4096 tokens" in caught.value.message
        assert str(surely_over.tokens) in caught.value.message


@pytest.mark.parametrize(
    ("engine", "ceiling", "window"),
    [(None, None, None), (100, None, 100), (None, 90, 90), (100, 90, 90), (80, 90, 80)],
)
def test_the_smaller_window_counts(engine: int | None, ceiling: int | None, window: int | None) -> None:
    assert effective_window(engine, _policy(ceiling=ceiling)) == window
