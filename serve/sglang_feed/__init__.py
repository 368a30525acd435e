"""What an SGLang tells of its caches, as typed events: KV pages by ZMQ, everything else by our plugin's socket."""

from serve.sglang_feed.events import (
    FeedEvent,
    KvCleared,
    KvLost,
    KvRemoved,
    KvReset,
    KvStored,
    L3Changed,
    PluginHello,
    PluginLost,
    PrefixMatched,
    RequestAdmitted,
    StateChanged,
    StatesKnown,
)
from serve.sglang_feed.kv import KvFeed
from serve.sglang_feed.plugin import PluginFeed

__all__ = [
    "FeedEvent",
    "KvCleared",
    "KvFeed",
    "KvLost",
    "KvRemoved",
    "KvReset",
    "KvStored",
    "L3Changed",
    "PluginFeed",
    "PluginHello",
    "PluginLost",
    "PrefixMatched",
    "RequestAdmitted",
    "StateChanged",
    "StatesKnown",
]
