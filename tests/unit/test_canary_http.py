"""The adapter before an SGLang-shaped server on a real port, and before answers that are none."""

from __future__ import annotations

import time

import httpx
import msgspec
import pytest

from governor.errors import UpstreamError
from serve.canary.http import SglangCanary
from serve.canary.model import Checkpoints, Probe, Question, Split, Verdict, Written
from serve.canary.run import run_canary
from tests.canary_engine import TierEngine, facts_of
from tests.canary_server import SglangShaped

FACTS = facts_of(Checkpoints.EXTRA_BUFFER)
PROMPT = tuple(range(1000, 1600))
SCORED = Question(prompt=PROMPT, new_tokens=8, score_from=576)


def answering(*responses: httpx.Response) -> SglangCanary:
    left = list(responses)
    return SglangCanary("http://engine", transport=httpx.MockTransport(lambda _request: left.pop(0)))


def stream(*events: object) -> httpx.Response:
    data = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    return httpx.Response(200, stream=httpx.ByteStream(data + b"data: [DONE]\n\n"))


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
async def test_answers_come_through_as_they_were_given(pieces: bool) -> None:
    ours, theirs = TierEngine(FACTS), TierEngine(FACTS)
    with SglangShaped(theirs, pieces=pieces).running() as url:
        engine = SglangCanary(f"{url}/v1")
        for question in (SCORED, Question(prompt=PROMPT, namespace="n"), SCORED):
            expected, seen = await ours.ask(question), await engine.ask(question)
            assert seen.scores == expected.scores
            assert seen.output == expected.output
            assert seen.cached_tokens == expected.cached_tokens
            assert seen.split == (expected.split if expected.cached_tokens else None)
            assert 0 < seen.ttft_ms < 20_000
        assert seen.split == Split(device=576)
        assert len(seen.scores) == 23
        assert len(seen.output) == 8
        await engine.aclose()
    assert theirs.asked == ours.asked


@pytest.mark.parametrize("checkpoints", Checkpoints)
async def test_facts_are_those_of_the_engine(checkpoints: Checkpoints) -> None:
    facts = facts_of(checkpoints, host_states=96)
    with SglangShaped(TierEngine(facts)).running() as url:
        engine = SglangCanary(url)
        expected = msgspec.structs.replace(facts, version="0.5.23", model="tiers", written=Written(0, 0))
        assert await engine.facts() == expected
        await engine.aclose()


async def test_written_tokens_are_counted_and_states_are_not() -> None:
    with SglangShaped(TierEngine(FACTS)).running() as url:
        engine = SglangCanary(url)
        assert (await engine.facts()).written == Written(0, 0)
        await engine.ask(Question(prompt=PROMPT))
        assert await engine.settle() == Written(576, 576)
        await engine.aclose()


async def test_without_metrics_nothing_is_said_to_be_written_but_time_is_given() -> None:
    with SglangShaped(TierEngine(FACTS), metrics=False).running() as url:
        engine = SglangCanary(url)
        began = time.monotonic()
        assert await engine.settle() == Written()
        assert time.monotonic() - began >= 2
        assert (await engine.facts()).host_tokens is None
        await engine.aclose()


async def test_the_whole_canary_over_http() -> None:
    with SglangShaped(TierEngine(FACTS)).running() as url:
        engine = SglangCanary(url)
        report = await run_canary(engine, quick=True)
        await engine.aclose()
    assert {tier.verdict for tier in report.tiers} == {Verdict.SERVED}


async def test_a_flush_that_is_refused_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="at work"):
        await answering(httpx.Response(400, text="busy")).flush()


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(500, text="boom"), "500 .*boom"),
        (stream(), "no answer"),
        (stream({"error": {"message": "out of memory"}}), "out of memory"),
        (stream({"meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}), "aborted .*gone"),
        (stream({"choices": []}), "failed to answer"),
        (stream(["no", "object"]), "none of SGLang's"),
    ],
    ids=["status", "no event", "error event", "aborted", "another API", "another shape"],
)
async def test_what_is_no_answer_is_an_error(response: httpx.Response, words: str) -> None:
    with pytest.raises(UpstreamError, match=words):
        await answering(response).ask(SCORED)


async def test_numbers_that_are_none_stay_none() -> None:
    logprobs = [[None, 5, None], [-1.0, 6, None], [None, 7, None]]
    event = {"meta_info": {"cached_tokens": 1, "input_token_logprobs": logprobs}}
    question = Question(prompt=(4, 5, 6, 7), score_from=1)
    probe: Probe = await answering(stream(event)).ask(question)
    assert probe.scores == (-1.0, None)
    assert probe.split is None


@pytest.mark.parametrize("content", [b"{}", b'{"page_size": 64}', b"<html>"])
async def test_another_kind_of_server_is_told(content: bytes) -> None:
    with pytest.raises(UpstreamError, match="server_info"):
        await answering(httpx.Response(200, content=content)).facts()
    with pytest.raises(UpstreamError, match="is it an SGLang"):
        await answering(httpx.Response(404)).facts()


async def test_an_older_sglang_that_does_not_name_its_cache_is_known_by_its_strategy() -> None:
    info = {"max_total_num_tokens": 100, "page_size": 1, "mamba_radix_cache_strategy": "no_buffer"}
    facts = await answering(httpx.Response(200, json=info), httpx.Response(404)).facts()
    assert facts.checkpoints is Checkpoints.NO_BUFFER
    assert facts.host_tier is False


async def test_metrics_that_cannot_be_read_are_an_error() -> None:
    with pytest.raises(UpstreamError, match="metrics"):
        await answering(httpx.Response(200, text="sglang:page_size sixty\n")).settle()
