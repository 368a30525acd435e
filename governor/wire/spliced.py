"""Several generations of a chat as one answer, in which the calls of one tool are not shown. Pure: it is fed with
events, or with whole answers, and tells what the client gets.

The gateway answers that tool itself. What the client gets is under the first generation's name: its ``id``, one role,
the last one's finish. Until the first such call comes every byte of a stream passes as it came.
"""

from __future__ import annotations

from typing import Any

import msgspec

from governor.wire import chunks, sse
from governor.wire.chunks import Written
from governor.wire.messages import decode
from governor.wire.sse import SseEvent

_CALLING = frozenset({"tool_calls", "function_call", "stop"})
"""Finishes of an answer whose calls are whole; some engines do not tell calls from the end of a text."""
_TEXTS = ("reasoning_content", "reasoning", "content")
_GAP = "\n\n"
"""Between what two generations say."""


class OwnCall(msgspec.Struct):
    """A call of the tool that the client is not shown."""

    id: str = ""
    arguments: str = ""


class Generation(msgspec.Struct):
    """What one generation came to."""

    content: str = ""
    reasoning: str = ""
    own: list[OwnCall] = []
    has_others: bool = False
    """It calls tools of the client's."""
    finish: str | None = None
    usage: dict[str, Any] = {}
    is_done: bool = False
    """The stream has said that it is at its end."""

    @property
    def asks(self) -> bool:
        """It waits for the tool alone. Where it calls others as well, its client's results come first."""
        return bool(self.own) and not self.has_others and self.finish in _CALLING


class _Spliced:
    """What streams and whole answers have in common."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self.generation = Generation()
        self._is_first = True
        self._names: dict[str, Any] = {}
        """Of the first generation: what all of it is called."""
        self._extension: Any = None
        self._shown = dict.fromkeys(_TEXTS, "")
        """What the client has of each kind, as far as its end matters."""
        self._is_new = dict.fromkeys(_TEXTS, True)
        """The generation has shown nothing of that kind yet."""
        self._earlier: Written | None = None

    def next(self) -> None:
        """Another generation goes on with the answer."""
        usage, earlier = self.generation.usage, self._earlier
        written = usage.get("completion_tokens")
        self._earlier = Written(
            earlier.usage if earlier else usage,
            (earlier.tokens if earlier else 0) + (written if type(written) is int else 0),
            (earlier.reasoning_tokens if earlier else 0) + chunks.reasoning_in(usage),
        )
        self.generation, self._is_first = Generation(), False
        self._is_new = dict.fromkeys(_TEXTS, True)

    def _total(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Of the whole answer: prompt and cached tokens are the first generation's, since that is the prompt which the
        client has sent."""
        if self._earlier is None:
            return usage
        if "prompt_tokens_details" not in self._earlier.usage:
            usage = {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
        return chunks.total(usage, self._earlier, thought=True)

    def _named(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self._is_first:
            self._names = self._names or {name: answer[name] for name in ("id", "created") if name in answer}
        return answer | self._names

    def _joined(self, kind: str, text: str) -> str:
        """``text``, apart from what an earlier generation has said."""
        before, is_new = self._shown[kind], self._is_new[kind]
        self._shown[kind], self._is_new[kind] = text[-1:], False
        apart = is_new and before and not before.isspace() and not text[:1].isspace()
        return _GAP + text if apart else text


class SplicedStream(_Spliced):
    """A stream."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self._begin()

    def next(self) -> None:
        super().next()
        self._begin()

    def _begin(self) -> None:
        self._own: dict[int, OwnCall] = {}
        self._numbers: dict[int, int] = {}
        """Of calls that are shown: the index that each has for the client."""
        self._unnamed: dict[int, list[dict[str, Any]]] = {}
        self._texts: dict[str, list[str]] = {kind: [] for kind in _TEXTS}
        self._held: list[tuple[str, dict[str, Any]]] = []
        """The end of a generation that asks, event by event."""

    def on_event(self, event: SseEvent) -> bytes:
        """What the client gets now."""
        generation, data = self.generation, event.data
        if data is None:
            return event.raw
        if data == b"[DONE]":
            generation.is_done = True
            return b"" if generation.asks else event.raw
        chunk: Any = decode(data)
        if not isinstance(chunk, dict) or chunk.get("error"):
            return event.raw
        named = self._named(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return self._on_report(event.raw, named)
        return self._on_choice(event.raw, named, dict(choices[0]))

    def ending(self, finish: str) -> bytes:
        """The end that was kept back, with this reason; empty where none was."""
        out = []
        for kind, chunk in self._held:
            if kind == "finish":
                choice = chunk["choices"][0] | {"finish_reason": finish}
                choice.pop("matched_stop", None)
                out += [_event(chunk | {"choices": [choice]}), self._first_extension()]
            elif kind == "usage":
                out.append(_event(chunk | {"usage": self._total(chunk["usage"])}))
        return b"".join([*out, sse.encode(b"[DONE]")]) if out else b""

    def _on_report(self, raw: bytes, chunk: dict[str, Any]) -> bytes:
        """An event without a choice: usage, or something of the engine's own."""
        generation, usage = self.generation, chunk.get("usage")
        if isinstance(usage, dict):
            generation.usage = usage
            if generation.asks:
                self._held.append(("usage", chunk))
                return b""
            return raw if self._is_first else _event(chunk | {"usage": self._total(usage)})
        if not self._is_first:
            return b""  # what was cached is told of the prompt that the client has sent
        if generation.asks:
            self._extension = chunk
            return b""
        return raw

    def _on_choice(self, raw: bytes, chunk: dict[str, Any], choice: dict[str, Any]) -> bytes:
        generation = self.generation
        delta = dict(choice["delta"]) if isinstance(choice.get("delta"), dict) else {}
        as_is = self._is_first
        for kind, text in _texts_in(delta):
            self._texts[kind].append(text)
            delta[kind] = self._joined(kind, text)
        pieces = delta.get("tool_calls")
        if isinstance(pieces, list):
            delta["tool_calls"] = shown = [each for piece in pieces for each in self._on_call(piece)]
            as_is = as_is and shown == pieces
            if not shown:
                del delta["tool_calls"]
        if isinstance(choice.get("finish_reason"), str):
            return self._on_finish(raw, chunk, choice, delta, as_is=as_is)
        if as_is:
            return raw
        if not self._is_first:
            delta.pop("role", None)
        if not any(value for value in delta.values()):
            return b""
        if isinstance(chunk.get("usage"), dict):
            generation.usage = chunk["usage"]
            chunk |= {"usage": self._total(chunk["usage"])}
        return _event(chunk | {"choices": [choice | {"delta": delta}]})

    def _on_finish(
        self, raw: bytes, chunk: dict[str, Any], choice: dict[str, Any], delta: dict[str, Any], *, as_is: bool
    ) -> bytes:
        generation = self.generation
        late = [piece for index in sorted(self._unnamed) for piece in self._show(index)]  # never named: not ours
        if late:
            delta["tool_calls"] = [*late, *delta.get("tool_calls", ())]
        generation.finish = choice["finish_reason"]
        _set_texts(generation, {kind: "".join(texts) for kind, texts in self._texts.items()})
        generation.own = [call for _, call in sorted(self._own.items())]
        if isinstance(chunk.get("usage"), dict):
            generation.usage = chunk["usage"]
            chunk |= {"usage": self._total(chunk["usage"])}
        if not self._is_first:
            delta.pop("role", None)
        if generation.asks:
            shown = {key: value for key, value in delta.items() if value}
            self._held.append(("finish", chunk | {"choices": [choice | {"delta": {}}]}))
            return _event(chunk | {"choices": [choice | {"delta": shown, "finish_reason": None}]}) if shown else b""
        if as_is and not late:
            return raw
        return _event(chunk | {"choices": [choice | {"delta": delta}]}) + self._first_extension()

    def _first_extension(self) -> bytes:
        return b"" if self._extension is None else _event(self._extension)

    def _on_call(self, piece: Any) -> list[dict[str, Any]]:
        """What is shown of a piece of a call: itself under the client's index, and what waited for its name."""
        if not isinstance(piece, dict):
            return [piece]
        index = piece.get("index")
        number = index if type(index) is int else 0
        if number in self._own:
            self._add(self._own[number], piece)
            return []
        if number in self._numbers:
            return [self._numbered(number, piece)]
        self._unnamed.setdefault(number, []).append(piece)
        name = _function(piece).get("name")
        if not isinstance(name, str) or not name:
            return []
        if name != self._tool:
            return self._show(number)
        call = self._own[number] = OwnCall()
        for each in self._unnamed.pop(number):
            self._add(call, each)
        return []

    def _show(self, number: int) -> list[dict[str, Any]]:
        self.generation.has_others = True
        self._numbers[number] = len(self._numbers)
        return [self._numbered(number, piece) for piece in self._unnamed.pop(number)]

    def _numbered(self, number: int, piece: dict[str, Any]) -> dict[str, Any]:
        return piece if piece.get("index", 0) == self._numbers[number] else piece | {"index": self._numbers[number]}

    def _add(self, call: OwnCall, piece: dict[str, Any]) -> None:
        id_, arguments = piece.get("id"), _function(piece).get("arguments")
        call.id = call.id or (id_ if isinstance(id_, str) else "")
        call.arguments += arguments if isinstance(arguments, str) else ""


class SplicedWhole(_Spliced):
    """Answers that are not streamed."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self._texts = dict.fromkeys(_TEXTS, "")

    def on_body(self, body: bytes) -> bytes | None:
        """What the client would get if this generation were the last: the first as it came, unless it calls the tool.
        ``None`` for a later one that is neither an answer nor an error."""
        answer: Any = decode(body)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            is_error = isinstance(answer, dict) and bool(answer.get("error"))
            return body if self._is_first or is_error else None
        choice = choices[0]
        message = dict(choice["message"]) if isinstance(choice.get("message"), dict) else {}
        calls = message.get("tool_calls") or []
        others = [call for call in calls if _function(call).get("name") != self._tool]
        generation = self.generation
        generation.own = [_own_call(call) for call in calls if _function(call).get("name") == self._tool]
        generation.has_others = bool(others)
        finish, usage = choice.get("finish_reason"), answer.get("usage")
        generation.finish = finish if isinstance(finish, str) else None
        generation.usage = usage if isinstance(usage, dict) else {}
        said = dict(_texts_in(message))
        _set_texts(generation, said)
        for kind, text in said.items():
            self._texts[kind] += self._joined(kind, text)
        if self._is_first:
            self._extension = answer.get("sglext")
        named = self._named(answer)
        if self._is_first and not generation.own:
            return body
        message |= {kind: text for kind, text in self._texts.items() if text}
        message["tool_calls"] = others
        if not others:
            del message["tool_calls"]
        named |= {"choices": [choice | {"message": message}]}
        if generation.usage:
            named["usage"] = self._total(generation.usage)
        if self._extension is not None:
            named["sglext"] = self._extension
        return msgspec.json.encode(named)


def ended_with(body: bytes, finish: str) -> bytes:
    """A whole answer with another reason for its end."""
    answer: dict[str, Any] = msgspec.json.decode(body)
    choice = answer["choices"][0] | {"finish_reason": finish}
    return msgspec.json.encode(answer | {"choices": [choice]})


def _texts_in(said: dict[str, Any]) -> list[tuple[str, str]]:
    return [(kind, text) for kind in _TEXTS if isinstance(text := said.get(kind), str) and text]


def _set_texts(generation: Generation, said: dict[str, str]) -> None:
    """Some engines tell reasoning under both names."""
    generation.content = said.get("content", "")
    generation.reasoning = said.get("reasoning_content") or said.get("reasoning", "")


def _own_call(call: Any) -> OwnCall:
    id_, arguments = call.get("id"), _function(call).get("arguments")
    return OwnCall(id_ if isinstance(id_, str) else "", arguments if isinstance(arguments, str) else "")


def _function(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _event(chunk: dict[str, Any]) -> bytes:
    return sse.encode(msgspec.json.encode(chunk))
