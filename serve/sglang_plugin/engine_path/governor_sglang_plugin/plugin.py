"""Starts the plugin in the one process it is for: the scheduler of rank 0."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from .channel import Channel
from .hooks import Hooks
from .recorder import Recorder

SOCKET_VARIABLE = "GOVERNOR_PLUGIN_SOCKET"
_DETOKENIZER = "sglang::detokenizer"
"""Title that SGLang gives that process before it loads plugins; schedulers get theirs later."""


def register() -> None:
    """SGLang calls this once in each of its processes."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path or not _may_be_scheduler():
        return
    hooks: Hooks

    def attach(cache: Any) -> Recorder | None:
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - heavy, and of schedulers only

        parallel = get_parallel()
        if parallel.tp_rank or parallel.pp_rank or parallel.dp_rank:
            return None
        tree = cache.tree_core
        component = next((each for each in cache.tree_components if each.name == "MAMBA"), None)

        def greeting() -> dict[str, Any]:
            return {
                "pid": os.getpid(),
                "tree": type(tree).__name__,
                "page_tokens": cache.page_size,
                "has_states": component is not None,
                "hooks": hooks.proof(),
                "calls": dict(hooks.calls),
                "failures": hooks.failures,
            }

        channel = Channel(path, greeting)
        channel.start()
        return Recorder(channel, tree, component)

    hooks = Hooks(attach)
    hooks.register()


def _may_be_scheduler() -> bool:
    """The modules that are hooked take seconds to import, which the engine's other processes are spared."""
    titles = sys.modules.get("setproctitle")
    title = titles.getproctitle() if titles is not None else ""
    return multiprocessing.parent_process() is not None and title != _DETOKENIZER
