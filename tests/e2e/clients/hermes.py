"""Drives a real Hermes Agent 0.19.0: one home folder is one agent, one run is one turn of a session."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.clients import install, processes

LOCK = install.LOCKS / "hermes.txt"
_SESSION = re.compile(r"^session_id: (\S+)$", re.MULTILINE)


def ensure_hermes(say: install.Say) -> Path:
    """The ``hermes`` program, installed first when it is absent (35 to 90 s, 240 MB)."""
    folder = install.ensure("hermes", [LOCK], lambda target, tell: install.make_venv(target, LOCK, tell), say)
    return folder / "venv" / "bin" / "hermes"


@dataclass(frozen=True)
class HermesResult:
    """What one run said."""

    text: str
    session_id: str | None
    """For ``resume``; ``None`` when the agent did not start."""
    exit_code: int
    stderr: str
    usage: dict[str, Any]
    """Hermes' own report of a one-shot run; empty otherwise."""

    @property
    def failed(self) -> bool:
        """A one-shot run reports failure in its usage file, a chat in its exit code."""
        return self.exit_code != 0 or bool(self.usage.get("failed"))


class HermesAgent:
    """One agent. Runs of one agent must not overlap; different agents may."""

    def __init__(
        self,
        program: Path,
        home: Path,
        *,
        base_url: str,
        api_key: str,
        model: str,
        max_tokens: int | None = None,
        context_length: int | None = None,
    ) -> None:
        """``max_tokens`` and ``context_length`` in tokens; ``None`` leaves Hermes' stock behaviour."""
        self._program = program
        self._home = home
        self._workspace = home / "workspace"
        self._workspace.mkdir(parents=True, exist_ok=True)
        self._environment = processes.clean_environment(
            home,
            [program.parent],
            # A lazy install would change the shared, locked installation.
            {"HERMES_HOME": str(home), "HERMES_DISABLE_LAZY_INSTALLS": "1"},
        )
        endpoint = {"provider": "custom", "default": model, "base_url": base_url, "api_key": api_key}
        limits = {"max_tokens": max_tokens, "context_length": context_length}
        settings = {
            "model": endpoint | {name: tokens for name, tokens in limits.items() if tokens is not None},
            # An absent scanner program and the display of reasoning would both be printed into the answer.
            "security": {"tirith_enabled": False},
            "display": {"show_reasoning": False},
        }
        # JSON is YAML.
        (home / "config.yaml").write_text(json.dumps(settings, indent=2))

    async def run(self, prompt: str, *, resume: str | None = None, timeout_s: float = 240) -> HermesResult:
        """One turn: of a new session, or of the session ``resume``."""
        arguments = ["chat", "-q", prompt, "-Q", *(["-r", resume] if resume else [])]
        done = await self._hermes(arguments, timeout_s)
        session = _SESSION.search(done.stderr)
        return HermesResult(done.stdout.strip(), session[1] if session else None, done.exit_code, done.stderr, {})

    async def run_once(self, prompt: str, *, timeout_s: float = 240) -> HermesResult:
        """A one-shot run, as scripts use it: no session to resume, but a usage report."""
        report = self._home / "usage.json"
        report.unlink(missing_ok=True)
        done = await self._hermes(["-z", prompt, "--usage-file", str(report)], timeout_s)
        usage: dict[str, Any] = json.loads(report.read_text())
        return HermesResult(done.stdout.strip(), usage.get("session_id"), done.exit_code, done.stderr, usage)

    async def _hermes(self, arguments: list[str], timeout_s: float) -> processes.Finished:
        return await processes.run(
            [str(self._program), *arguments], cwd=self._workspace, environment=self._environment, timeout_s=timeout_s
        )
