"""Secrets never reach a log: values known to be secret are taken out of every record, whatever form it has."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from governor.settings import Secret

MASK = "***"


class RedactingFilter(logging.Filter):
    """Renders a record, its traceback included, and replaces each known secret by value, not by pattern."""

    def __init__(self, known: Iterable[Secret]) -> None:
        super().__init__()
        self._values = sorted({secret.reveal() for secret in known} - {""}, key=len, reverse=True)
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.clean(record.getMessage()), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self.clean(self._formatter.formatException(record.exc_info))
        return True

    def clean(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASK)
        return text
