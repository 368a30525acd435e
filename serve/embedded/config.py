"""What the embedded engine's process is told. Shared by the parent, which writes it, and the child, which obeys it."""

from __future__ import annotations

import os

import msgspec


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One embedded llama.cpp server. Crosses the process boundary as JSON."""

    model_path: str
    model_id: str
    """Name that ``/v1/models`` gives."""
    port: int
    """On 127.0.0.1: the server has no key and lets any web page in, so nobody but the governor may reach it."""
    parent_pid: int
    """The server ends itself when this is no longer its parent."""
    context_tokens: int
    """Window of each slot: prompt + output of one turn."""
    slots: int = 2
    """Turns that run at once, each with a whole window of KV cache to itself. With a shared (unified) cache every
    running turn dies when it overflows."""
    cache_ram_mib: int = 1024
    """Host memory for prompts that have left their slot (L2)."""
    slot_save_path: str = ""
    """Folder for states saved to disk (L3); empty switches saving off."""
    decode_threads: int = 0
    """For one slot decoding alone. 0: one less than there are cores: one is left to the gateway and its clients."""
    prefill_threads: int = 0
    """For prompts, and for several slots decoding together. 0: as many as there are cores."""
    batch_tokens: int = 256
    """Prompt tokens read between two output tokens of the other slots. Not slower than 512 here, and half the gap."""
    chat_template_path: str = ""
    """A Jinja file to use instead of the template in the weights."""

    def thread_counts(self) -> tuple[int, int]:
        """Threads for decode and for prefill."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.decode_threads or max(1, cores - 1), self.prefill_threads or cores
