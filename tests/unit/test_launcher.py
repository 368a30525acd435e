"""What the launcher passes on, without launching."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from governor.settings import Home
from serve.embedded.child import read_config
from serve.embedded.config import EmbeddedConfig
from serve.errors import BadModelSource, EngineMissing
from serve.launcher import EmbeddedOptions, embedded_argv, free_port, launch_embedded

CONFIG = EmbeddedConfig(model_path="/m/x y.gguf", model_id="x", port=1, parent_pid=2, context_tokens=8192)


def test_the_configuration_survives_the_way_to_the_child(tmp_path: Path) -> None:
    argv = embedded_argv(CONFIG)
    assert argv[0] == sys.executable
    assert "-P" in argv  # a folder "serve" where the person stands is not taken for ours
    assert read_config(argv[argv.index("--config") + 1]) == CONFIG
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(CONFIG))
    assert read_config(str(file)) == CONFIG


def test_threads_default_to_the_cores() -> None:
    decode, prefill = CONFIG.thread_counts()
    assert 1 <= decode <= prefill
    chosen = msgspec.structs.replace(CONFIG, decode_threads=3, prefill_threads=5)
    assert chosen.thread_counts() == (3, 5)


def test_a_bad_configuration_is_an_exit_with_a_reason() -> None:
    bad = json.dumps({"model_path": 1})
    child = subprocess.run(
        [sys.executable, "-m", "serve.embedded.child", "--config", bad], capture_output=True, text=True, check=False
    )
    assert child.returncode == 3
    assert "cannot serve: ValidationError" in child.stderr


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


async def test_without_the_wheel_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineMissing, match="--upstream URL"):
        await launch_embedded(EmbeddedOptions(), Home(tmp_path), on_change=lambda state, detail: None)


async def test_bad_weights_start_nothing(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    options = EmbeddedOptions(model=str(tmp_path / "none.gguf"))
    with pytest.raises(BadModelSource):
        await launch_embedded(options, Home(tmp_path), on_change=lambda state, detail: None)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - the pathlib form counts as blocking here
