"""A KV-event publisher as SGLang's, for tests: numbered batches by ZMQ, with a replay of the last ones.

``python -m tests.kv_publisher PUBLISH REPLAY KEEP``. Commands come as lines on standard input; each is answered by
``ok`` when it is done:

``send N``    publish N batches of one stored page each; the page's hash is the batch's number
``lose N``    the same, kept for replay but never published
``forget``    drop what is kept for replay
``clear``     publish a batch in which everything is forgotten
``odd``       publish a batch that cannot be read

A restarted program counts from 0 again.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)
PAGE = 64


class Publisher:
    def __init__(self, publish: str, replay: str, keep: int) -> None:
        context = zmq.Context()
        self._live = context.socket(zmq.PUB)
        self._live.setsockopt(zmq.LINGER, 500)
        self._live.bind(publish)
        self._replay = context.socket(zmq.ROUTER)
        self._replay.bind(replay)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=keep)
        self._number = 0
        self.poller = zmq.Poller()
        self.poller.register(self._replay, zmq.POLLIN)
        self.poller.register(sys.stdin, zmq.POLLIN)

    def serve(self) -> None:
        while True:
            ready = dict(self.poller.poll())
            if self._replay in ready:
                self._answer()
            if sys.stdin.fileno() in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self._obey(*line.split())
                print("ok", flush=True)

    def _answer(self) -> None:
        client, _, first = self._replay.recv_multipart()
        for number, payload in self._kept:
            if number >= first:
                self._replay.send_multipart([client, b"", b"", number, payload])
        self._replay.send_multipart([client, b"", b"", END, b""])

    def _obey(self, command: str, count: str = "1") -> None:
        match command:
            case "send" | "lose":
                for _ in range(int(count)):
                    self._emit([self._stored()], published=command == "send")
            case "clear":
                self._emit([{"type": "AllBlocksCleared"}])
            case "odd":
                self._live.send_multipart([b"", self._number.to_bytes(8, "big"), b"\xc1"])
                self._number += 1
            case "forget":
                self._kept.clear()

    def _stored(self) -> dict[str, Any]:
        return {
            "type": "BlockStored",
            "block_hashes": [self._number],
            "parent_block_hash": None,
            "token_ids": [1] * PAGE,
            "block_size": PAGE,
            "medium": "GPU",
        }

    def _emit(self, events: list[dict[str, Any]], published: bool = True) -> None:
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._kept.append((number, payload))
        if published:
            self._live.send_multipart([b"", number, payload])


if __name__ == "__main__":
    Publisher(sys.argv[1], sys.argv[2], int(sys.argv[3])).serve()
