"""Lowered usage: what changes, and that nothing else does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.wire import told_usage as wire

CHUNK = (
    b'{"id": "c1" , "choices":[], "usage" : {"prompt_tokens": 60000,"completion_tokens":7, "total_tokens":60007,'
    b' "prompt_tokens_details":{"cached_tokens":59000, "audio_tokens":0}},"x":1.50,"y":"\\u00e9"}'
)


def told_usage(data: bytes, most_tokens: int | None) -> bytes:
    return wire.told_usage(data, lambda _: most_tokens)


def usage_of(data: bytes) -> Any:
    return msgspec.json.decode(data)["usage"]


def test_the_figure_is_lowered_and_the_rest_follows() -> None:
    assert told_usage(CHUNK, 40_000) == (
        b'{"id": "c1" , "choices":[], "usage" : {"prompt_tokens": 40000,"completion_tokens":7, "total_tokens":40007,'
        b' "prompt_tokens_details":{"cached_tokens":40000, "audio_tokens":0},"governor":{"prompt_tokens":60000}},'
        b'"x":1.50,"y":"\\u00e9"}'
    )


def test_what_was_cached_is_kept_where_it_is_less() -> None:
    assert usage_of(told_usage(CHUNK, 59_500))["prompt_tokens_details"]["cached_tokens"] == 59_000


@pytest.mark.parametrize("most_tokens", [60_000, 60_001, 10**9, None])
def test_a_figure_that_is_low_enough_is_told_as_it_is(most_tokens: int | None) -> None:
    assert told_usage(CHUNK, most_tokens) is CHUNK


@pytest.mark.parametrize(
    "data",
    [
        b"[DONE]",
        b"",
        b"not json usage",
        b'{"usage": null}',
        b'{"usage": 5}',
        b'{"usage": {"prompt_tokens": "60000"}}',
        b'{"usage": {"prompt_tokens": -1}}',
        b'{"usage": {"prompt_tokens": 60000.5}}',
        b'{"usage": {"prompt_tokens": 60000, "prompt_tokens": 1}}',
        b'{"choices": [{"delta": {"content": "the \\"usage\\" field"}}]}',
        b'{"choices": [{"delta": {"content": "{\\"usage\\": {\\"prompt_tokens\\": 60000}}"}}]}',
        b'{"usage": {"input_tokens": 60000}}',
    ],
)
def test_what_has_no_readable_figure_stays(data: bytes) -> None:
    assert told_usage(data, 10) is data


def test_what_is_missing_stays_missing() -> None:
    told = usage_of(told_usage(b'{"usage": {"prompt_tokens": 50, "prompt_tokens_details": null}}', 10))
    assert told == {"prompt_tokens": 10, "prompt_tokens_details": None, "governor": {"prompt_tokens": 50}}


def test_a_total_that_alone_tells_the_answer() -> None:
    assert usage_of(told_usage(b'{"usage": {"prompt_tokens": 50, "total_tokens": 57}}', 10))["total_tokens"] == 17


counts = st.integers(min_value=0, max_value=10**6)


@given(prompt=counts, completion=counts, cached=counts, most=st.integers(min_value=1, max_value=10**6))
def test_figures_agree(prompt: int, completion: int, cached: int, most: int) -> None:
    usage = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
    }
    data = msgspec.json.encode({"usage": usage, "choices": [{"index": 0, "finish_reason": "stop"}]})
    told = msgspec.json.decode(told_usage(data, most))
    now = told["usage"]
    assert now["prompt_tokens"] == min(prompt, most)
    assert now["total_tokens"] == now["prompt_tokens"] + completion
    assert now["prompt_tokens_details"]["cached_tokens"] <= now["prompt_tokens"]
    assert now.get("governor", {}).get("prompt_tokens", now["prompt_tokens"]) == prompt
    assert told["choices"] == [{"index": 0, "finish_reason": "stop"}]
