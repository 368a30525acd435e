"""Where the plugin looks into SGLang, and whether it really does.

SGLang's registry logs a hook that does not fit and goes on, so :func:`proof` follows each target to our function.
Names are those of SGLang 0.5.23.
"""

from __future__ import annotations

import functools
import logging
import pkgutil
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .recorder import Recorder

log = logging.getLogger(__name__)

_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_MAMBA = "sglang.srt.mem_cache.unified_cache.components.mamba.MambaComponent"
_CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController"
_TREES = (
    "sglang.srt.mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore",
    "sglang.srt.mem_cache.rust_tree_core.adapter.RustUnifiedTreeCore",
)
_LOUD_FAILURES = 5

Hook = Callable[..., Any]


class Hooks:
    """``attach(cache)`` is called with the cache when there is one; it returns the recorder, or ``None`` where nothing
    is to be told."""

    def __init__(self, attach: Callable[[Any], Recorder | None]) -> None:
        self._attach = attach
        self._recorder: Recorder | None = None
        self.installed: dict[str, Hook] = {}
        self.calls: dict[str, int] = {}
        self.failures = 0

    def register(self) -> None:
        """Tell SGLang's registry; it applies them when all plugins have registered theirs."""
        after, before, around = HookType.AFTER, HookType.BEFORE, HookType.AROUND
        self._add(f"{_CACHE}.__init__", after, self._on_cache)
        self._add(f"{_CACHE}.insert", after, lambda r, result, cache, params: r.on_insert(params, result))
        self._add(f"{_CACHE}.reset", after, lambda r, result, cache: r.on_reset())
        self._add(f"{_CACHE}.match_prefix", after, lambda r, result, cache, params: r.on_match(params, result))
        self._add(
            f"{_CACHE}._backup_publish_node_ids",
            after,
            lambda r, result, node_id, transfers: r.on_backup(node_id, transfers),
        )
        self._add(f"{_CACHE}._finish_write_through_ack", before, _backup_done)
        self._add(f"{_CACHE}.load_back", after, _loaded_back)
        self._add(f"{_CACHE}.flush_pending_backups", after, lambda r, result, cache: r.tick())
        self._add(f"{_CACHE}.take_events", after, lambda r, result, cache: r.tick())
        self._add(
            f"{_CACHE}.clear_storage_backend", after, lambda r, result, cache: r.on_l3_cleared() if result else None
        )
        self._add(f"{_MAMBA}.free_host_values", after, lambda r, result, *_: r.on_free())
        self._add(f"{_MAMBA}.apply_component_action", after, lambda r, result, *_: r.on_free())
        self._add(
            "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend",
            after,
            lambda r, result, batch, *_, **__: r.on_prefill(batch.reqs),
        )
        self._add(
            f"{_CONTROLLER}._storage_hit_query",
            after,
            lambda r, result, controller, operation: r.on_l3_query(operation, *result),
        )
        self._add(
            f"{_CACHE}._handle_prefetch_result",  # by now the ranks agree on what came
            before,
            lambda r, cache, operation: r.on_l3_read(operation),
        )
        self._add(
            f"{_CONTROLLER}._page_backup",
            after,
            lambda r, result, controller, operation: r.on_l3_write(operation, controller.page_size),
        )
        self._add(
            "sglang.srt.mem_cache.storage.file.lru_file_evictor.LRUFileEvictor._evict_one_lru_locked",
            around,
            self._on_file_evicted,
        )
        for tree in _TREES:
            if _exists(tree):
                self._add(
                    f"{tree}.commit_hicache_transfers",
                    after,
                    lambda r, result, tree, *_, insert_result=None, **__: r.on_host_insert(
                        getattr(insert_result, "inserted_host_node", None)
                    ),
                )

    def proof(self) -> dict[str, bool]:
        """Each target, and whether our function is in place there."""
        return {target: _leads_to(target, hook) for target, hook in self.installed.items()}

    def _add(self, target: str, kind: HookType, do: Hook) -> None:
        self.installed[target] = hook = do if kind is HookType.AROUND else self._guarded(target, do)
        HookRegistry.register(target, hook, kind)

    def _guarded(self, target: str, do: Hook) -> Hook:
        """The engine must not notice us: no result, no exception."""

        @functools.wraps(do)
        def hook(*args: Any, **options: Any) -> None:
            recorder = self._recorder
            if recorder is None and do != self._on_cache:
                return
            self.calls[target] = self.calls.get(target, 0) + 1
            try:
                do(recorder, *args, **options)
            except Exception:
                self.failures += 1
                log.log(
                    logging.ERROR if self.failures <= _LOUD_FAILURES else logging.DEBUG,
                    "the governor's hook on %s failed",
                    target,
                    exc_info=True,
                )

        return hook

    def _on_cache(self, _: Any, result: Any, cache: Any, *args: Any, **options: Any) -> None:
        self._recorder = self._attach(cache)

    def _on_file_evicted(self, original: Hook, evictor: Any) -> Any:
        stem = next(iter(evictor._lru), None)
        result = original(evictor)
        recorder = self._recorder
        if recorder is not None and stem is not None and result[0] == "evicted":
            recorder.on_l3_evicted(stem)
        return result


def _backup_done(recorder: Recorder, cache: Any, ack_id: int) -> None:
    pending = cache.ongoing_write_through.get(ack_id)
    if pending is not None:
        recorder.on_backup_done(pending.publish_node_ids)


def _loaded_back(recorder: Recorder, result: Any, cache: Any, node_id: int, *args: Any, **options: Any) -> None:
    if result:
        recorder.on_load_back(node_id)


def _exists(target: str) -> bool:
    """The Rust tree is there only where its extension can be loaded."""
    try:
        pkgutil.resolve_name(target)
    except (ImportError, AttributeError, OSError, RuntimeError):
        return False
    return True


def _leads_to(target: str, hook: Hook) -> bool:
    """Follow the chain of wrappers that the registry has built."""
    try:
        function: Any = pkgutil.resolve_name(target)
    except (ImportError, AttributeError):
        return False
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(cell.cell_contents is hook for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
