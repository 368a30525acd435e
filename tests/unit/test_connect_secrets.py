"""No secret of a client's file is shown, whoever it belongs to, and nothing else is hidden."""

from __future__ import annotations

import pytest

from governor.connect import json5text, yamltext
from governor.connect.secrets import masked, secret_values

NEW = "gov-" + "n" * 43

JSON5 = """\
{
  // sk-abcdefghijklmnopqrstuvwx is the old one
  env: { vars: { WEATHER: 'sunny-secret-1' } },
  gateway: { auth: { token: "hunter2" }, port: 18789 },
  channels: { telegram: { botToken: "123456:AAbbCC", allow: ["me"] } },
  models: { providers: { x: { apiKey: "${X_KEY}", headers: { Authorization: "Bearer abc.def" },
    models: [{ maxTokens: 8192, compat: { maxTokensField: "max_tokens" } }] } } },
}
"""
YAML = """\
model:
  api_key: short
  key_env: GW_KEY
  max_tokens: 8192
pem:
  private_key: |
    first line of it
    second line of it
flow: {token: t0k, name: n}
api_key: ${GW_KEY}
"""


def test_every_secret_of_a_json5_file_is_masked_and_nothing_else() -> None:
    shown = masked(JSON5, secret_values(json5text.read(JSON5, "f")))
    for secret in ("sk-abc", "sunny", "hunter2", "AAbbCC", "abc.def"):
        assert secret not in shown
    for harmless in ("${X_KEY}", "18789", '"me"', "maxTokens: 8192", '"max_tokens"'):
        assert harmless in shown
    assert shown.count("***") == 5
    assert shown.count("\n") == JSON5.count("\n")


def test_every_secret_of_a_yaml_file_is_masked_and_nothing_else() -> None:
    shown = masked(YAML, secret_values(yamltext.read(YAML, "f")))
    assert shown == YAML.replace("short", "***").replace("first line of it", "***").replace(
        "second line of it", "***"
    ).replace("t0k", "***")


@pytest.mark.parametrize("line", ['"apiKey": "{}",', "api_key: {}", "api_key: '{}'  # mine", "x: [{}]"])
def test_a_new_key_is_masked_and_told_from_an_old_one(line: str) -> None:
    text = line.replace("{}", NEW)
    assert masked(text, [], NEW) == line.replace("{}", "*** (new key)")
    assert masked(text, [NEW]) == line.replace("{}", "***")
    assert masked(text, []) == line.replace("{}", "***")
