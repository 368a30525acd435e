"""Runs inside the engine's environment: does operations on SGLang's own cache classes, on the CPU, without a server.

Standard input has lines of JSON: the ``Pools`` of ``oracle_cache.py`` build a cache, in place of the one before, and
are answered with what they hold; a list of operations is answered with a list of answers. Requests are real ``Req``
objects that go through the functions the scheduler calls for them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

logging.disable(logging.ERROR)
sys.path.append(str(Path(__file__).parent))  # the engine is started without it

import torch  # noqa: E402
from oracle_cache import CONTEXT, Pools, build  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch  # noqa: E402
from sglang.srt.managers.schedule_policy import PrefillAdder  # noqa: E402
from sglang.srt.mem_cache.allocation import alloc_req_slots  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import (  # noqa: E402
    CacheRequestHandle,
    EvictParams,
    InitLoadBackParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache, release_kv_cache  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.runtime_context import mamba_track_grid  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

SOURCE_TOKENS = 1 << 12
"""Of one source at the most: pages are named by token ids of 32 bits."""
POLL_S = 0.0005
LIMIT_S = 30
Answer = dict[str, Any]


def tokens_of(runs: list[list[int]]) -> array[int]:
    """The token ids that a twin's key stands for."""
    ids = array("q")
    for source, start, stop in runs:
        ids.extend(range(source * SOURCE_TOKENS + start + 1, source * SOURCE_TOKENS + stop + 1))
    return ids


class Engine:
    """Does one operation after another."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        self.page = pools.page_tokens
        self.has_states = pools.device_slots > 0
        self.is_staging = pools.host_mode == "buffer_only"
        self.buffers = self.has_states and pools.strategy == "extra_buffer"
        self.cache, self.kv, self.rows = build(pools)
        self.requests: dict[int, Any] = {}
        self.track_grid = mamba_track_grid(self.page) if self.has_states else 0
        self.batch = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
            tree_cache=self.cache,
            req_to_token_pool=self.rows,
        )
        self.adder = PrefillAdder.__new__(PrefillAdder)
        self.adder.tree_cache = self.cache

    def close(self) -> None:
        if self.pools.has_storage:
            self.cache.cache_controller._stop_storage_threads()
        if self.pools.host_ratio:
            self.cache.release_host_resources()

    def sizes(self) -> Answer:
        """Of all pools, what is free."""
        free: Answer = {"tokens": self.kv.available_size(), "slots": 0, "host_tokens": 0, "host_slots": 0}
        if self.has_states:
            free["slots"] = self.rows.mamba_allocator.available_size()
        if self.pools.host_ratio:
            for entry in self.cache.cache_controller.mem_pool_host.entries:
                name = "host_slots" if str(entry.name).endswith("mamba") else "host_tokens"
                free[name] = entry.host_pool.available_size()
        return free

    def do(self, operation: list[Any]) -> Answer:
        name, *arguments = operation
        answer: Answer = getattr(self, f"do_{name}")(*arguments) or {}
        answer["free"] = list(self.sizes().values())
        return answer

    def do_match(self, runs: list[list[int]]) -> Answer:
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens_of(runs))))
        return {
            "device": found.device_prefix_len,
            "host": found.host_hit_length,
            "loads_state": found.mamba_host_hit_length > 0,
            "kv": found.full_kv_hit_length,
        }

    def do_admit(self, number: int, runs: list[list[int]], priority: int) -> Answer:
        request = Req(
            rid=str(number),
            origin_input_text="",
            origin_input_ids=tokens_of(runs),
            sampling_params=SamplingParams(temperature=0, max_new_tokens=CONTEXT),
        )
        request.priority = priority
        request.init_next_round_input(self.cache)
        matched = request.prefix_len
        if self.is_staging and not self.cache.buffer_pipeline.prepare_staged_prefetch(request):
            self.cache.buffer_pipeline.prepare_staged_prefetch(request)  # the scheduler would ask again before
        with self.adder._lock_node(request.last_node):
            if request.needs_host_load_back():
                with self.adder._lock_node(request.best_match_node, lock_host=True):
                    done = self.cache.init_load_back(
                        InitLoadBackParams(
                            best_match_node=request.best_match_node,
                            host_hit_length=request.host_hit_length,
                            req=request,
                        )
                    )
                if done is None:
                    self._refuse(request)
                loaded, request.last_node = done
                request.host_loaded_length = loaded
                request.prefix_len += loaded
                request.kv.cache_protected_len = request.prefix_len
            request.lock = self.cache.lock(request.last_node)
        if self.pools.host_ratio:
            self.cache.ready_to_load_host_cache()
        request.extend_end = request.prefix_len
        self.requests[number] = request
        return {"device": matched, "host": request.prefix_len - matched}

    def _refuse(self, request: Any) -> None:
        """What was read for it has no room in L1."""
        self.cache.buffer_pipeline.release_staged_hold(request.cache_request_handle)
        if request.kv.holds_mamba:
            self.rows.mamba_allocator.free(request.kv.mamba_pool_idx.unsqueeze(-1))
        raise RuntimeError("deferred")

    def do_extend(self, number: int, tokens: int) -> None:
        request = self.requests[number]
        start, end = request.prefix_len, request.prefix_len + tokens
        is_first = not request.kv.holds_kv
        prefix = self.cache.prefix_device_indices(request) if is_first and start else None
        alloc_req_slots(self.rows, [request], self.cache)
        evict_from_tree_cache(self.cache, tokens + (self.page if self.page > 1 else 0))
        if prefix is not None:
            self.rows.write((request.kv.req_pool_idx, slice(0, start)), prefix.to(torch.int32))
        self._allocate(request, start, end)
        request.extend_end = end
        if self.buffers:
            ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(self.batch, request)

    def do_checkpoint(self, number: int) -> None:
        checkpoint_kv_cache(self.requests[number], self.cache)

    def do_decode(self, number: int, runs: list[list[int]]) -> None:
        request = self.requests[number]
        for token in tokens_of(runs):
            evict_from_tree_cache(self.cache, self.page)
            start = request.kv.kv_committed_len
            self._allocate(request, start, start + 1)
            request.output_ids.append(token)
            if self.buffers and (start + 1) % self.track_grid == 0:
                kv = request.kv
                kv.mamba_prev_track_seqlen = kv.mamba_last_track_seqlen
                kv.mamba_last_track_seqlen = start + 1
                kv.mamba_last_track_idx = kv.mamba_next_track_idx
                kv.mamba_next_track_idx = self.rows.get_mamba_ping_pong_other_idx(kv.mamba_next_track_idx)

    def do_finish(self, number: int, stop: int) -> None:
        request = self.requests.pop(number)
        request.finished_reason = FINISH_LENGTH(length=1)
        if stop >= 0:
            request.finished_len = stop
        release_kv_cache(request, self.cache, checkpoint=True)

    def do_retract(self, number: int, others: int) -> None:
        release_kv_cache(self.requests.pop(number), self.cache, checkpoint=False)
        evict_from_tree_cache(self.cache, others * 20)

    def do_evict(self, tokens: int, states: int) -> None:
        if tokens:
            self.cache.evict(EvictParams(num_tokens=tokens))
        if states:
            self.cache.evict(EvictParams(num_tokens=0, mamba_num=states))

    def do_prefetch(self, runs: list[list[int]], number: int | None = None) -> Answer:
        cache, ids = self.cache, tokens_of(runs)
        found = cache.match_prefix(MatchPrefixParams(key=RadixKey(ids[:-1])))
        start, anchor = found.device_prefix_len + found.host_hit_length, found.last_host_node
        if self.is_staging:
            anchor = found.last_device_node
        elif not (cache.is_backuped(anchor) or cache.is_root(anchor)):
            return {"loaded": 0}
        handle = CacheRequestHandle(rid="prefetch" if number is None else str(number), attempt_id=0)
        cache.prefetch_from_storage(
            handle, anchor, ids[start : len(ids) - 1], cache.get_last_hash_value(anchor), None, ids[:start]
        )
        deadline = time.monotonic() + LIMIT_S
        while not cache.check_prefetch_progress(handle):
            if time.monotonic() > deadline:
                raise TimeoutError("prefetch")
            cache.check_hicache_events()
            if self.is_staging and cache.buffer_pipeline.pending_hit_allocs:
                self.do_drop(handle.rid)
                break
            time.sleep(POLL_S)
        cache.check_hicache_events()
        loaded = cache.pop_prefetch_loaded_tokens(handle)
        if self.is_staging and number is None:
            self.do_drop(handle.rid)
        if self.is_staging:
            self.do_settle()
        return {"loaded": loaded}

    def do_drop(self, number: int | str) -> None:
        self.cache.release_aborted_request(CacheRequestHandle(rid=str(number), attempt_id=0))

    def do_settle(self) -> None:
        if not self.pools.host_ratio:
            return
        cache, deadline = self.cache, time.monotonic() + LIMIT_S
        cache.check_hicache_events()
        while self._copies():
            if time.monotonic() > deadline:
                raise TimeoutError("settle")
            time.sleep(POLL_S)
            cache.check_hicache_events()
        cache.check_hicache_events()

    def _copies(self) -> bool:
        """Whether any are under way."""
        cache, staging = self.cache, self.cache.buffer_pipeline
        if staging is not None:
            return bool(staging.ongoing_write_through or staging.ongoing_backup or staging.ongoing_buffer_load_back)
        return bool(cache.ongoing_write_through or cache.ongoing_load_back or cache.ongoing_backup)

    def do_flush(self) -> None:
        self.cache.reset()
        self.rows.clear()
        self.kv.clear()

    def _allocate(self, request: Any, start: int, end: int) -> None:
        at = -(-start // self.page) * self.page
        missing = -(-end // self.page) * self.page - at
        if missing > 0:
            slots = self.kv.alloc(missing)
            if slots is None:
                raise RuntimeError("out of tokens")
            self.rows.write((request.kv.req_pool_idx, slice(at, at + missing)), slots.to(torch.int32))
        request.kv.kv_committed_len = request.kv.kv_allocated_len = end


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    engine: Engine | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            if engine is not None:
                engine.close()
            engine = Engine(Pools(**asked))
            out.write(json.dumps(engine.sizes()) + "\n")
            continue
        if engine is None:
            raise SystemExit("operations before pools")
        answers = []
        for operation in asked:
            try:
                answers.append(engine.do(operation))
            except Exception:  # noqa: BLE001 - the other side decides what a failure means
                answers.append({"error": traceback.format_exc(limit=-3), "free": list(engine.sizes().values())})
        out.write(json.dumps(answers) + "\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
