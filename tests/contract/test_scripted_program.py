"""``python -m serve.scripted`` as a process: set-up, record, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

_CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_COMMAND = (sys.executable, "-m", "serve.scripted")


@contextmanager
def _program(*arguments: str) -> Iterator[str]:
    """The program's URL while it runs; it must end well on SIGTERM."""
    with subprocess.Popen([*_COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()


def test_words_knobs_and_the_record(tmp_path: Path) -> None:
    record = tmp_path / "hits.jsonl"
    arguments = ("--behave", "503", "say:hello", "--set", "window_tokens=5000", "model=q", "--record", str(record))
    with _program(*arguments) as url:
        statuses = [httpx.post(f"{url}/v1/chat/completions", json=_CHAT).status_code for _ in range(2)]
        card = httpx.get(f"{url}/v1/models").json()["data"][0]
    assert statuses == [503, 200]
    assert (card["id"], card["max_model_len"]) == ("q", 5000)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["target"], line["status"], line["kind"]) for line in lines[:2]] == [
        ("/v1/chat/completions", 503, "agent"),
        ("/v1/chat/completions", 200, "agent"),
    ]
    assert lines[0]["body"] == _CHAT


def test_a_script_file_of_steps(tmp_path: Path) -> None:
    script = tmp_path / "answer.json"
    script.write_text(json.dumps([{"status": 418, "headers": {}}, {"text": "short"}, {"close": "fin"}]))
    with _program("--script", str(script)) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=_CHAT)
    assert (answer.status_code, answer.text) == (418, "short")


def test_a_script_file_of_a_whole_set_up(tmp_path: Path) -> None:
    script = tmp_path / "setup.json"
    setup = {
        "calls": {"agent": [{"say": "one", "delay_s": 0.01}, "429"]},
        "knobs": {"answer_tokens": 3},
        "by_path": {"/version": [[{"status": 200, "headers": {}}, {"json": {"version": "1"}}]]},
    }
    script.write_text(json.dumps(setup))
    with _program("--script", str(script)) as url:
        answers = [httpx.post(f"{url}/v1/chat/completions", json=_CHAT) for _ in range(3)]
        version = httpx.get(f"{url}/version").json()
    assert answers[0].json()["choices"][0]["message"]["content"] == "one"
    assert answers[1].status_code == 429
    assert answers[2].json()["usage"]["completion_tokens"] == 3
    assert version == {"version": "1"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--behave", "dance"), "not a behaviour"),
        (("--set", "speed=9"), "speed"),
        (("--set", "window_tokens=many"), "window_tokens"),
        (("--on", "nobody=say"), "nobody"),
        (("--mode", "record", "dance"), "not a behaviour"),
        (("--script", "missing.json"), "missing.json"),
    ],
)
def test_wrong_arguments_end_with_2_and_the_reason(arguments: tuple[str, ...], reason: str) -> None:
    done = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert reason in done.stderr


def test_help_has_examples_and_every_knob() -> None:
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [*_COMMAND, "--help"], capture_output=True, text=True, timeout=30, env=environment, check=True
    )
    assert "examples:" in done.stdout
    assert "overflow:vllm" in done.stdout
    assert "prefill_tokens_per_s=0.0" in done.stdout
