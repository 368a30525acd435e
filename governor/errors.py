"""Everything the governor can say no with. Each leaf knows its HTTP status, OpenAI ``type`` and ``code``.

::

    GovernorError
    ├── BadRequest                 400  invalid_request_error
    │   ├── ContextOverflow        400  context_length_exceeded
    │   ├── BodyTooLarge           413  request_too_large
    │   ├── UnsupportedEncoding    415  unsupported_encoding
    │   ├── UnsupportedMediaType   415  unsupported_media_type
    │   ├── RequestTimeout         408  request_timeout       (Connection: close)
    │   └── HeadTooLarge           431  request_head_too_large
    ├── NotAuthenticated           401  invalid_api_key
    ├── Forbidden                  403  forbidden
    ├── NotFound                   404  not_found
    │   └── ModelNotFound          404  model_not_found
    ├── MethodNotAllowed           405  method_not_allowed
    ├── NotPossible                409  not_possible
    ├── TurnCancelled              410  cancelled_by_owner
    ├── TooManyTurns               429  rate_limit_exceeded   (Retry-After)
    ├── UpstreamError              502  upstream_error
    │   ├── UpstreamUnavailable    503  engine_unavailable    (Retry-After)
    │   ├── UpstreamRefused         *   upstream_error        (the engine's own status and body)
    │   ├── UpstreamCut            502  upstream_cut
    │   └── UpstreamTimeout        504  upstream_timeout
    ├── InternalError              500  internal_error
    └── ConfigError                 -   a file and a key; never sent to a client

The wording matters: clients recover by substring. An overflow carries ``maximum context length is N tokens`` and
never the words "rate limit"; a 429 never speaks of context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

PRODUCER = "governor"


class GovernorError(Exception):
    """Root. ``param`` names the field at fault, if one is."""

    status: int = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    content_type: str = "application/json"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The error as OpenAI shapes it, with ``source`` saying which program produced it."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            "source": PRODUCER,
        }
        return msgspec.json.encode({"error": error})

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


class BadRequest(GovernorError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class ContextOverflow(BadRequest):
    """The prompt does not fit. Both Hermes and OpenClaw shrink their history on this wording."""

    code = "context_length_exceeded"

    def __init__(self, *, prompt_tokens: int, window_tokens: int, reserve_tokens: int, detail: str = "") -> None:
        message = (
            f"This model's maximum context length is {window_tokens} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens and at least {reserve_tokens} are kept for the answer. "
            "Please reduce the length of the messages."
        )
        super().__init__(f"{message} {detail}".rstrip(), param="messages")
        self.prompt_tokens = prompt_tokens
        self.window_tokens = window_tokens
        self.reserve_tokens = reserve_tokens


class BodyTooLarge(BadRequest):
    status = 413
    code = "request_too_large"


class UnsupportedEncoding(BadRequest):
    status = 415
    code = "unsupported_encoding"


class UnsupportedMediaType(BadRequest):
    status = 415
    code = "unsupported_media_type"


class RequestTimeout(BadRequest):
    status = 408
    code = "request_timeout"

    def headers(self) -> dict[str, str]:
        """What is still to come of the request is not waited for."""
        return {"connection": "close"}


class HeadTooLarge(BadRequest):
    status = 431
    code = "request_head_too_large"


class NotAuthenticated(GovernorError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(GovernorError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(GovernorError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(GovernorError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class NotPossible(GovernorError):
    """An action of the owner's that cannot be done as things are now."""

    status = 409
    type = "invalid_request_error"
    code = "not_possible"


class TurnCancelled(GovernorError):
    """The owner has ended a turn. A status that no client library tries again on, and that none takes for a bad key."""

    status = 410
    type = "cancelled"
    code = "cancelled_by_owner"


class TooManyTurns(GovernorError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class UpstreamError(GovernorError):
    status = 502
    type = "upstream_error"
    code = "upstream_error"


class UpstreamUnavailable(UpstreamError):
    status = 503
    code = "engine_unavailable"


class UpstreamRefused(UpstreamError):
    """The engine answered with an error of its own, which the client gets as it is. ``headers`` are the engine's that
    belong to it."""

    def __init__(
        self, status: int, body: bytes, content_type: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.content_type = content_type
        self._body = body
        self._headers = dict(headers or {})

    def body(self) -> bytes:
        return self._body

    def headers(self) -> dict[str, str]:
        return self._headers


class UpstreamCut(UpstreamError):
    code = "upstream_cut"


class UpstreamTimeout(UpstreamError):
    status = 504
    code = "upstream_timeout"


class InternalError(GovernorError):
    """Something of ours broke; the log has the traceback, the client only this."""


class ConfigError(GovernorError):
    """A file of the owner's is wrong. The message names the file, the key and, where known, the line."""

    code = "config_error"

    def __init__(self, message: str, *, file: str, key: str | None = None, line: int | None = None) -> None:
        at = f"{file}:{line}" if line is not None else file
        where = f"{at}: {key}: " if key else f"{at}: "
        super().__init__(where + message)
        self.file = file
        self.key = key
        self.line = line
        self.reason = message
