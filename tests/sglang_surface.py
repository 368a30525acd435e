"""The form of SGLang's answers, field by field: what the governor reads of them, and what its tests stand on.

As :mod:`tests.sglang_adapter`, asked of the real one and of the twin's server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from governor.wire.sse import SseSplitter
from tests.sglang_adapter import MODEL, Served

CHUNK = {"id", "object", "created", "model", "choices"}
USAGE = {
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "reasoning_tokens",
    "completion_tokens_details",
}
TIERS = {"device", "host", "storage", "storage_backend"}
WEIGHTS = {"version": "default", "start": 0}
ERROR = {"object", "message", "type", "param", "code"}
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say something. " * 60}],
    "max_tokens": 6,
    "ignore_eos": True,
    "return_cached_tokens_details": True,
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
}
LOAD = {
    "timestamp",
    "dp_rank",
    "num_running_reqs",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "num_used_tokens",
    "num_total_tokens",
    "num_active_tokens",
    "num_prealloc_ready_tokens",
    "max_total_num_tokens",
    "max_running_requests",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "utilization",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
    "decode_moments",
}


@pytest.fixture
async def direct(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=120, trust_env=False) as client:
        yield client


async def stream_of(direct: httpx.AsyncClient, path: str, body: Any, framed: bool = False) -> list[tuple[str, Any]]:
    """Names of events, mostly none, and what they say; the last one must be ``[DONE]``."""
    headers = {"x-sglext-ids-framed": "1"} if framed else {}
    answer = await direct.post(path, json=body | {"stream": True}, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = list(SseSplitter().feed(answer.raise_for_status().content))
    assert told[-1].data == b"[DONE]"
    return [
        ("sglext_ids" if event.raw.startswith(b"event: sglext_ids") else "", msgspec.json.decode(event.data))
        for event in told[:-1]
        if event.data is not None
    ]


async def test_a_chat_stream_piece_by_piece(direct: httpx.AsyncClient) -> None:
    body = CHAT | {"stream_options": {"include_usage": True}}
    await direct.post("/v1/chat/completions", json=CHAT)
    (_, role), *texts, (_, finish), (_, tiers), (name, ids), (_, usage) = await stream_of(
        direct, "/v1/chat/completions", body, framed=True
    )
    assert role.keys() == finish.keys() == CHUNK
    assert role["object"] == "chat.completion.chunk"
    choice = {"index": 0, "logprobs": None, "finish_reason": None, "matched_stop": None}
    assert role["choices"] == [choice | {"delta": {"reasoning_content": None, "role": "assistant", "content": ""}}]
    assert all(text.keys() == CHUNK and text["choices"][0].keys() == {*choice, "delta"} for _, text in texts)
    assert finish["choices"] == [choice | {"delta": {"reasoning_content": None}, "finish_reason": "length"}]
    assert tiers.keys() == ids.keys() == {*CHUNK, "usage", "sglext"}
    assert (tiers["choices"], tiers["usage"], tiers["sglext"].keys()) == ([], None, {"cached_tokens_details"})
    assert tiers["sglext"]["cached_tokens_details"].keys() == TIERS
    assert tiers["sglext"]["cached_tokens_details"]["storage_backend"] == "HiCacheFile"
    assert (name, ids["sglext"].keys()) == ("sglext_ids", {"input_ids", "output_ids"})
    assert [len(each) for each in ids["sglext"]["output_ids"]] == [6]
    assert (usage["choices"], usage.keys()) == ([], {*CHUNK, "usage"})
    assert usage["usage"].keys() == USAGE
    assert usage["usage"]["prompt_tokens"] == len(ids["sglext"]["input_ids"])
    assert usage["usage"]["prompt_tokens_details"].keys() == {"cached_tokens"}


async def test_what_was_not_cached_has_no_tiers(direct: httpx.AsyncClient) -> None:
    short = CHAT | {"messages": [{"role": "user", "content": "Hi."}], "stream_options": {"include_usage": True}}
    *_, (_, finish), (name, ids), (_, usage) = await stream_of(direct, "/v1/chat/completions", short, framed=True)
    assert finish["choices"][0]["finish_reason"] == "length"
    assert (name, ids["sglext"].keys()) == ("sglext_ids", {"input_ids", "output_ids"})
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    whole = (await direct.post("/v1/chat/completions", json=short | {"stream_options": None})).raise_for_status()
    assert whole.json()["sglext"].keys() == {"input_ids", "output_ids"}
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
    assert (await direct.post("/generate", json=body)).json()["meta_info"]["cached_tokens_details"] is None


async def test_unframed_ids_come_with_the_tiers(direct: httpx.AsyncClient) -> None:
    await direct.post("/v1/chat/completions", json=CHAT)
    *_, (name, last) = await stream_of(direct, "/v1/chat/completions", CHAT)
    assert (name, last["sglext"].keys()) == ("", {"cached_tokens_details", "input_ids", "output_ids"})


async def test_a_whole_chat(direct: httpx.AsyncClient) -> None:
    await direct.post("/v1/chat/completions", json=CHAT)
    answer = (await direct.post("/v1/chat/completions", json=CHAT)).raise_for_status().json()
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage", "metadata", "sglext"}
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason", "matched_stop"}
    assert choice["message"].keys() == {"role", "content", "reasoning_content"}
    assert (answer["object"], choice["finish_reason"], answer["usage"].keys()) == ("chat.completion", "length", USAGE)
    assert answer["metadata"] == {"weight_version": "default", "weight_versions": [WEIGHTS | {"end": 6}]}


async def test_texts(direct: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "Once upon a time. " * 60, "max_tokens": 5, "ignore_eos": True}
    await direct.post("/v1/completions", json=body)
    body |= {"stream_options": {"include_usage": True}, "return_cached_tokens_details": True}
    *texts, (_, tiers), (_, usage) = await stream_of(direct, "/v1/completions", body)
    last = texts[-1][1]
    assert last.keys() == tiers.keys() - {"sglext"} == {*CHUNK, "usage"}
    assert last["object"] == "text_completion"
    assert last["choices"][0].keys() == {"index", "text", "logprobs", "finish_reason", "matched_stop"}
    assert last["choices"][0]["finish_reason"] == "length"
    assert tiers["sglext"]["cached_tokens_details"].keys() == TIERS
    assert usage["usage"]["completion_tokens"] == 5
    whole = (await direct.post("/v1/completions", json=body | {"stream_options": None})).raise_for_status().json()
    assert whole.keys() == {"id", "object", "created", "model", "choices", "usage", "metadata", "sglext"}


async def test_generate(direct: httpx.AsyncClient) -> None:
    sampling = {"max_new_tokens": 5, "ignore_eos": True, "temperature": 0}
    body = {"text": "Twice upon a time. " * 60, "sampling_params": sampling}
    await direct.post("/generate", json=body)
    whole = (await direct.post("/generate", json=body)).raise_for_status().json()
    assert whole.keys() == {"text", "output_ids", "meta_info"}
    meta = {"id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "reasoning_tokens"}
    meta |= {"weight_versions", "completion_tokens", "cached_tokens", "cached_tokens_details", "e2e_latency"}
    assert meta <= whole["meta_info"].keys()
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert whole["meta_info"]["cached_tokens_details"].keys() == TIERS
    *_, (_, last) = await stream_of(direct, "/generate", body)
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])


@pytest.mark.parametrize("streams", [False, True])
async def test_what_does_not_fit_is_refused_in_words(streams: bool, direct: httpx.AsyncClient, served: Served) -> None:
    long = CHAT | {"messages": [{"role": "user", "content": "word " * 20_000}], "stream": streams}
    count = (await direct.post("/v1/tokenize", json=long | {"stream": False})).raise_for_status().json()
    assert count.keys() == {"tokens", "count", "max_model_len"}
    window = served.window_tokens
    said = f"The input ({count['count']} tokens) is longer than the model's context length ({window} tokens)."
    assert await refused(direct, long) == (400, "BadRequestError", said)
    status, kind, said = await refused(direct, CHAT | {"max_tokens": window, "stream": streams})
    assert (status, kind) == (400, "BadRequestError")
    assert said.startswith(f"Requested token count exceeds the model's maximum context length of {window} tokens.")
    status, kind, said = await refused(direct, {"model": MODEL, "stream": streams})
    assert (status, kind) == (400, "Bad Request")
    assert "messages" in said


async def refused(direct: httpx.AsyncClient, body: Any) -> tuple[int, str, str]:
    answer = await direct.post("/v1/chat/completions", json=body)
    error = answer.json()
    assert error.keys() == ERROR
    assert (error["object"], error["code"], error["param"]) == ("error", answer.status_code, None)
    return answer.status_code, error["type"], error["message"]


async def test_what_it_says_of_itself(direct: httpx.AsyncClient, served: Served) -> None:
    (card,) = (await direct.get("/v1/models")).json()["data"]
    assert card.keys() == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    missing = await direct.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    loads = (await direct.get("/v1/loads?include=core")).json()
    assert {"timestamp", "version", "loads"} <= loads.keys()
    assert loads["loads"][0].keys() == LOAD
    assert {"queues"} <= (await direct.get("/v1/loads")).json()["loads"][0].keys()
    info = (await direct.get("/server_info")).json()
    assert (info["page_size"], info["max_total_num_tokens"]) == (64, served.pool_tokens)
    assert (info["context_length"], info["hicache_storage_backend"]) == (served.window_tokens, "file")
    assert (info["mamba_radix_cache_strategy"], info["enable_hierarchical_cache"]) == ("extra_buffer", True)
    for name in ("chunked_prefill_size", "max_mamba_cache_size", "schedule_policy", "startup_time", "kv_events"):
        assert name in info
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 4
