"""From the engine's threads to whoever listens: a bounded queue, one sending thread, a unix socket.

A message is a line of JSON. Its number is given before it is known whether it fits into the queue, so a dropped one
is a gap that a listener sees. A listener begins with a greeting and all states that are known, so after a gap it just
connects again.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

VERSION = 1
"""Of the message format."""
_MAX_QUEUED = 20_000
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""A listener that is further behind is cut off."""
_BEAT_S = 0.2
_GATHER_S = 0.005
"""What comes within this goes out together."""


class Channel:
    """``post`` may be called from any thread and returns at once; the rest is the sending thread's."""

    def __init__(self, path: str, greeting: Callable[[], dict[str, Any]], max_queued: int = _MAX_QUEUED) -> None:
        self._path = Path(path)
        self._greeting = greeting
        self._max_queued = max_queued
        self._lock = threading.Lock()
        self._queue: collections.deque[dict[str, Any]] = collections.deque()
        self._sequence = 0
        self.dropped = 0
        """Messages that found the queue full."""
        self._l3_told = 0
        self.instance = uuid.uuid4().hex
        """Another one after each start of the engine."""
        self._states: dict[str, tuple[int, str]] = {}
        self._listeners: dict[socket.socket, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._server = _listening(self._path)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="governor-plugin", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Sends what is queued, once. May be repeated."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def post(self, kind: str, **fields: Any) -> None:
        """Queue a message. Never blocks; drops it when the queue is full."""
        with self._lock:
            self._sequence += 1
            self._l3_told += kind == "l3"
            if len(self._queue) >= self._max_queued:
                self.dropped += 1
                return
            was_empty = not self._queue
            self._queue.append({"seq": self._sequence, "at": time.time(), "type": kind, **fields})
        if was_empty:
            with contextlib.suppress(OSError):  # full: it is awake anyway
                self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._turn()
            self._turn()
        except Exception:
            log.exception("the governor's plugin sends nothing any more")
        finally:
            for listener in list(self._listeners):
                self._drop(listener)
            self._selector.close()
            for each in (self._server, self._woken, self._waker):
                each.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _turn(self) -> None:
        """Wait for messages or listeners, a beat at most, then send what has come in the meantime."""
        for key, _ in self._selector.select(_BEAT_S):
            if key.fileobj is self._server:
                self._accept()
            elif key.fileobj is self._woken:
                self._woken.recv(4096)
                time.sleep(_GATHER_S)
            else:
                self._on_listener(key.fileobj)
        lines = []
        while self._queue:
            message = self._queue.popleft()
            self._note_state(message)
            lines.append(_line(message))
        for listener in list(self._listeners):
            self._listeners[listener] += b"".join(lines)
            self._send(listener)

    def _accept(self) -> None:
        try:
            listener, _ = self._server.accept()
        except OSError:
            return
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        states = [[name, tokens, tiers] for name, (tokens, tiers) in self._states.items()]
        hello: dict[str, Any] = {
            "type": "hello",
            "version": VERSION,
            "instance": self.instance,
            "dropped": self.dropped,
        }
        # What is queued comes after, so the first number that follows is that of the queue's head.
        with self._lock:
            sent = self._queue[0]["seq"] - 1 if self._queue else self._sequence
            hello["l3_told"] = self._l3_told - sum(message["type"] == "l3" for message in self._queue)
        opening = _line({"seq": sent, "at": time.time(), **hello, **self._greeting()})
        self._listeners[listener] = bytearray(opening + _line({"seq": sent, "type": "states", "states": states}))

    def _on_listener(self, listener: Any) -> None:
        """It says nothing, so what can be read is its end."""
        try:
            if listener.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._drop(listener)

    def _send(self, listener: socket.socket) -> None:
        unsent = self._listeners[listener]
        try:
            while unsent:
                del unsent[: listener.send(memoryview(bytes(unsent[:262_144])))]
        except BlockingIOError:
            if len(unsent) > _MAX_UNSENT_BYTES:
                self._drop(listener)
        except OSError:
            self._drop(listener)

    def _drop(self, listener: socket.socket) -> None:
        self._listeners.pop(listener, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(listener)
        listener.close()

    def _note_state(self, message: dict[str, Any]) -> None:
        """Keep what a new listener is told."""
        if message["type"] == "state":
            if message["tiers"]:
                self._states[message["hash"]] = (message["tokens"], message["tiers"])
            else:
                self._states.pop(message["hash"], None)
        elif message["type"] == "states":
            self._states = {name: (tokens, tiers) for name, tokens, tiers in message["states"]}


def _listening(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o600)
    server.listen(8)
    server.setblocking(False)
    return server


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
