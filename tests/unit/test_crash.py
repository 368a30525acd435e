"""Reasons of crashes, read off lines as the programs write them."""

from __future__ import annotations

import signal

import pytest

from serve.crash import SIGNS, recognise

LINES = {
    "unknown-flag": [
        "launch_server.py: error: unrecognized arguments: --max-consecutive-prefill-batches 1",
        "launch_server.py: error: argument --hicache-io-backend: invalid choice: 'fast' (choose from 'direct')",
    ],
    "kernel-missing": [
        "ImportError: sgl_kernel was built without get_device_accessible_ptr",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: HIP error: invalid device function",
        "ImportError: /venv/lib/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda",
    ],
    "package-missing": [
        "ModuleNotFoundError: No module named 'orjson'",
        "/usr/bin/python: No module named sglang",
    ],
    "no-gpu": ["RuntimeError: No HIP GPUs are available", "RuntimeError: Found no NVIDIA driver on your system."],
    "gpu-memory": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.10 GiB.",
        "Exception: Capture cuda graph failed: CUDA error: out of memory",
        "RuntimeError: Decode out of memory. Try to lower your batch size.",
    ],
    "gpu-memory-plan": ["RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."],
    "mamba-slots": ["AssertionError: Can not alloc mamba cache"],
    "host-memory": [
        "ValueError: Not enough host memory available. Requesting 64.00 GB but only have 41.23 GB free. Please reduce",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:126] . DefaultCPUAllocator: can't allocate memory: you tried",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
    "shared-memory": ["RuntimeError: unable to allocate shared memory(shm) for file </torch_12_1>: No space left"],
    "disk-full": ["OSError: [Errno 28] No space left on device: '/data/l3/pages/ab.bin.tmp'"],
    "open-files": ["OSError: [Errno 24] Too many open files: '/data/l3'"],
    "illegal-access": [
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "Memory access fault by GPU node-1 (Agent handle: 0x55d) on address 0x7f00. Reason: Unknown.",
    ],
    "gpu-hang": ["HW Exception by GPU node-1 (Agent handle: 0x5) reason :GPU Hang"],
    "collective": [
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error",
        "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)",
    ],
    "engine-watchdog": ["Scheduler watchdog timeout (watchdog_timeout=300, self.soft=False)"],
    "port-taken": [
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        "zmq.error.ZMQError: Address already in use (addr='ipc:///run/kv-events')",
    ],
    "weights-gated": ["huggingface_hub.errors.GatedRepoError: 401 Client Error."],
    "weights-missing": [
        "OSError: /models/x is not a local folder and is not a valid model identifier listed on 'https://hub'",
        "RuntimeError: Cannot find any model weights with `/models/x`",
    ],
    "weights-broken": ["safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"],
    "window": ["ValueError: context_length (262144) is greater than the derived context_length (131072)."],
    "file-missing": ["FileNotFoundError: [Errno 2] No such file or directory: '/x/template.jinja'"],
    "refused": ["PermissionError: [Errno 13] Permission denied: '/data/l3'"],
}
SOUND = [
    "Ignore import error when loading sglang.srt.models.x: No module named 'timm'",
    "Port 30000 is already in use, trying port 30001",
    "[2026-11-29 10:00:00] KV Cache is allocated. #tokens: 231914, K size: 5.1 GB",
    "[2026-11-29 10:00:00] Allocating 20.00 GB host memory for hierarchical KV cache.",
    "[2026-11-29 10:00:00] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 0, token usage: 0.12",
    "The server is fired up and ready to roll!",
    "/site-packages/torch/x.py:3: UserWarning: Failed to load image Python extension",
]


@pytest.mark.parametrize(("id_", "line"), [(id_, line) for id_, lines in LINES.items() for line in lines])
def test_a_line_is_recognised_among_sound_ones(id_: str, line: str) -> None:
    crash = recognise([*SOUND, line, "SIGQUIT received. It usually means one child failed."], returncode=-9)
    assert crash is not None
    assert crash.id == id_
    assert crash.line == line
    assert str(crash).startswith(f"{crash.reason} ({line[:200]}). ")
    assert crash.cure.endswith(".")


def test_every_sign_has_a_line() -> None:
    assert set(LINES) == {sign.id for sign in SIGNS}


def test_sound_lines_are_no_reason() -> None:
    assert recognise(SOUND, returncode=1) is None
    assert recognise([], returncode=0) is None


def test_a_cause_counts_before_what_it_causes() -> None:
    last_words = [*LINES["collective"], *LINES["gpu-memory"][:1], *LINES["engine-watchdog"]]
    crash = recognise(last_words)
    assert crash is not None
    assert crash.id == "gpu-memory"


def test_a_kill_for_lack_of_memory_needs_the_kernels_word() -> None:
    killed = -signal.SIGKILL
    assert recognise([], returncode=killed) is None
    by_kernel = recognise([], returncode=killed, oom_kills=1)
    assert by_kernel is not None
    assert by_kernel.id == "oom-killer"
    worker = "Subprocess scheduler (pid=12) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    by_somebody, by_kernel = recognise([worker], returncode=killed), recognise([worker], oom_kills=2)
    assert by_somebody is not None
    assert by_somebody.id == "worker-killed"
    assert by_kernel is not None
    assert by_kernel.id == "oom-killer"
    assert recognise(SOUND, returncode=1, oom_kills=1) is None  # somebody else's


@pytest.mark.parametrize(("number", "id_"), [(signal.SIGBUS, "shared-memory"), (signal.SIGILL, "cpu")])
def test_some_signals_speak_for_themselves(number: signal.Signals, id_: str) -> None:
    crash = recognise([], returncode=-number)
    assert crash is not None
    assert crash.id == id_


def test_what_passes_by_itself_is_tried_again() -> None:
    passing = {"gpu-memory", "mamba-slots", "host-memory", "shared-memory", "disk-full", "open-files", "illegal-access",
               "gpu-hang", "collective", "engine-watchdog", "port-taken"}  # fmt: skip
    assert {sign.id for sign in SIGNS if not sign.stays} == passing
