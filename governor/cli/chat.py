"""``governor chat``: a minimal chat in the terminal, to try the whole way with a real client library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from governor.cli.console import Exit, err, fail, told_errors
from governor.cli.options import HomeOption
from governor.cli.owner import read_owner_key
from governor.cli.status import the_running, wait_until_ready

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionMessageParam


def chat(
    home: HomeOption,
    message: Annotated[str | None, typer.Argument(help="One message; without it, a conversation.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to talk to; the first one served, if not given.")] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.", min=1)] = None,
) -> None:
    """Talk to the model through the running governor.

    \b
    governor chat 'Why is the sky blue?'
    governor chat                          a conversation; ends with Ctrl-D
    """
    import openai  # noqa: PLC0415 - half a second, and other commands do not need it

    with told_errors():
        note = the_running(home)
        key = read_owner_key(home)
        if key is None:
            fail("the owner's key is gone; restart the governor to get a new one", Exit.USAGE)
        wait_until_ready(note)
        client = openai.OpenAI(base_url=note.url + "/v1", api_key=key.reveal(), max_retries=0, timeout=3600)
        history: list[ChatCompletionMessageParam] = []
        if system:
            history.append({"role": "system", "content": system})
        try:
            served = model or client.models.list().data[0].id
            if message is not None:
                _turn(client, served, history, message, max_tokens)
            else:
                _converse(client, served, history, max_tokens)
        except IndexError:
            fail("the engine is not ready yet; see 'governor status'", Exit.NOT_READY)
        except openai.APIStatusError as error:
            fail(error.message, Exit.FAILED)
        except openai.APIError as error:
            fail(f"the answer broke off: {error.message}", Exit.FAILED)


def _converse(
    client: openai.OpenAI, model: str, history: list[ChatCompletionMessageParam], max_tokens: int | None
) -> None:
    err.print(f"[dim]{model}; Ctrl-D ends[/]")
    while True:
        try:
            message = input("you> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if message:
            _turn(client, model, history, message, max_tokens)


def _turn(
    client: openai.OpenAI,
    model: str,
    history: list[ChatCompletionMessageParam],
    message: str,
    max_tokens: int | None,
) -> None:
    """One message and its answer, printed as it comes. Ctrl-C ends the answer, not the conversation."""
    import openai  # noqa: PLC0415 - as above

    history.append({"role": "user", "content": message})
    pieces: list[str] = []
    stream = client.chat.completions.create(
        model=model, messages=history, stream=True, max_tokens=max_tokens if max_tokens is not None else openai.omit
    )
    finish = None
    try:
        for chunk in stream:
            for choice in chunk.choices:
                piece = choice.delta.content or ""
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
                finish = choice.finish_reason or finish
    except KeyboardInterrupt:
        stream.close()
    sys.stdout.write("\n")
    if finish == "length":
        err.print("[dim](cut at the output cap)[/]")
    history.append({"role": "assistant", "content": "".join(pieces)})
