"""The real SGLang on the CPU: it serves, reuses, and brings prompts back from every tier."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sglang.engine import installed_engine
from tests.sglang.server import ServerOptions, SglangServer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

PROMPT_TOKENS = 700
REUSED_TOKENS = 640
"""Its whole pages of 64: a prefill leaves the model's state at their end."""
KERNEL_CHECK = Path(__file__).with_name("kernel_check.py")


@pytest.fixture
def client(sglang_server: SglangServer) -> Iterator[httpx.Client]:
    with _client(sglang_server) as client:
        yield client


def test_models_and_window(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").raise_for_status().json()["data"]
    assert model["id"] == "tiny-hybrid"
    assert model["max_model_len"] == 8192


def test_one_token_with_usage(client: httpx.Client) -> None:
    answer = _chat(client, "Say one word.", max_tokens=1)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_tokenized_conversation_has_the_length_that_is_charged(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "How long is this?"}]
    counted = client.post("/tokenize", json={"model": "tiny-hybrid", "messages": messages}).raise_for_status().json()
    assert _chat(client, messages[0]["content"])["usage"]["prompt_tokens"] == counted["count"]


def test_thinking_is_told_apart_when_it_is_asked_for(client: httpx.Client) -> None:
    plain = _chat(client, "Think.")["choices"][0]["message"]
    assert plain["content"]
    assert not plain["reasoning_content"]
    thinking = _chat(client, "Think.", chat_template_kwargs={"enable_thinking": True})["choices"][0]["message"]
    assert thinking["reasoning_content"]
    assert not thinking["content"]


def test_a_prompt_comes_back_from_each_tier(client: httpx.Client) -> None:
    ids = _ids("the one that returns", PROMPT_TOKENS)
    cold = _generate(client, ids)
    assert cold == (cold[0], {})
    assert _generate(client, ids) == (cold[0], {"device": REUSED_TOKENS})
    for number in range(14):
        _generate(client, _ids(f"a flood {number}", REUSED_TOKENS), tokens=1)
    assert _generate(client, ids) == (cold[0], {"host": REUSED_TOKENS})
    client.post("/flush_cache", params={"timeout": 10}).raise_for_status()
    assert _generate(client, ids) == (cold[0], {"storage": REUSED_TOKENS})


def test_the_tier_is_told_beside_the_usage_of_a_chat(client: httpx.Client) -> None:
    text = "A rather long text. " * 80
    _chat(client, text)
    answer = _chat(client, text, return_cached_tokens_details=True)
    reused = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused > 0
    assert answer["sglext"]["cached_tokens_details"]["device"] == reused


def test_every_stand_in_took_hold(sglang_server: SglangServer) -> None:
    log = sglang_server.log.read_text(errors="replace")
    assert "Tree Core: RustUnifiedTreeCore" in log
    assert not re.findall(r"Failed to (?:apply hooks|load plugin|execute general plugin).*", log)


def test_stand_in_kernels_agree_with_the_plain_recurrence() -> None:
    engine = installed_engine()
    env = {**engine.env, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([engine.python, KERNEL_CHECK], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_ranks_share_the_model_and_each_keeps_its_pages(tmp_path: Path) -> None:
    with SglangServer(tmp_path, ServerOptions(tp_size=2)) as server, _client(server) as client:
        ids = _ids("for two", PROMPT_TOKENS)
        cold = _generate(client, ids)
        assert _generate(client, ids) == (cold[0], {"device": REUSED_TOKENS})
        _await_files(server.l3, ranks=2)
        client.post("/flush_cache", params={"timeout": 10}).raise_for_status()
        assert _generate(client, ids) == (cold[0], {"storage": REUSED_TOKENS})
        owners = {re.sub(r"^[^_]*_", "", path.name) for path in server.l3.iterdir()}
        assert owners == {"tiny-hybrid_0_2.bin", "tiny-hybrid_1_2.bin"}


def _client(server: SglangServer) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=120, trust_env=False)


def _await_files(folder: Path, ranks: int) -> None:
    """Until each rank has written the prompt's pages and its state; the engine does so behind the answer."""
    wanted = ranks * (REUSED_TOKENS // 64 + 1)
    deadline = time.monotonic() + 30
    while len(list(folder.iterdir())) < wanted:
        assert time.monotonic() < deadline, sorted(path.name for path in folder.iterdir())
        time.sleep(0.1)


def _ids(seed: str, count: int) -> list[int]:
    source = random.Random(seed)  # noqa: S311
    return [source.randrange(1000, 30_000) for _ in range(count)]


def _chat(client: httpx.Client, content: str, **body: Any) -> dict[str, Any]:
    request = {
        "model": "tiny-hybrid",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "temperature": 0,
    }
    answer: dict[str, Any] = client.post("/v1/chat/completions", json=request | body).raise_for_status().json()
    return answer


def _generate(client: httpx.Client, ids: list[int], tokens: int = 4) -> tuple[list[int], dict[str, int]]:
    """Output ids, and how many tokens of the prompt came from which tier."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = client.post("/generate", json={"input_ids": ids, "sampling_params": sampling}).raise_for_status().json()
    details = answer["meta_info"].get("cached_tokens_details") or {}
    return answer["output_ids"], {tier: count for tier, count in details.items() if isinstance(count, int) and count}
