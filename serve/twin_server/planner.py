"""From a request to a plan: the prompt's tokens, what will be written, and the tiers' keys of both."""

from __future__ import annotations

from typing import Any

import msgspec

from serve.twin.engine_job import RESERVED_TOKENS, longest_request_tokens, output_limit
from serve.twin.engine_model import Ask
from serve.twin.tiers_key import Key
from serve.twin_server.answers import plan
from serve.twin_server.asks import ChatAsk, GenerateAsk, TextAsk, stops
from serve.twin_server.content import Content
from serve.twin_server.errors import BadRequest, malformed, prompt_too_long, total_too_long
from serve.twin_server.generation import Plan
from serve.twin_server.info import Identity
from serve.twin_server.pieces import Ids, encode
from serve.twin_server.script import Asked, Rule, Script
from serve.twin_server.template import BadMessages, chat_ids, last_user_text, tool_specs, turn_number
from serve.twin_server.tokens import token_array
from serve.twin_server.wishes import AnswerSettings, BadWish, Choice, Limits, Offer, Wish, read_wish


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What dialects differ in, taken out of them."""

    cap: int | None
    """Of the output; ``None``: the window."""
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    wish: Wish
    offer: Offer = Offer()
    thinks: bool = False
    priority: int = 0
    extra_key: str | None = None
    cache_salt: str | None = None


class Planner:
    """Deterministic but for what was read before: equal beginnings have equal keys."""

    def __init__(self, identity: Identity, content: Content, settings: AnswerSettings, script: Script | None) -> None:
        self._identity = identity
        self._content = content
        self._settings = settings
        self._script = script

    @property
    def window_tokens(self) -> int:
        return self._identity.engine.context_tokens

    # What is asked

    def rule_of_chat(self, ask: ChatAsk, agent: str) -> Rule | None:
        """The script's rule for it. Raises :class:`BadRequest`."""
        if self._script is None:
            return None
        try:
            asked = Asked(last_user=last_user_text(ask.messages), agent=agent, turn=turn_number(ask.messages))
        except BadMessages as error:
            raise malformed(str(error)) from error
        return self._script.rule_for(asked)

    def rule_of_text(self, text: str, agent: str) -> Rule | None:
        if self._script is None:
            return None
        return self._script.rule_for(Asked(last_user=text, agent=agent, turn=1))

    def chat_ids(self, ask: ChatAsk) -> Ids:
        """The rendered prompt, or the tokens that the request brings instead. Raises :class:`BadRequest`."""
        if ask.input_ids is not None:
            return token_array(ask.input_ids)
        try:
            return chat_ids(
                ask.messages,
                None if ask.tool_choice == "none" else ask.tools,
                enable_thinking=_thinks(ask),
                continue_final_message=ask.continue_final_message,
            )
        except BadMessages as error:
            raise malformed(str(error)) from error

    # Plans

    def chat(self, ask: ChatAsk, rule: Rule | None) -> Plan:
        """Raises :class:`BadRequest`."""
        wanted = Wanted(
            cap=ask.cap,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop=stops(ask.stop),
            wish=self._wish(ask.custom_params, rule),
            offer=self._offer(ask),
            thinks=_thinks(ask),
            priority=ask.priority or 0,
            extra_key=ask.extra_key,
            cache_salt=ask.cache_salt,
        )
        return self._plan(self.chat_ids(ask), wanted)

    def texts(self, ask: TextAsk, rule: Rule | None) -> list[Plan]:
        """``n`` for each prompt. Raises :class:`BadRequest`."""
        wanted = Wanted(
            cap=ask.max_tokens,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop=stops(ask.stop),
            wish=self._wish(ask.custom_params, rule),
            priority=ask.priority or 0,
            extra_key=ask.extra_key,
            cache_salt=ask.cache_salt,
        )
        return [self._plan(ids, wanted) for ids in _prompts(ask.prompt) for _ in range(ask.n)]

    def generate(self, ask: GenerateAsk, rule: Rule | None) -> list[Plan]:
        """Raises :class:`BadRequest`."""
        if (ask.text is None) == (ask.input_ids is None):
            raise BadRequest("Either text, input_ids or input_embeds should be provided.")
        ids = encode(ask.text) if ask.text is not None else token_array(ask.input_ids or [])
        sampling = ask.sampling_params
        wanted = Wanted(
            cap=sampling.max_new_tokens,
            min_tokens=sampling.min_new_tokens,
            ignore_eos=sampling.ignore_eos,
            stop=stops(sampling.stop),
            wish=self._wish(sampling.custom_params, rule),
            priority=ask.priority or 0,
            extra_key=ask.extra_key,
        )
        return [self._plan(ids, wanted) for _ in range(sampling.n)]

    def _plan(self, ids: Ids, wanted: Wanted) -> Plan:
        prompt_tokens, window = len(ids), self.window_tokens
        if prompt_tokens == 0:
            raise BadRequest("The prompt is empty.")
        if wanted.cap is not None and wanted.cap < 0:
            raise BadRequest(f"max_new_tokens must be at least 0, got {wanted.cap}.")
        if prompt_tokens >= window:
            raise prompt_too_long(prompt_tokens, window)
        if wanted.cap is not None and prompt_tokens + wanted.cap > window:
            raise total_too_long(prompt_tokens, wanted.cap, window)
        context = self._content.context(ids, extra_key=wanted.extra_key, cache_salt=wanted.cache_salt)
        cap = window - prompt_tokens if wanted.cap is None else wanted.cap
        bare = Ask(rid="", prompt=context.key, output=Key(), writes_tokens=0, max_new_tokens=cap)
        limits = Limits(
            max_tokens=output_limit(bare, self._identity.engine),
            min_tokens=wanted.min_tokens,
            ignore_eos=wanted.ignore_eos,
            stop=wanted.stop,
        )
        try:
            answer = plan(ids, settings=self._settings, limits=limits, wish=wanted.wish, offer=wanted.offer)
        except BadWish as error:
            raise malformed(str(error)) from error
        context.append(answer.ids)
        return Plan(
            prompt_ids=ids,
            prompt=context.key.cut(0, prompt_tokens),
            answer=answer,
            output=context.key.cut(prompt_tokens, prompt_tokens + len(answer.ids)),
            max_new_tokens=cap,
            longest_prompt_tokens=self._longest_prompt_tokens,
            offer=wanted.offer,
            thinks=wanted.thinks,
            priority=wanted.priority,
            ignore_eos=wanted.ignore_eos,
            accept_length=wanted.wish.accept_length,
        )

    @property
    def _longest_prompt_tokens(self) -> int:
        """See :func:`serve.twin.engine_job.is_too_long`."""
        engine, tiers = self._identity.engine, self._identity.tiers
        room = tiers.page_floor(tiers.device_tokens) - tiers.page_tokens
        return min(longest_request_tokens(engine) - RESERVED_TOKENS, room)

    def _wish(self, custom_params: dict[str, Any] | None, rule: Rule | None) -> Wish:
        """The request's own wish is nearer than the script's."""
        if rule is not None and rule.answer is not None and not (custom_params or {}).get("twin"):
            return rule.answer
        try:
            return read_wish(custom_params)
        except BadWish as error:
            raise malformed(str(error)) from error

    def _offer(self, ask: ChatAsk) -> Offer:
        try:
            tools = tool_specs(ask.tools)
        except BadMessages as error:
            raise malformed(str(error)) from error
        choice = ask.tool_choice
        if isinstance(choice, dict):
            name = choice["function"]["name"]
            return Offer(tuple(tool for tool in tools if tool.name == name), Choice.REQUIRED)
        return Offer(tools, Choice(choice or Choice.AUTO))


def _thinks(ask: ChatAsk) -> bool:
    return bool((ask.chat_template_kwargs or {}).get("enable_thinking", ask.reasoning_effort != "none"))


def _prompts(prompt: str | list[Any]) -> list[Ids]:
    """A text or its tokens, once or several times."""
    if isinstance(prompt, str):
        return [encode(prompt)]
    if not prompt or all(type(each) is int for each in prompt):
        return [token_array(prompt)]
    if all(isinstance(each, str) for each in prompt):
        return [encode(each) for each in prompt]
    if all(isinstance(each, list) and all(type(token) is int for token in each) for each in prompt):
        return [token_array(each) for each in prompt]
    raise malformed("Expected a text, tokens, or a list of either - at `$.prompt`")
