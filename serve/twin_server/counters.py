"""What has been counted since the start, by the names of ``observability/metrics_collector.py``. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.twin.engine_model import Admitted, Ended, EndReason, EngineEvent, Retracted, Wrote

if TYPE_CHECKING:
    from serve.twin_server.generation import Generation


class Counters:
    """Only ever rising."""

    def __init__(self) -> None:
        self.requests = 0
        self.aborts = 0
        """Orders to abort, not requests that they have ended."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cached_device_tokens = 0
        self.cached_host_tokens = 0
        self.cached_storage_tokens = 0
        self.uncached_tokens = 0
        """Of prompts, that were or are being prefilled; a retraction's are not in it."""
        self.retractions = 0
        self.retracted_input_tokens = 0
        self.retracted_output_tokens = 0

    def on_event(self, event: EngineEvent, generation: Generation) -> None:
        if generation.is_probe:
            return
        match event:
            case Admitted() if not generation.was_admitted:
                self.uncached_tokens += len(generation.plan.prompt_ids) - event.cached.tokens
                self.cached_device_tokens += event.cached.device
                self.cached_host_tokens += event.cached.host
                self.cached_storage_tokens += event.cached.storage
            case Wrote():
                self.generation_tokens += event.stop - event.start
            case Retracted():
                self.retractions += 1
                self.retracted_input_tokens += len(generation.plan.prompt_ids)
                self.retracted_output_tokens += generation.written_tokens
            case Ended() if event.reason in (EndReason.STOP, EndReason.LENGTH):
                self.requests += 1
                self.prompt_tokens += event.prompt_tokens
            case _:
                pass

    @property
    def cached_tokens(self) -> int:
        return self.cached_device_tokens + self.cached_host_tokens + self.cached_storage_tokens
