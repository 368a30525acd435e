"""The embedded engine's process: llama.cpp's own HTTP server, out of the ``xllamacpp`` wheel.

Run as ``python -m serve.embedded.child --config JSON_OR_FILE`` by the supervisor. It prints llama.cpp's log, serves on
127.0.0.1 and ends at once on SIGTERM: the server's destructor waits for a running prefill, which can take minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from serve.embedded.config import EmbeddedConfig

EXIT_CANNOT_SERVE = 3
_PARENT_POLL_S = 1.0
_LOG_SETTLE_S = 0.5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def read_config(text: str) -> EmbeddedConfig:
    """``text`` is the JSON itself or the name of a file with it. Raises :class:`msgspec.MsgspecError`, ``OSError``."""
    data = text.encode() if text.lstrip().startswith("{") else Path(text).read_bytes()
    return msgspec.json.decode(data, type=EmbeddedConfig)


def die_with_parent() -> None:
    """Ask the kernel to end us when the thread that started us ends. Elsewhere than on Linux polling has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def serve(config: EmbeddedConfig) -> None:
    """Serve until killed or orphaned. Raises :class:`RuntimeError` when the model or the port cannot be had."""
    # OpenMP's threads spin while they wait for each other. On a busy machine they spin on the core that the other one
    # needs: two slots decoding on two busy cores gave 1.8 tokens/s each, and 27 with waiting threads asleep. Read when
    # the library is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp  # noqa: PLC0415 - a missing or broken wheel must be an exit with a reason, not a failed import

    params = xllamacpp.CommonParams()
    params.model.path = config.model_path
    params.model_alias = {config.model_id}
    params.hostnames = ["127.0.0.1"]
    params.port = config.port
    params.n_ctx = config.context_tokens * config.slots
    params.n_parallel = config.slots
    params.kv_unified = False
    params.n_batch = params.n_ubatch = config.batch_tokens
    params.cpuparams.n_threads, params.cpuparams_batch.n_threads = config.thread_counts()
    params.cache_ram_mib = config.cache_ram_mib
    if config.slot_save_path:
        Path(config.slot_save_path).mkdir(mode=0o700, parents=True, exist_ok=True)  # KV can be read back as prompts
        params.slot_save_path = config.slot_save_path.rstrip("/") + "/"
    if config.chat_template_path:
        params.chat_template = Path(config.chat_template_path).read_text(encoding="utf-8")
    params.use_jinja = True
    params.endpoint_metrics = params.endpoint_props = params.endpoint_slots = True
    params.ui = False
    params.fit_params = False  # a dry run that sizes GPU layers: seconds for nothing on a CPU
    started = time.monotonic()
    server = xllamacpp.Server(params)
    print(
        f"serving {config.model_id} on {server.listening_address} after {time.monotonic() - started:.1f} s", flush=True
    )
    while os.getppid() == config.parent_pid:
        time.sleep(_PARENT_POLL_S)
    print("the governor is gone: ending", flush=True)


def main() -> None:
    # The default action ends the process even while C++ holds the interpreter; a Python handler would wait for it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m serve.embedded.child", description=__doc__)
    parser.add_argument("--config", required=True, help="JSON of EmbeddedConfig, or a file with it")
    try:
        config = read_config(parser.parse_args().config)
        if os.getppid() == config.parent_pid:
            serve(config)
        status = 0
    except (ImportError, OSError, RuntimeError, msgspec.MsgspecError) as problem:
        # llama.cpp writes its log from a thread of its own, and the reason is in there.
        time.sleep(_LOG_SETTLE_S)
        print(f"cannot serve: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
        status = EXIT_CANNOT_SERVE
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
