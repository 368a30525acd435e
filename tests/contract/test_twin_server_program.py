"""``python -m serve.twin_server``: a program that comes, is killed, comes again at its port, and says what is wrong."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from serve.launcher import free_port
from tests.twin_server import TwinProgram

BODY = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}


def generate(url: str) -> dict[str, object]:
    answer: dict[str, object] = httpx.post(f"{url}/generate", json=BODY, trust_env=False).raise_for_status().json()
    return answer


def test_it_comes_again_at_its_port_after_a_kill(tmp_path: Path) -> None:
    arguments = ("--speed", "50", "--seed", "7", "--served-model-name", "mine")
    port = free_port()
    first = TwinProgram(*arguments, port=port)
    with first:
        first.wait_ready()
        said = generate(first.url)
        with httpx.stream(
            "POST",
            f"{first.url}/generate",
            json={"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100_000, "ignore_eos": True}},
            trust_env=False,
        ) as stream:
            assert next(stream.iter_bytes())
            assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    with TwinProgram(*arguments, port=port) as second:
        assert second.url == first.url
        second.wait_ready()
        again = generate(second.url)
        assert (again["text"], again["output_ids"]) == (said["text"], said["output_ids"])  # the seed's
        models = httpx.get(f"{second.url}/v1/models", trust_env=False).json()["data"]
        assert [model["id"] for model in models] == ["mine"]
        assert second.stop(signal.SIGTERM) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--machine", "toaster"), "no machine 'toaster'"),
        (("--machine", "sglang-cpu", "--speed", "0"), "above 0"),
        (("--machine", "sglang-cpu", "--script", "nowhere.toml"), "nowhere.toml"),
        (("--machine", "sglang-cpu", "--plugin-socket", "/nowhere/at/all/socket"), "socket"),
    ],
)
def test_what_is_wrong_is_told_and_ends_it(arguments: tuple[str, ...], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "serve.twin_server", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert said in ended.stderr.replace("\n", " ")


async def test_it_ends_with_whoever_holds_its_standard_input() -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "serve.twin_server", "--machine", "sglang-cpu", "--until-stdin-ends"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert b"url" in await asyncio.wait_for(program.stdout.readline(), 30)
    program.stdin.write(b"no end\n")
    await asyncio.sleep(0.3)
    assert program.returncode is None
    program.stdin.close()
    await asyncio.wait_for(program.communicate(), 10)
