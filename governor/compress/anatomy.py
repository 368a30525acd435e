"""What one message is made of: its parts by kind, each with a weight. Pure.

Read for reports only, so any dialect is taken: chat messages, Anthropic's blocks, items of the Responses API, and a
system prompt that stands by itself. Weights are tokens as a look at the bytes gives them; only their proportions count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from governor.compress.cuts import is_own
from governor.context import ContextKind
from governor.tokens.breaks import CARRIER_MARK
from governor.tokens.counter import ImageCost
from governor.tokens.estimate import estimate_text
from governor.wire.messages import decode, text_in

Fields = Mapping[str, Any]

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_RESULT_ROLES = frozenset({"tool", "function"})
_IMAGE_TYPES = frozenset({"image", "image_url", "input_image"})
_CALL_TYPES = frozenset({"tool_use", "function_call"})
_RESULT_TYPES = frozenset({"tool_result", "function_call_output"})
_THINKING_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_CARRIER_MARK = CARRIER_MARK.decode()
_CARRIER_REACH = 80
_SUMMARY_MARKS = ("[CONTEXT COMPACTION", "The conversation history before this point was compacted")
_OWN_RECORD = "[record, not a task"
_THINK = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_HEADING = re.compile(r"^#{1,3} +(\S.*)$", re.MULTILINE)
_SKILLS = re.compile(r"skills\b", re.IGNORECASE)
_SKILLS_OPEN, _SKILLS_END = "<available_skills>", "</available_skills>"
_SKILL = re.compile(r"<skill>|^\s*- \S", re.MULTILINE)
_UNNAMED_SECTION = "before any heading"
_REST_OF_SECTION = "without a heading"


class Part(msgspec.Struct, frozen=True, gc=False):
    """A part of a message, or all of it."""

    kind: ContextKind
    weight: float
    name: str = ""
    """Of the tool or the section."""
    items: int = 1


_UNREADABLE = Part(ContextKind.USER, 1.0)


def parts_of(raw: bytes | msgspec.Raw, calls: dict[str, str], tool: str = "") -> list[Part]:
    """The parts of a message, at least one. ``calls`` are the names of the tools asked for so far, by the call's id, in
    dialects other than chat; added to. ``tool`` is the one whose result a chat message is, where that is known."""
    value = decode(raw)
    try:
        if not isinstance(value, dict):
            # A system prompt outside of the messages, or an item that cannot be read.
            return list(_instructions(text_in(value))) or [_UNREADABLE]
        return list(_parts(value, calls, tool)) or [Part(_empty_kind(value), 1.0, tool)]
    except RecursionError:
        return [_UNREADABLE]


def words_of(raw: bytes | msgspec.Raw, kind: ContextKind) -> str:
    """The words by which a reader knows the part of that kind."""
    value = decode(raw)
    fields = value if isinstance(value, dict) else {"content": value}
    try:
        if kind is ContextKind.REASONING and (thought := _text(fields, *_REASONING_FIELDS)):
            return thought
        if kind is ContextKind.CALLS:
            return ", ".join(f"{_text(call, 'name')} {_arguments(call)}" for call in _calls(fields))
        return text_in(fields) or text_in(fields.get("output"))
    except RecursionError:
        return ""


def _empty_kind(value: Fields) -> ContextKind:
    role = _text(value, "role")
    if role in _RESULT_ROLES or _text(value, "type") in _RESULT_TYPES:
        return ContextKind.RESULTS
    if role in _INSTRUCTION_ROLES:
        return ContextKind.SYSTEM
    return ContextKind.ASSISTANT if role == "assistant" else ContextKind.USER


def _parts(value: Fields, calls: dict[str, str], tool: str) -> Iterator[Part]:
    role, kind = _text(value, "role"), _text(value, "type")
    if kind in _RESULT_TYPES | _CALL_TYPES | _THINKING_TYPES and not role:
        yield from _block(value, ContextKind.USER, calls)
        return
    content = value.get("content")
    if role in _INSTRUCTION_ROLES:
        yield from _instructions(text_in(content))
    elif role in _RESULT_ROLES:
        yield from _result(content, tool or _text(value, "name"))
    elif role == "assistant":
        for field in _REASONING_FIELDS:
            if isinstance(value.get(field), str) and value[field]:
                yield Part(ContextKind.REASONING, _weight(value[field]))
                break
        yield from _spoken(content, ContextKind.ASSISTANT, calls)
        yield from map(_call, _calls({**value, "content": None}))
    else:
        yield from _spoken(content, ContextKind.USER, calls)


def _spoken(content: Any, kind: ContextKind, calls: dict[str, str]) -> Iterator[Part]:
    """A text, or a list of blocks."""
    if isinstance(content, str):
        yield from _words(content, kind)
        return
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict):
            yield from _block(block, kind, calls)
        elif isinstance(block, str):
            yield from _words(block, kind)


def _block(block: Fields, kind: ContextKind, calls: dict[str, str]) -> Iterator[Part]:
    type_ = _text(block, "type")
    if type_ in _IMAGE_TYPES:
        yield Part(ContextKind.IMAGES, float(ImageCost().tokens))
    elif type_ in _CALL_TYPES:
        calls[_text(block, "call_id", "id")] = _text(block, "name")
        yield _call(block)
    elif type_ in _RESULT_TYPES:
        tool = calls.get(_text(block, "tool_use_id", "call_id"), "")
        yield from _result(block.get("content", block.get("output")), tool)
    elif type_ in _THINKING_TYPES:
        yield Part(ContextKind.REASONING, _weight(_text(block, "thinking") or text_in(block.get("summary"))))
    else:
        yield from _words(text_in(block), kind)


def _words(text: str, kind: ContextKind) -> Iterator[Part]:
    if not text:
        return
    if is_own(text) or text.startswith(_OWN_RECORD):
        yield Part(ContextKind.GOVERNOR, _weight(text))
    elif text.startswith(_SUMMARY_MARKS):
        yield Part(ContextKind.SUMMARIES, _weight(text))
    elif kind is ContextKind.USER and _CARRIER_MARK in text[:_CARRIER_REACH]:
        yield Part(ContextKind.CARRIERS, _weight(text))
    elif kind is ContextKind.ASSISTANT and (thought := _THINK.match(text)) is not None:
        yield Part(ContextKind.REASONING, _weight(thought[0]))
        if len(text) > thought.end():
            yield Part(kind, _weight(text[thought.end() :]))
    else:
        yield Part(kind, _weight(text))


def _result(content: Any, tool: str) -> Iterator[Part]:
    blocks = content if isinstance(content, list) else []
    images = sum(1 for block in blocks if isinstance(block, dict) and _text(block, "type") in _IMAGE_TYPES)
    text = text_in(content)
    if is_own(text):
        yield Part(ContextKind.GOVERNOR, _weight(text))
    elif text or not images:
        yield Part(ContextKind.RESULTS, _weight(text), tool)
    if images:
        yield Part(ContextKind.IMAGES, float(ImageCost().tokens * images), items=images)


def _calls(value: Fields) -> Iterator[Fields]:
    """The calls of a message or an item, in whichever dialect."""
    if _text(value, "type") in _CALL_TYPES:
        yield value
    content, calls = value.get("content"), value.get("tool_calls")
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and _text(block, "type") in _CALL_TYPES:
            yield block
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    yield from (function for function in (*functions, value.get("function_call")) if isinstance(function, dict))


def _arguments(call: Fields) -> str:
    arguments = call.get("input", call.get("arguments"))
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _call(call: Fields) -> Part:
    name = _text(call, "name")
    return Part(ContextKind.CALLS, _weight(name) + _weight(_arguments(call)), name)


def _instructions(text: str) -> Iterator[Part]:
    """A system prompt by its headings; the section that lists skills is a kind of its own."""
    for name, section in _sections(text):
        start = section.find(_SKILLS_OPEN)
        end = section.find(_SKILLS_END)
        if start < 0 and not _SKILLS.match(name):
            yield Part(ContextKind.SYSTEM, _weight(section), name)
            continue
        cut = end + len(_SKILLS_END) if end >= 0 else len(section)
        listed = section[max(0, start) : cut]
        yield Part(ContextKind.SKILLS, _weight(section[:cut]), name, max(1, len(_SKILL.findall(listed))))
        if section[cut:].strip():
            yield Part(ContextKind.SYSTEM, _weight(section[cut:]), _REST_OF_SECTION)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    name, start = _UNNAMED_SECTION, 0
    for heading in _HEADING.finditer(text):
        if text[start : heading.start()].strip():
            yield name, text[start : heading.start()]
            start = heading.start()
        name = heading[1]
    if text[start:].strip():
        yield name, text[start:]


def _text(value: Fields, *keys: str) -> str:
    """The first of these fields that is a text."""
    return next((value[key] for key in keys if isinstance(value.get(key), str)), "")


def _weight(text: str) -> float:
    return max(1.0, estimate_text(text.encode("utf-8", "replace")).usual)
