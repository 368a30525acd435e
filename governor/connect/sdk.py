"""What a script on the OpenAI SDK needs: two variables and six lines."""

from __future__ import annotations

import json
import shlex

from governor.connect.model import Connection


def environment(connection: Connection) -> str:
    """Lines for a shell."""
    return (
        f"export OPENAI_BASE_URL={shlex.quote(connection.base_url)}\n"
        f"export OPENAI_API_KEY={shlex.quote(connection.key.reveal())}\n"
    )


def snippet(connection: Connection) -> str:
    """A streamed answer in Python. The SDK takes address and key from the environment."""
    return (
        "from openai import OpenAI\n"
        "\n"
        "stream = OpenAI().chat.completions.create(\n"
        f'    model={json.dumps(connection.model)}, messages=[{{"role": "user", "content": "Hello!"}}], stream=True\n'
        ")\n"
        "for chunk in stream:\n"
        '    print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)\n'
    )
