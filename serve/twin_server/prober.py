"""``/health``: whether the scheduler answers (``http_server.py``, ``health_generate``)."""

from __future__ import annotations

import uuid

from serve.twin_server.asks import GenerateAsk, SamplingParams
from serve.twin_server.faults import Faults
from serve.twin_server.generation import PROBE_PREFIX
from serve.twin_server.planner import Planner
from serve.twin_server.service import TwinService

_PROBE = GenerateAsk(text="?", sampling_params=SamplingParams(max_new_tokens=1, ignore_eos=True))


class Prober:
    """Any output of the scheduler will do; an idle one is given a token to write."""

    def __init__(self, service: TwinService, planner: Planner, faults: Faults, patience_s: float) -> None:
        """``patience_s``: of the twin."""
        self._faults = faults
        self._service = service
        self._planner = planner
        self._patience_s = patience_s

    @property
    def is_started(self) -> bool:
        """Not yet, where a fault makes the start slow."""
        return self._service.up_s >= self._faults.not_ready_s

    async def is_alive(self) -> bool:
        service = self._service
        if not self.is_started:
            return False
        outputs = service.outputs
        rid = None
        if service.live == 0:
            rid = f"{PROBE_PREFIX}_{uuid.uuid4().hex}"
            service.start(self._planner.generate(_PROBE, None), rid)
        answered = await service.output_after(outputs, self._patience_s)
        if not answered and rid is not None:
            service.abort(rid)
        return answered
