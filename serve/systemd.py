"""The unit with which systemd runs the governor and its engine. Pure: printed, never installed by us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_STOP_S = 60
"""Running turns get a moment, then the engine ends; its pages may be on their way to disk."""


def governor_unit(argv: Sequence[str], *, what: str, environment: Mapping[str, str]) -> str:
    """The text of a user unit that runs ``argv``. ``what`` describes it in a few words."""
    variables = [f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(environment.items())]
    lines = [
        "[Unit]",
        f"Description={what.replace('%', '%%')}",
        "# A governor that cannot stay up is left down, to be looked at.",
        "StartLimitIntervalSec=300",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        # Only in commands do variables stand for something (systemd.service(5)).
        f"ExecStart={' '.join(_quoted(word.replace('$', '$$')) for word in argv)}",
        *variables,
        "# The governor ends its engine itself; what is left after the time limit is killed with it.",
        "KillMode=mixed",
        f"TimeoutStopSec={_STOP_S}",
        "Restart=on-failure",
        "RestartSec=5",
        "# Wrong arguments or profiles, another governor in the same home: another start would end in the same way.",
        "RestartPreventExitStatus=2 5",
        "# An engine that the kernel ends for lack of memory is started again by the governor.",
        "OOMPolicy=continue",
        "# Host pools are pinned memory, and each page on disk is a file.",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=65536",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    """As systemd.syntax(7) wants it, with specifiers taken literally."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    plain = escaped == word and word != "" and not any(char.isspace() or char in "';#" for char in word)
    return word if plain else f'"{escaped}"'
