"""Logprobs of a model without weights, as ``/generate`` gives them. Pure.

Each is made from all tokens up to its own, so the same context has the same ones whatever tier it came from, and
another context others. A token that was written is the most probable one: the twin is greedy. Forms are those of
``meta_info`` in SGLang 0.5.23 ``managers/tokenizer_manager.py``: number, token, text.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from serve.twin_server.pieces import Ids

_STEPS = 1000


def meta_logprobs(prompt: Ids, output: Sequence[int], start: int, alternatives: int) -> dict[str, Any]:
    """Fields of ``meta_info``. ``start``: of the prompt, the first token that is told; it has no number, since nothing
    before it was looked at. ``alternatives``: how many tokens are told at each place of the output."""
    said: dict[str, Any] = {}
    if 0 <= start < len(prompt):
        numbers = _numbers(prompt, start + 1)
        said["input_token_logprobs"] = [(None, prompt[start], None), *((-1 - 4 * n, t, None) for n, t in numbers)]
    whole = prompt + array("I", output)
    written = [(-0.5 * number, token, None) for number, token in _numbers(whole, len(prompt))]
    said["output_token_logprobs"] = written
    said["output_token_logprobs_length"] = len(written)
    if alternatives:
        said["output_top_logprobs"] = [_best(each, alternatives) for each in written]
    return said


def _numbers(context: Ids, start: int) -> Iterable[tuple[float, int]]:
    """For each token from ``start`` on a number from 0 up to 1."""
    check = zlib.crc32(context[:start].tobytes())
    for place in range(start, len(context)):
        check = zlib.crc32(context[place : place + 1].tobytes(), check)
        yield check % _STEPS / _STEPS, context[place]


def _best(chosen: tuple[float, int, None], count: int) -> list[tuple[float, int, None]]:
    """The chosen one and others that are not as probable."""
    number, token, _ = chosen
    return [(number - place, token ^ place, None) for place in range(count)]
