"""The session index under arbitrary traffic: its books agree, and what it says of a prompt is true of what was sent."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.tokens.chain import SessionIndex, SessionLimits, digest_head
from governor.types import AgentName, PromptShape

MESSAGES = [b'{"role":"system","content":"s"}', b'{"role":"system","content":"t"}'] + [
    f'{{"role":"{role}","content":"{text}"}}'.encode() for role in ("user", "assistant", "tool") for text in "ab"
]
prompts = st.lists(st.sampled_from(MESSAGES), max_size=7)
requests = st.tuples(
    st.sampled_from(["x", "y"]), prompts, st.sampled_from([None, None, "c1", "c2"]), st.sampled_from([b"[1]", None])
)


@settings(max_examples=200, deadline=None)
@given(st.lists(requests, max_size=25), st.integers(1, 4), st.integers(1, 3), st.integers(0, 400))
def test_books_agree_and_claims_are_true(
    traffic: list[tuple[str, list[bytes], str | None, bytes | None]], sessions: int, paths: int, raw_bytes: int
) -> None:
    limits = SessionLimits(
        sessions=sessions, sessions_per_agent=max(1, sessions - 1), paths_per_session=paths, raw_bytes=raw_bytes
    )
    index = SessionIndex(limits)
    sent: dict[tuple[str, str], list[tuple[bytes | None, list[bytes]]]] = {}
    sizes: dict[tuple[str, bytes | None, tuple[bytes, ...]], int] = {}
    for name, messages, client, tools in traffic:
        located = index.locate(AgentName(name), digest_head("m", tools), messages, client, tools=tools)
        index.check_integrity()
        before = sent.setdefault((name, located.session_id), [])
        shared = messages[: located.shared_messages]
        if located.shared_messages:
            assert any(earlier[: len(shared)] == shared for _, earlier in before)
        if located.shape is PromptShape.REPEAT:
            assert (tools, messages) in before or any(
                tools == old and earlier[: len(messages)] == messages for old, earlier in before
            )
        if located.shape is PromptShape.CONTINUATION and located.broke_at is None:
            assert (tools, shared) in before
        if located.known is not None:
            reported = (*messages[: located.known.messages], *located.known.removed)
            assert sizes[name, tools, reported] == located.known.prompt_tokens
        tokens = 7 * len(messages) + len(sizes) * 100
        index.record(located, prompt_tokens=tokens)
        sizes[name, tools, tuple(messages)] = tokens
        before.append((tools, messages))


@settings(max_examples=100, deadline=None)
@given(prompts.filter(bool), st.sampled_from([None, "c1"]))
def test_sent_twice_is_a_repeat(messages: list[bytes], client: str | None) -> None:
    index = SessionIndex()
    head = digest_head("m", None)
    first = index.locate(AgentName("x"), head, messages, client)
    second = index.locate(AgentName("x"), head, messages, client)

    assert first.shape is PromptShape.FRESH
    assert (second.shape, second.shared_messages) == (PromptShape.REPEAT, len(messages))
    assert second.session_id == first.session_id
