"""Finding out what an engine is that is to be measured, and wiring how it is asked."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from governor.errors import UpstreamError
from governor.measure.fingerprint import model_hash
from governor.measure.result import EngineFacts
from governor.measure.target import Target
from governor.settings import Secret
from serve.canary.http import SglangCanary
from serve.engine import EngineInfo
from serve.engines.http import default_transport, translated
from serve.engines.llamacpp import LlamaCpp
from serve.engines.openai_upstream import OpenAIUpstream
from serve.engines.sglang import Sglang

_UNTOLD_WINDOW = 32_768
"""Of a server that does not say how long a prompt may be."""
_ACCEPT_LENGTH = "sglang:spec_accept_length"
_NOT_A_SETTING = re.compile(
    r"key|secret|passw|token$|host$|port|addr|(?<!per_)path|file|folder|dir$|url|endpoint|socket|seed|time|log|ssl|trace|crash"
    r"|status|internal|watchdog|served|kv_events|request|backup|dump|export|enable_metrics|dist_init|twin|version$"
)
_STILL_SETTINGS = frozenset({"max_running_requests", "max_queued_requests"})
_ASK_S = 15.0


class SglangKeeper(SglangCanary):
    """What the canary does between questions, and the accept length."""

    async def accept_length(self) -> float | None:
        with translated("sglang"):
            response = await self._client.get("/metrics")
        if response.status_code != httpx.codes.OK:
            return None
        for family in text_string_to_metric_families(response.text):
            for sample in family.samples:
                if sample.name == _ACCEPT_LENGTH and sample.value:
                    return float(sample.value)
        return None


class _Twin(msgspec.Struct):
    machine: str = ""
    speed: float = 1.0


async def connect(
    url: str, *, key: Secret | None = None, model: str | None = None, monotonic: Callable[[], float] = time.monotonic
) -> Target:
    """The engine behind ``url``, found out by what it says of itself.

    Raises :class:`~governor.errors.UpstreamError` where nothing answers or it lists no model.
    """
    base = url.rstrip("/").removesuffix("/v1")
    server_info, props = await _asked(base, "/server_info", key), await _asked(base, "/props", key)
    if "max_total_num_tokens" in server_info:
        return await _sglang(base, key, model, server_info, monotonic)
    if "default_generation_settings" in props:
        return await _llamacpp(base, key, model, props, monotonic)
    engine = OpenAIUpstream("engine", base, key=key)
    info = await engine.describe()
    facts = EngineFacts(kind="openai", version=info.version, **_served(info, model))
    return Target(engine, facts, now=monotonic)


async def _sglang(
    base: str, key: Secret | None, model: str | None, server_info: Mapping[str, Any], monotonic: Callable[[], float]
) -> Target:
    engine, keeper = Sglang(base, key=key), SglangKeeper(base, key=key)
    info, seen = await engine.describe(), await keeper.facts()
    twin = msgspec.convert(server_info.get("twin") or {}, _Twin)
    speed = twin.speed
    images = await _asked(base, "/model_info", key)
    facts = EngineFacts(
        kind="sglang",
        version=f"{info.version} (twin of {twin.machine})" if twin.machine else info.version,
        model_hash=model_hash(str(server_info.get("model_path") or "")),
        flags=settings_of(server_info),
        page_tokens=seen.page_tokens,
        device_tokens=seen.device_tokens,
        device_states=seen.state_slots,
        host_tokens=seen.host_tokens,
        host_states=seen.host_states,
        has_host=seen.host_tier,
        storage=seen.storage,
        slots=info.slots,
        takes_images=bool(images.get("has_image_understanding")),
        speed=speed,
        **_served(info, model),
    )
    return Target(
        engine,
        facts,
        tokens_of=engine.continuation.tokens_of,
        keeper=keeper,
        now=monotonic if speed == 1.0 else lambda: monotonic() * speed,
    )


async def _llamacpp(
    base: str, key: Secret | None, model: str | None, props: Mapping[str, Any], monotonic: Callable[[], float]
) -> Target:
    engine = LlamaCpp(base, key=key, version=str(props.get("build_info") or "unknown"))
    info = await engine.describe()
    modalities = props.get("modalities") or {}
    facts = EngineFacts(
        kind="llamacpp",
        version=info.version,
        model_hash=model_hash(str(props.get("model_path") or "")),
        flags=settings_of(props),
        slots=info.slots,
        takes_images=bool(modalities.get("vision")),
        **_served(info, model),
    )

    async def tokens_of(text: str) -> list[int]:
        answer = await engine.ask("POST", "/tokenize", {"content": text})
        try:
            return msgspec.convert(answer, _Tokens).tokens
        except msgspec.ValidationError as error:
            raise UpstreamError(f"The engine (llamacpp) tokenises in an unknown way: {error}.") from error

    return Target(engine, facts, tokens_of=tokens_of, now=monotonic)


class _Tokens(msgspec.Struct):
    tokens: list[int]


def settings_of(told: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    """What an engine says of its settings, without what is different at each start, and without what is secret."""
    return {
        name: value
        for name, value in sorted(told.items())
        if (name in _STILL_SETTINGS or not _NOT_A_SETTING.search(name))
        and (value is None or isinstance(value, str | int | float | bool))
        and not (isinstance(value, str) and len(value) > 200)
    }


def _served(info: EngineInfo, model: str | None) -> dict[str, Any]:
    """Raises :class:`~governor.errors.UpstreamError` for a model that it does not serve."""
    cards = {name: card for card in info.models for name in (card.id, *card.aliases)}
    if model is not None and model not in cards:
        raise UpstreamError(f"The engine serves {', '.join(cards)}, not {model}.")
    card = cards[model] if model is not None else info.models[0]
    return {"model": card.id, "window_tokens": card.window_tokens or _UNTOLD_WINDOW}


async def _asked(base: str, path: str, key: Secret | None) -> Mapping[str, Any]:
    """An object of JSON; empty where there is no such route. Raises where nothing answers."""
    headers = {"authorization": f"Bearer {key.reveal()}"} if key else {}
    async with httpx.AsyncClient(
        base_url=base, transport=default_transport(), headers=headers, timeout=_ASK_S, trust_env=False
    ) as client:
        with translated("engine"):
            response = await client.get(path)
    if response.status_code != httpx.codes.OK:
        return {}
    try:
        found = msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
