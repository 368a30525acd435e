"""Taking the split by tier out of an answer, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from governor.wire.answer import ChatReader, Seen
from governor.wire.tiers import without_tiers

TIERS = '"sglext":{"cached_tokens_details":{"device":1,"host":2,"storage":3,"storage_backend":"HiCacheFile"}}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"id":"x","choices":[],%s}', ""),
        ('{"id":"x","choices":[],"usage":null,%s}', ""),
        (
            '{"id":"x",%s,"choices":[{"index":0}],"usage":{"a":1.50}}',
            '{"id":"x","choices":[{"index":0}],"usage":{"a":1.50}}',
        ),
        ('{"choices":[],"usage":{"a":1},%s}', '{"choices":[],"usage":{"a":1}}'),
        ('{"choices":[]}', '{"choices":[]}'),
        ("no json %s", f"no json {TIERS}"),
        ('{"choices":[],"sglext":null}', '{"choices":[],"sglext":null}'),
        ('{"choices":[],"sglext":7}', '{"choices":[],"sglext":7}'),
    ],
)
def test_only_the_split_goes(before: str, after: str) -> None:
    data = before.replace("%s", TIERS).encode()
    assert without_tiers(data) == after.encode()


def test_what_else_the_client_asked_for_stays() -> None:
    data = b'{"choices":[],"sglext":{"output_ids":[[1]],"cached_tokens_details":{"device":1}}}'
    assert msgspec.json.decode(without_tiers(data)) == {"choices": [], "sglext": {"output_ids": [[1]]}}


def test_the_split_is_read_from_a_chunk_of_its_own() -> None:
    reader = ChatReader()
    assert reader.on_data(b'{"choices":[],%s}' % TIERS.encode()) is Seen.TIERS
    assert reader.on_data(b'{"choices":[],"usage":{"prompt_tokens":9}}') is Seen.USAGE_ONLY
    usage = reader.answer.usage
    assert (usage.prompt_tokens, usage.cached_device_tokens, usage.cached_storage_tokens) == (9, 1, 3)


@pytest.mark.parametrize("extension", ["{}", "[]", '{"cached_tokens_details":null}', '{"cached_tokens_details":[1]}'])
def test_odd_extensions_are_no_split(extension: str) -> None:
    reader = ChatReader()
    assert reader.on_data(b'{"choices":[],"sglext":%s}' % extension.encode()) is Seen.OTHER
