"""The recordings themselves: every kind is there, and the recogniser tells each as a person did."""

from __future__ import annotations

import pytest

from governor.output.kinds import turn_kind
from governor.types import TurnKind
from governor.wire.request import parse
from serve.engine import Endpoint
from tests.replay.recorded import RecordedRequest, recorded_requests

REQUESTS = recorded_requests()


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_kind_is_recognised(request_: RecordedRequest) -> None:
    assert turn_kind(parse(request_.endpoint, request_.body)) is request_.kind


def test_recordings_cover_what_clients_do() -> None:
    kinds = {(request.client, request.kind) for request in REQUESTS}
    assert kinds >= {("hermes", kind) for kind in TurnKind if kind not in {TurnKind.FINAL, TurnKind.SUMMARY}}
    assert kinds >= {("openclaw", TurnKind.TOOL_STEP), ("openclaw", TurnKind.COMPACTION)}
    assert {request.endpoint for request in REQUESTS} == {Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES}


def test_recordings_hold_no_credential() -> None:
    for request in REQUESTS:
        names = {name.lower() for name, _ in request.headers}
        assert not names & {"authorization", "x-api-key", "cookie"}
