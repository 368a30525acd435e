"""A client's billing line leaves the head of a system prompt, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from governor.policy.model import RequestPolicy
from governor.wire.request import parse
from serve.engine import Endpoint
from tests.stabilising import BILLING, OFF, Sending, anthropic, chat, decoded, responses, system, text, user, value

DEFAULT = RequestPolicy()
DROPPED = ("system: billing line dropped",)
FORMS = [
    BILLING,
    "x-anthropic-billing-header: cc_version=2.1.214.abc; cc_entrypoint=cli; cch=1a2b3; cc_prev_req=req_previous;",
    "x-anthropic-billing-header:cc version=2.1.37.3a3;cc_entrypoint=claude-vscode;cch=694d6;",
    "x-anthropic-billing-header: v=1.0aaa1; nonce=0aaa1",
]
NOT_FORMS = [
    "x-anthropic-billing-header: what this line means",
    "x-anthropic-billing-header: cch=36ee5; is what the client sends, so ignore it",
    "x-anthropic-billing-header:",
    f" {BILLING}",
    f"You see {BILLING}",
    BILLING.upper(),
]
RULES = "You are a coding helper.\n\nBe brief."


@pytest.mark.parametrize("line", FORMS)
def test_a_block_of_its_own(line: str) -> None:
    rest = text(RULES, cache_control={"type": "ephemeral"})
    made = Sending(DEFAULT)(anthropic(user("hey"), system=[text(line, cache_control=None), rest]))
    assert value(made.request.system) == [rest]
    assert made.edits == DROPPED


@pytest.mark.parametrize("line", FORMS)
@pytest.mark.parametrize("gap", ["\n", "\n\n", " \r\n"])
def test_a_leading_line(line: str, gap: str) -> None:
    sending = Sending(DEFAULT)
    joined = f"{line}{gap}{RULES}"
    assert value(sending(anthropic(user("hey"), system=joined)).request.system) == RULES
    assert value(sending(responses(user("hey"), instructions=joined)).request.system) == RULES
    assert decoded(sending(chat(system(joined), user("hey"))).request) == [system(RULES), user("hey")]
    parts = sending(chat(system([text(joined), text("more")], "developer"), user("hey")))
    assert decoded(parts.request)[0] == system([text(RULES), text("more")], "developer")
    items = sending(responses(system(joined), user("hey")))
    assert decoded(items.request) == [system(RULES), user("hey")]


@pytest.mark.parametrize("line", NOT_FORMS)
def test_what_is_not_that_line(line: str) -> None:
    sending = Sending(DEFAULT)
    for prompt in (line, f"{line}\n{RULES}"):
        for request in (
            anthropic(user("hey"), system=prompt),
            anthropic(user("hey"), system=[text(prompt)]),
            chat(system(prompt), user("hey")),
            responses(user("hey"), instructions=prompt),
        ):
            assert not sending(request).edits


def test_nowhere_but_at_the_head() -> None:
    sending = Sending(DEFAULT)
    for request in (
        chat(user(BILLING)),
        chat(system(RULES), user(BILLING), system(BILLING), user("x")),
        chat(system(f"{RULES}\n{BILLING}"), user("x")),
        chat(system([text(RULES), text(BILLING)]), user("x")),
        anthropic(user([text(BILLING), text("x")])),
        anthropic(user(BILLING), system=[text(RULES), text(BILLING)]),
        responses(user(BILLING)),
    ):
        assert not sending(request).edits


def test_a_quote_by_the_user_stays_beside_a_line_that_goes() -> None:
    made = Sending(DEFAULT)(chat(system(f"{BILLING}\n{RULES}"), user(f"{BILLING}\nwhat is this?")))
    assert decoded(made.request) == [system(RULES), user(f"{BILLING}\nwhat is this?")]


def test_where_nothing_is_left() -> None:
    sending = Sending(DEFAULT)
    for empty in (BILLING, [text(BILLING)], [text(BILLING), text(f"{BILLING}\n{BILLING}\n")]):
        assert "system" not in sending(anthropic(user("hey"), system=empty)).request.json
        assert decoded(sending(chat(system(empty), user("hey"))).request) == [user("hey")]
    assert "instructions" not in sending(responses(user("hey"), instructions=BILLING)).request.json
    only = chat(system(BILLING))
    assert sending(only).request is only, "a request has a message"
    only = anthropic(system(BILLING), system=BILLING)
    assert sending(only).request is only


def test_more_than_one_at_the_head() -> None:
    made = Sending(DEFAULT)(anthropic(user("hey"), system=[text(BILLING), text(f"{BILLING}\n{RULES}"), text(BILLING)]))
    assert value(made.request.system) == [text(RULES), text(BILLING)]


def test_kept_by_policy() -> None:
    assert not Sending(OFF)(anthropic(user("hey"), system=[text(BILLING), text(RULES)])).edits


@pytest.mark.parametrize("odd", [None, 7, {}, [7], ["x"], [{}], [{"type": "text", "text": 3}], "", []])
def test_odd_contents_are_left_alone(odd: Any) -> None:
    assert not Sending(DEFAULT)(chat(system(odd), user(BILLING))).edits


def test_the_other_bytes_stay() -> None:
    """Spelling of what is left is the client's."""
    rest = r'{ "text":"caf\u00e9 1.50", "type" : "text" }'
    body = f'{{"model":"m", "max_tokens":9,"system": [{{"type":"text","text":"{BILLING}"}} , {rest}],"messages":[]}}'
    body = body.replace("[]", '[{"role":"user","content":"\\u00e9"}]')
    made = Sending(DEFAULT)(parse(Endpoint.MESSAGES, body.encode()))
    assert made.request.json.body.decode() == body.replace(f'{{"type":"text","text":"{BILLING}"}} , ', "")
