"""The twin's own routes over real sockets: generate, tokens, aborts, lost clients, pauses, flushes, figures, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from governor.wire.sse import SseSplitter
from serve.twin.machine import load_machine
from tests.twin_server import Running, small_machine, twin_server

RID = "t-0123456789abcdef---0000"


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    async with twin_server() as running:
        yield running


@pytest.fixture
async def slow_twin() -> AsyncIterator[Running]:
    """What is to be interrupted lasts for seconds."""
    async with twin_server(small_machine(tiers={"device_tokens": 32_768}), speed=5) as running:
        yield running


async def until_running(twin: Running, requests: int = 1) -> None:
    async with asyncio.timeout(5):
        while twin.server.service.published.load.running < requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def generation(tokens: int, text: str = "Once upon a time", **fields: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, **fields}


async def events(twin: Running, path: str, body: dict[str, Any], **options: Any) -> AsyncIterator[bytes]:
    splitter = SseSplitter()
    async with twin.client.stream("POST", path, json=body, **options) as answer:
        async for chunk in answer.aiter_raw():
            for event in splitter.feed(chunk):
                if event.data is not None:
                    yield event.data


async def figures(twin: Running) -> dict[str, float]:
    """Of ``/metrics``; a split one by its last label."""
    told: dict[str, float] = {}
    for family in text_string_to_metric_families((await twin.client.get("/metrics")).text):
        for sample in family.samples:
            split = sample.labels.get("cache_source") or sample.labels.get("pool")
            told[f"{sample.name}{{{split}}}" if split else sample.name] = sample.value
    return told


async def test_generate_streams_all_that_was_written_so_far(twin: Running) -> None:
    seen = [data async for data in events(twin, "/generate", generation(200, stream=True, rid=RID))]
    assert seen[-1] == b"[DONE]"
    steps = [msgspec.json.decode(data) for data in seen[:-1]]
    for before, after in pairwise(steps):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    meta = steps[-1]["meta_info"]
    assert (meta["id"], meta["completion_tokens"], len(steps[-1]["output_ids"])) == (RID, 200, 200)
    assert meta["finish_reason"] == {"type": "length", "length": 200}
    assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (0, None)
    whole = (await twin.post("/generate", **generation(200))).json()
    assert (whole["text"], whole["output_ids"]) == (steps[-1]["text"], steps[-1]["output_ids"])


async def test_ids_go_on_where_text_has_ended(twin: Running) -> None:
    first = (await twin.post("/generate", **generation(100), return_prompt_token_ids=True)).json()
    ids = first["prompt_token_ids"] + first["output_ids"]
    text = (await twin.post("/detokenize", tokens=ids)).json()["text"]
    assert text == "Once upon a time" + first["text"]
    body = generation(50) | {"input_ids": ids}
    del body["text"]
    again = (await twin.post("/generate", **body)).json()
    assert again["meta_info"]["prompt_tokens"] == len(ids)
    assert again["meta_info"]["cached_tokens"] == len(ids) // 64 * 64


async def test_tokens_are_counted_as_they_are_charged(twin: Running) -> None:
    messages = [{"role": "user", "content": "naïve 日本語 <think> 🙂"}]
    counted = (await twin.post("/v1/tokenize", model="m", messages=messages)).json()
    answer = await twin.chat(messages[0]["content"], max_tokens=1)
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    assert counted["max_model_len"] == 8192
    several = (await twin.post("/tokenize", prompt=["one", "and another"])).json()
    assert several["count"] == [len(ids) for ids in several["tokens"]]
    texts = (await twin.post("/v1/detokenize", tokens=several["tokens"])).json()["text"]
    assert texts == ["one", "and another"]


async def test_a_names_prefix_aborts_all_that_begin_with_it(slow_twin: Running) -> None:
    twin = slow_twin
    names = ["a", "a-1", "b"]
    asked = [
        asyncio.create_task(twin.post("/generate", **generation(4000, text=f"{name} says", rid=name))) for name in names
    ]
    await until_running(twin, 3)
    assert (await twin.post("/abort_request", rid="a-")).status_code == 200  # nobody's name
    assert (await twin.post("/abort_request", rid="")).status_code == 200
    assert twin.server.service.live == 3
    await twin.post("/abort_request", rid="a")
    ended = [(await each).json()["meta_info"] for each in asked[:2]]
    assert [meta["finish_reason"]["type"] for meta in ended] == ["abort", "abort"]
    assert all(0 < meta["completion_tokens"] < 4000 for meta in ended)
    assert not asked[2].done()
    await twin.post("/abort_request", abort_all=True)
    assert (await asked[2]).json()["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_waiting_request_that_is_aborted_has_said_nothing() -> None:
    async with twin_server(small_machine(max_running_requests=1), speed=5) as twin:
        running = asyncio.create_task(twin.post("/generate", **generation(4000)))
        await until_running(twin)
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "rid": RID}
        body |= {"return_output_ids_in_sglext": True, "stream_options": {"include_usage": True}}
        waiting = asyncio.create_task(twin.post("/v1/chat/completions", **body))
        async with asyncio.timeout(5):
            while twin.server.service.published.load.waiting < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await twin.post("/abort_request", rid=RID)
        told = [event.data for event in SseSplitter().feed((await waiting).content)]
        assert told[-1] == b"[DONE]"
        chunks = [msgspec.json.decode(data) for data in told[:-1] if data]
        assert chunks[1]["choices"][0]["finish_reason"] == "abort"
        assert chunks[2]["sglext"] == {"output_ids": [[]]}
        assert (chunks[3]["usage"]["prompt_tokens"], chunks[3]["usage"]["completion_tokens"]) == (0, 0)
        await twin.post("/abort_request", abort_all=True)
        await running


async def test_a_name_is_given_once(slow_twin: Running) -> None:
    twin = slow_twin
    first = asyncio.create_task(twin.post("/generate", **generation(4000, rid=RID)))
    await until_running(twin)
    second = await twin.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], rid=RID)
    assert second.status_code == 400
    assert second.json()["message"] == f"Duplicate request ID detected: {RID}"
    await twin.post("/abort_request", rid=RID)
    await first
    assert (await twin.post("/generate", **generation(3, rid=RID))).status_code == 200


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_is_noticed(streams: bool, twin: Running) -> None:
    """Without an abort: at twenty times the pace of SGLang's 2 and 4 seconds."""
    async with httpx.AsyncClient(base_url=twin.url, trust_env=False) as leaving:
        body = generation(8000, stream=streams)
        async with leaving.stream("POST", "/generate", json=body) if streams else asyncio.timeout(10):
            if not streams:
                with pytest.raises(httpx.ReadTimeout):
                    await leaving.post("/generate", json=body, timeout=0.2)
            assert twin.server.service.live == 1
    await twin.until_idle()
    assert twin.server.service.counters.aborts == 1


async def test_a_pause_keeps_everything_where_it_is(slow_twin: Running) -> None:
    twin = slow_twin
    running = asyncio.create_task(twin.post("/generate", **generation(1000)))
    async with asyncio.timeout(5):
        while not twin.server.service.counters.generation_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert (await twin.post("/pause_generation", mode="in_place")).json()["status"] == "ok"
    before = twin.server.service.counters.generation_tokens
    await asyncio.sleep(0.3)
    assert twin.server.service.counters.generation_tokens - before <= 1
    await twin.post("/continue_generation")
    assert (await running).json()["meta_info"]["completion_tokens"] == 1000


async def test_a_flush_waits_for_nobody_unless_told_and_leaves_l3(twin: Running) -> None:
    prompt = "word " * 600
    await twin.chat(prompt, max_tokens=2)
    running = asyncio.create_task(twin.post("/generate", **generation(3000)))
    await until_running(twin)
    assert (await twin.post("/flush_cache")).status_code == 400
    assert (await twin.client.post("/flush_cache", params={"timeout": 600})).status_code == 200
    await running
    split = {"return_cached_tokens_details": True}
    told = (await twin.chat(prompt, max_tokens=2, **split))["sglext"]["cached_tokens_details"]
    assert (told["device"], told["host"]) == (0, 0)
    assert told["storage"] > 0
    assert (await figures(twin))["sglang:cached_tokens_total{storage}"] == told["storage"]


async def test_the_figures_follow_what_happens(twin: Running) -> None:
    before = await figures(twin)
    assert not any(name.startswith("sglang:cached_tokens_total") for name in before)  # it comes with its first tokens
    prompt = "word " * 900
    first = await twin.chat(prompt, max_tokens=10)
    second = await twin.chat(prompt, max_tokens=10)
    for number in range(6):
        await twin.chat(f"{number} " * 1500, max_tokens=2)
    third = await twin.chat(prompt, max_tokens=10, return_cached_tokens_details=True)
    split = third["sglext"]["cached_tokens_details"]
    assert split["host"] > 0
    after = await figures(twin)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert after["sglang:cached_tokens_total{device}"] == cached
    assert after["sglang:cached_tokens_total{host}"] == after["sglang:load_back_tokens_total{kv}"] == split["host"]
    assert after["sglang:num_requests_total"] == 9
    assert after["sglang:generation_tokens_total"] == 42
    assert after["sglang:evicted_tokens_total"] > 0
    assert after["sglang:hicache_backup_tokens_total{kv}"] >= first["usage"]["prompt_tokens"] // 64 * 64
    assert after["sglang:hicache_backup_tokens_total{mamba}"] > 0
    assert 0 < after["sglang:hicache_host_mamba_used_states"] <= after["sglang:hicache_host_mamba_total_states"] == 64
    pool = sum(after[f"sglang:kv_{part}_tokens"] for part in ("available", "evictable", "used"))
    assert pool == after["sglang:max_total_num_tokens"] == 8192


async def test_it_describes_the_machine(twin: Running) -> None:
    info = (await twin.client.get("/server_info")).json()
    assert (info["version"], info["page_size"], info["max_total_num_tokens"]) == ("0.5.23", 64, 8192)
    assert (info["chunked_prefill_size"], info["schedule_policy"]) == (1024, "fcfs")
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 4
    assert info["kv_events"] is None
    loads = (await twin.client.get("/v1/loads", params={"include": "core"})).json()["loads"][0]
    assert (loads["num_running_reqs"], loads["max_total_num_tokens"]) == (0, 8192)
    assert "queues" not in loads
    assert "queues" in (await twin.client.get("/v1/loads")).json()["loads"][0]
    assert (await twin.client.get("/v1/loads?include=all,what")).status_code == 400
    state = (await twin.client.get("/twin/state")).json()
    assert (state["broken_books"], state["live_requests"]) == (None, 0)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", {"messages": []}, "Messages cannot be empty."),
        ("/v1/chat/completions", {}, "`messages`"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "tool_choice": "required"}, "Tools cannot be empty"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "max_tokens": 9000}, "at most 8192"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "custom_params": {"twin": {"x": 1}}}, "twin"),
        ("/v1/completions", {"prompt": 7}, "$.prompt"),
        ("/generate", {}, "Either text, input_ids"),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": -1}}, "at least 0, got -1"),
        ("/generate", {"input_ids": [-1]}, "no token"),
        ("/tokenize", {}, "Exactly one of"),
    ],
)
async def test_a_wrong_request_is_told_where(path: str, body: dict[str, Any], said: str, twin: Running) -> None:
    answer = await twin.post(path, **body)
    assert answer.status_code == 400
    error = answer.json()
    assert said in error.get("message", "") + str(error.get("error", ""))
    assert twin.server.service.live == 0


async def test_a_prompt_that_l1_cannot_hold_is_refused_by_the_scheduler(twin: Running) -> None:
    """Within the window, so the head of a stream is a success."""
    (token,) = (await twin.post("/tokenize", prompt="word")).json()["tokens"]
    body = {"input_ids": [token] * 8180, "sampling_params": {"max_new_tokens": 1}}
    said = "Input length (8180 tokens) exceeds the maximum allowed length (8128 tokens)"
    whole = await twin.post("/generate", **body)
    assert whole.status_code == 400
    assert said in whole.json()["error"]["message"]
    last, done = [data async for data in events(twin, "/generate", body | {"stream": True})]
    finish = msgspec.json.decode(last)["meta_info"]["finish_reason"]
    assert (finish["type"], finish["status_code"], done) == ("abort", 400, b"[DONE]")
    assert said in finish["message"]
    chat = {"messages": [{"role": "user", "content": "x"}], "input_ids": body["input_ids"], "stream": True}
    error, _ = [data async for data in events(twin, "/v1/chat/completions", chat)]
    assert said in msgspec.json.decode(error)["error"]["message"]


async def test_what_is_no_json_and_what_is_nowhere(twin: Running) -> None:
    for content, kind in ((b"{", "application/json"), (b"{}", "text/plain")):
        answer = await twin.client.post("/v1/chat/completions", content=content, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["object"], answer.json()["code"]) == (400, "error", 400)
    nowhere = await twin.client.get("/get_load")
    assert (nowhere.status_code, nowhere.json()) == (404, {"detail": "Not Found"})


async def test_a_restarted_engine_finds_what_is_on_disk() -> None:
    prompt = "word " * 600
    async with twin_server() as first:
        await first.chat(prompt, max_tokens=2)
        await asyncio.sleep(0.1)
    async with twin_server(after=first.server) as second:
        told = (await second.chat(prompt, max_tokens=2, return_cached_tokens_details=True))["sglext"]
        assert told["cached_tokens_details"]["storage"] > 500


@pytest.mark.parametrize("speed", [50, 200])
async def test_a_scaled_second_is_a_second_of_the_machine(speed: int) -> None:
    """The field's cold prefill of 64K on two 7900 XTX: 48.1 seconds, which a client sees divided by the speed."""
    async with twin_server(load_machine("rx7900xtx-tp2"), speed=speed) as twin:
        tokens = (await twin.post("/tokenize", prompt="word " * 65_536)).json()["tokens"]
        began = time.monotonic()
        body = {"input_ids": tokens[:65_536], "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
        answer = (await twin.post("/generate", **body)).json()
        passed_s = (time.monotonic() - began) * speed
        assert answer["meta_info"]["prompt_tokens"] == 65_536
        assert 43 < passed_s < 53 + speed * 0.25  # a loaded machine's own quarter of a second
