"""The program: ``governor`` and ``python -m governor``."""

from __future__ import annotations

from governor.cli.app import app


def main() -> None:
    app(prog_name="governor")


if __name__ == "__main__":
    main()
