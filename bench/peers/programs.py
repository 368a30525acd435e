"""Each gateway as its own pages say to start it in front of one OpenAI-compatible server: one worker, a key that is
checked, its log at errors."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import msgspec

from bench.client import BenchFailed
from bench.processes import MODEL, Gateway, Upstream, gateway, spawned, tail
from bench.venvs import installed

_KEY = "sk-bench"
_START_S = 120.0
_POLL_S = 0.2

Started = AbstractContextManager[Gateway]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway."""

    name: str
    requirement: str
    """As pip takes it; empty: ours."""
    start: Callable[[Path, Path, Upstream], Started]
    """From the cache folder, a folder of its own and the upstream."""


def _governor(_cache: Path, folder: Path, upstream: Upstream) -> Started:
    return gateway(folder, upstream)


def _litellm(cache: Path, folder: Path, upstream: Upstream) -> Started:
    """https://docs.litellm.ai/docs/proxy/configs"""
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n"
        f"      api_base: {upstream.url}/v1\n      api_key: none\ngeneral_settings:\n  master_key: {_KEY}\n"
    )
    command = [str(installed(cache, LITELLM) / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_LOG": "ERROR"}
    return _served([*command, "--port", str(port)], environment, folder, port, "/health/liveliness")


def _lm_proxy(cache: Path, folder: Path, upstream: Upstream) -> Started:
    """https://pypi.org/project/lm-proxy/"""
    port = free_port()
    config = folder / "config.toml"
    config.write_text(
        f'host = "127.0.0.1"\nport = {port}\n[connections.engine]\napi_type = "openai"\n'
        f'api_base = "{upstream.url}/v1/"\napi_key = "none"\n[routing]\n"*" = "engine.*"\n'
        f'[groups.default]\napi_keys = ["{_KEY}"]\n'
    )
    command = [str(installed(cache, LM_PROXY) / "lm-proxy"), "--config", str(config)]
    return _served(command, {}, folder, port, "/health")


def _openai_forward(cache: Path, folder: Path, upstream: Upstream) -> Started:
    """https://github.com/KenyonY/openai-forward"""
    port = free_port()
    forward = msgspec.json.encode([{"base_url": upstream.url, "route": "/", "type": "openai"}]).decode()
    environment = {
        "FORWARD_CONFIG": forward,
        "OPENAI_API_KEY_CONFIG": '{"none": [0]}',
        "FORWARD_KEY_CONFIG": f'{{"{_KEY}": 0}}',
        "LOG_GENERAL": "false",
    }
    program = str(installed(cache, OPENAI_FORWARD, "pyyaml") / "uvicorn")  # its own command listens on all interfaces
    command = [program, "openai_forward.app:app", "--host", "127.0.0.1", "--port", str(port)]
    return _served(command, environment, folder, port, "/healthz")


LITELLM = "litellm[proxy]==1.108.7"
LM_PROXY = "lm-proxy==3.3.2"
OPENAI_FORWARD = "openai-forward==0.8.1"
PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(name="governor", requirement="", start=_governor),
        Peer(name="litellm", requirement=LITELLM, start=_litellm),
        Peer(name="lm-proxy", requirement=LM_PROXY, start=_lm_proxy),
        Peer(name="openai-forward", requirement=OPENAI_FORWARD, start=_openai_forward),
    )
}


@contextmanager
def _served(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, port: int, ready_path: str
) -> Iterator[Gateway]:
    """A program that serves a port, once something answers at ``ready_path``, be it that there is nothing there."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    log = folder / "gateway.log"
    with spawned(
        list(command), log, environment={**plain, "HOME": str(folder), **environment}, folder=folder
    ) as program:
        _wait_until_ready(program, log, f"http://127.0.0.1:{port}{ready_path}")
        yield Gateway(f"http://127.0.0.1:{port}", _KEY, program.pid)


def _wait_until_ready(program: subprocess.Popen[bytes], log: Path, url: str) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.TransportError:
            if program.poll() is not None or time.monotonic() > deadline:
                raise BenchFailed(f"{program.args!r} did not start: {tail(log)}") from None
            time.sleep(_POLL_S)


def free_port() -> int:
    """Of the loopback interface, now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
