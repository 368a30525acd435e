"""How one twin server was started."""

from __future__ import annotations

from pathlib import Path

import msgspec


class TwinServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the machine it stands for."""

    speed: float = 1.0
    """Seconds of the twin in one of the wall. Everything that the engine would wait for is divided by it."""
    seed: int = 0
    """Of what the model writes."""
    served_model_name: str | None = None
    """Over the machine's."""
    script: Path | None = None
    """File of scripted answers; without one all answers are generated."""
    kv_events_endpoint: str | None = None
    """ZMQ address at which KV events are published."""
    kv_replay_endpoint: str | None = None
    """ZMQ address at which missed ones are asked for."""
    plugin_socket: Path | None = None
    """Where our plugin inside the engine would listen."""
    lost_client_s: float = 4.0
    """``SGLANG_REQUEST_STATE_WAIT_TIMEOUT``: how often an answer in one piece looks whether its client is there."""
    lost_stream_s: float = 2.0
    """After the end of a stream's connection its generation is aborted (``create_abort_task``)."""
    health_check_s: float = 20.0
    """``SGLANG_HEALTH_CHECK_TIMEOUT``."""
