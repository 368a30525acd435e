"""What the hooks do: turn what SGLang is doing into messages. One recorder a scheduler process; without one (another
rank, another process) a hook does nothing."""

from __future__ import annotations

import collections
from typing import Any

from .channel import Channel
from .states import States

_REMEMBERED_REQUESTS = 4096
_PROBE_PREFIX = "HEALTH_CHECK"
"""Of the engine's own one-token requests (``managers/tokenizer_manager.py``)."""


class Recorder:
    """Of one cache. ``tree``, ``component``: its tree core, and SGLang's name for Mamba states (``None`` without)."""

    def __init__(self, channel: Channel, tree: Any, component: Any) -> None:
        self._channel = channel
        self._tree = tree
        self._component = component
        self._states = States(tree, component, self._tell_state)
        self._dropped_before = 0
        self._in_backup: set[int] = set()
        self._matches: collections.OrderedDict[str, tuple[int, ...]] = collections.OrderedDict()
        self._admitted: collections.OrderedDict[str, None] = collections.OrderedDict()

    def on_insert(self, params: Any, result: Any) -> None:
        """A prefill chunk or a finished request has put its tokens, and maybe a state at their end, into the tree."""
        stored = params.mamba_value is not None and not result.rotation_tail_declined
        if stored and result.last_device_node is not None:
            self._states.on_device(result.last_device_node, len(params.key), "stored")

    def on_backup(self, node_id: int, transfers: Any) -> None:
        """A copy to the host begins. It counts when it is acknowledged."""
        for transfer in transfers.get(self._component, ()):
            self._in_backup.update(transfer.nodes_to_load or (node_id,))

    def on_backup_done(self, node_ids: Any) -> None:
        for node_id in self._in_backup.intersection(node_ids):
            self._in_backup.discard(node_id)
            self._states.on_host(node_id, self._depth(node_id), "backed_up")

    def on_load_back(self, node_id: int) -> None:
        self._states.is_stale = True
        if self._component is not None and self._tree.get_component_device_value(node_id, self._component) is not None:
            self._states.on_device(node_id, self._depth(node_id), "restored")

    def on_host_insert(self, node_id: Any) -> None:
        """Pages from L3 are in the host tier, maybe with the state at their end."""
        if node_id is None or self._component is None:
            return
        if self._tree.component_has_host_value_only(node_id, self._component):
            self._states.on_host(node_id, self._depth(node_id), "loaded")

    def on_free(self) -> None:
        """Some state was dropped; which one is found out later."""
        self._states.is_stale = True

    def on_reset(self) -> None:
        self._states.clear()
        self._in_backup.clear()
        self._channel.post("states", states=[])

    def tick(self) -> None:
        """Between two batches."""
        self._states.look()
        dropped = self._channel.dropped
        if dropped != self._dropped_before:
            self._dropped_before = dropped
            self._channel.post("states", states=self._states.known())

    def on_match(self, params: Any, result: Any) -> None:
        """A waiting request is matched again and again; told is what has changed."""
        rid = getattr(params.req, "rid", None)
        if not isinstance(rid, str) or rid.startswith(_PROBE_PREFIX):
            return
        usable = result.device_prefix_len + result.host_hit_length
        figures = (len(params.key), max(result.full_kv_hit_length, usable), usable, result.device_prefix_len)
        if self._matches.get(rid) == figures:
            return
        _remember(self._matches, rid, figures)
        prompt, kv, usable, device = figures
        host = result.host_hit_length
        self._channel.post(
            "match", rid=rid, prompt_tokens=prompt, kv_tokens=kv, usable_tokens=usable, device=device, host=host
        )

    def on_prefill(self, requests: Any) -> None:
        """Figures are fixed when a request's first chunk is admitted."""
        for req in requests:
            rid = req.rid
            if not req._cache_breakdown_computed or rid in self._admitted or rid.startswith(_PROBE_PREFIX):
                continue
            _remember(self._admitted, rid, None)
            device, host, storage = req.cached_tokens_device, req.cached_tokens_host, req.cached_tokens_storage
            prompt = len(req.origin_input_ids)
            self._channel.post("admitted", rid=rid, prompt_tokens=prompt, device=device, host=host, storage=storage)

    def on_l3_query(self, operation: Any, hashes: Any, tokens: int) -> None:
        self._channel.post(
            "l3",
            change="found",
            rid=operation.request_id,
            tokens=tokens,
            asked_pages=len(operation.all_hash_values or ()),
            hash=hashes[-1] if hashes else None,
        )

    def on_l3_read(self, operation: Any) -> None:
        hashes, tokens = operation.hash_value, operation.completed_tokens
        states = _pages_of_states(operation)
        self._channel.post(
            "l3", change="loaded", rid=operation.request_id, tokens=tokens, asked_pages=len(hashes), states=states
        )

    def on_l3_write(self, operation: Any, page_tokens: int) -> None:
        """Also for pages that were there already."""
        hashes = list(operation.hash_value[: operation.completed_tokens // page_tokens])
        states = [
            key
            for transfer in operation.pool_transfers or ()
            if transfer.name.value == "mamba"
            for key in transfer.keys or ()
        ]
        kept = states[: _pages_of_states(operation)]
        self._channel.post("l3", change="written", hashes=hashes, state_hashes=kept)

    def on_l3_evicted(self, stem: str) -> None:
        self._channel.post("l3", change="evicted", file=stem)

    def on_l3_cleared(self) -> None:
        self._channel.post("l3", change="cleared")

    def _depth(self, node_id: int) -> int:
        known = self._states.tokens_at(node_id)
        return known or self._tree.collect_path_info([node_id])[0][-1].path_end

    def _tell_state(self, change: str, tier: str, name: str, tokens: int, tiers: str) -> None:
        self._channel.post("state", change=change, tier=tier, hash=name, tokens=tokens, tiers=tiers)


def _pages_of_states(operation: Any) -> int:
    hits = operation.pool_storage_result.extra_pool_hit_pages
    return next((count for pool, count in hits.items() if str(getattr(pool, "value", pool)) == "mamba"), 0)


def _remember(requests: Any, rid: str, value: Any) -> None:
    requests[rid] = value
    requests.move_to_end(rid)
    if len(requests) > _REMEMBERED_REQUESTS:
        requests.popitem(last=False)
