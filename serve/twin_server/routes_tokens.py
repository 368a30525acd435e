"""``/tokenize`` and ``/detokenize`` (``openai/serving_tokenize.py``)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.twin_server.asks import ChatAsk, DetokenizeAsk, TokenizeAsk, body_of, check_chat, decoded
from serve.twin_server.errors import BadRequest, json_response, malformed
from serve.twin_server.pieces import decode, encode
from serve.twin_server.planner import Planner
from serve.twin_server.tokens import token_array


class TokenRoutes:
    """Counts without a generation."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self._tokenize, methods=["POST"]) for path in ("/tokenize", "/v1/tokenize")),
            *(Route(path, self._detokenize, methods=["POST"]) for path in ("/detokenize", "/v1/detokenize")),
        ]

    async def _tokenize(self, request: Request) -> Response:
        try:
            ask = await body_of(request, TokenizeAsk)
            if (ask.prompt is None) == (ask.messages is None):
                raise malformed("Exactly one of 'prompt' or 'messages' must be provided.")
            if ask.messages is not None:
                chat = decoded(await request.body(), ChatAsk)
                check_chat(chat, self._planner.window_tokens)
                tokens: list[int] | list[list[int]] = self._planner.chat_ids(chat).tolist()
                return self._counted(tokens, len(tokens))
            if isinstance(ask.prompt, list):
                each = [encode(text).tolist() for text in ask.prompt]
                return self._counted(each, [len(ids) for ids in each])
            ids = encode(ask.prompt or "").tolist()
            return self._counted(ids, len(ids))
        except BadRequest as refused:
            return refused.openai_response()

    def _counted(self, tokens: list[int] | list[list[int]], count: int | list[int]) -> Response:
        return json_response({"tokens": tokens, "count": count, "max_model_len": self._planner.window_tokens})

    async def _detokenize(self, request: Request) -> Response:
        try:
            ask = await body_of(request, DetokenizeAsk)
            skip = ask.skip_special_tokens
            several = [ids for ids in ask.tokens if isinstance(ids, list)]
            one = [token for token in ask.tokens if isinstance(token, int)]
            if several and one:
                raise malformed("Expected tokens or lists of tokens - at `$.tokens`")
            return json_response({"text": [_text(ids, skip) for ids in several] if several else _text(one, skip)})
        except BadRequest as refused:
            return refused.openai_response()


def _text(ids: list[int], skip_special_tokens: bool) -> str:
    return decode(token_array(ids), skip_special_tokens=skip_special_tokens)
