"""Secrets never reach a log, a record or a client: values known to be secret are taken out, whatever form they have."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from governor.identity.agents import KEY_FORM
from governor.settings import Secret

MASK = "***"


def _forms(value: str) -> set[str]:
    """How a value may be spelled in what is written: as it is, in JSON, in a URL, in a Python literal."""
    return {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe=""),
        quote_plus(value),
        repr(value)[1:-1],
    }


class Redactor:
    """Replaces secrets by value, not by pattern, so that short and odd ones are found, too."""

    def __init__(self, known: Iterable[Secret]) -> None:
        values = {secret.reveal() for secret in known} - {""}
        self._forms = sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)
        self._encoded = [form.encode(errors="surrogateescape") for form in self._forms]

    def text(self, text: str) -> str:
        """For logs and records. Agents' keys are known here by their hashes only, so those go by their form."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return KEY_FORM.sub(MASK, text)

    def data(self, data: bytes) -> bytes:
        """For an engine's own words on their way to a client. An engine never sees an agent's key."""
        for form in self._encoded:
            data = data.replace(form, MASK.encode())
        return data


class RedactingFilter(logging.Filter):
    """For handlers: renders a record, its traceback included, and takes the secrets out."""

    def __init__(self, known: Iterable[Secret]) -> None:
        super().__init__()
        self._redactor = Redactor(known)
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redactor.text(record.getMessage()), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redactor.text(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redactor.text(record.stack_info)
        return True
