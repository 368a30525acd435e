"""Weights from a hub, with the real huggingface_hub and a small hub on a free port."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from serve.embedded.hub import fetch_from_hub
from serve.embedded.progress import Progress, Silent
from serve.embedded.source import HubFile
from serve.errors import BadModelSource, DownloadFailed, WeightsCorrupt

MIB = 1024 * 1024
HEAD = b"GGUF\x03\x00\x00\x00"
SMALL = HEAD + b"small" * 1000
# More than two of the library's 10 MB chunks, so that an interruption leaves a part behind.
LARGE = HEAD + os.urandom(25 * MIB)


class Hub:
    """What ``huggingface_hub`` asks for: file metadata, file content in ranges, the list of files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.false_hash = False
        self.cut_after: int | None = None
        """Break the connection of the next download after so many bytes."""
        self.asked: list[tuple[str, str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer()

            def do_GET(self) -> None:
                self._answer()

            def _answer(self) -> None:
                hub.asked.append((self.command, self.path, self.headers.get("Range")))
                if self.path.startswith("/api/models/o/r/tree/main"):
                    listing = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in hub.files]
                    return self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
                content = hub.files.get(self.path.removeprefix("/o/r/resolve/main/"))
                if content is None:
                    code = "EntryNotFound" if self.path.startswith("/o/r/") else "RepoNotFound"
                    return self._send(404, b"", {"X-Error-Code": code})
                start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
                sha256 = hashlib.sha256(b"?" if hub.false_hash else content).hexdigest()
                headers = {"ETag": f'"{sha256}"', "X-Repo-Commit": "c" * 40, "Accept-Ranges": "bytes"}
                if start:
                    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                return self._send(206 if start else 200, content[start:], headers)

            def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                cut, hub.cut_after = hub.cut_after, None
                try:
                    self.wfile.write(body[:cut])
                except OSError:
                    return  # the client was interrupted on purpose
                if cut is not None:
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name given by the library
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def ranges(self) -> list[str | None]:
        """Of the downloads, in order."""
        return [range_ for command, path, range_ in self.asked if command == "GET" and "/resolve/" in path]


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub({"README.md": b"x", "small.gguf": SMALL})
    yield hub
    hub.close()


def fetch(hub: Hub, folder: Path, file: str | None = None, progress: Progress | None = None) -> Path:
    return fetch_from_hub(HubFile("o", "r", file), folder, progress or Silent(), endpoint=hub.endpoint)


def test_the_only_model_is_chosen_and_later_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    hub.files["mmproj-f16.gguf"] = SMALL
    path = fetch(hub, tmp_path)
    assert path == tmp_path / "hf" / "o" / "r" / "small.gguf"
    assert path.read_bytes() == SMALL
    assert not list(path.parent.glob("*.part*"))
    hub.asked.clear()
    assert fetch(hub, tmp_path) == path
    assert hub.asked == []


def test_several_models_are_listed_as_they_must_be_typed(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {"big-00001-of-00002.gguf": SMALL, "big-00002-of-00002.gguf": SMALL}
    with pytest.raises(BadModelSource) as refused:
        fetch(hub, tmp_path)
    assert refused.value.message.splitlines() == [
        "o/r holds 2 models. Choose one:",
        "  --model hf:o/r:big-00001-of-00002.gguf",
        "  --model hf:o/r:small.gguf",
    ]


def test_a_split_model_is_fetched_whole(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {"big-00001-of-00002.gguf": SMALL, "big-00002-of-00002.gguf": SMALL + b"2"}
    path = fetch(hub, tmp_path, "big-00001-of-00002.gguf")
    assert path.name == "big-00001-of-00002.gguf"
    assert (path.parent / "big-00002-of-00002.gguf").read_bytes() == SMALL + b"2"


class Interrupts(Silent):
    """Ctrl-C in mid download."""

    def moved(self, done_bytes: int, total_bytes: int | None) -> None:
        if done_bytes > 15 * MIB:
            raise KeyboardInterrupt


def test_an_interrupted_download_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.files["large.gguf"] = LARGE
    with pytest.raises(KeyboardInterrupt):
        fetch(hub, tmp_path, "large.gguf", progress=Interrupts())
    path = fetch(hub, tmp_path, "large.gguf")
    assert path.read_bytes() == LARGE
    first, second = hub.ranges
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").rstrip("-")) >= 10_000_000


def test_a_broken_connection_is_taken_up_again(hub: Hub, tmp_path: Path) -> None:
    hub.files["large.gguf"] = LARGE
    hub.cut_after = 12 * MIB
    assert fetch(hub, tmp_path, "large.gguf").read_bytes() == LARGE
    assert len(hub.ranges) == 2


def test_a_changed_file_is_not_glued_to_the_part_of_the_old_one(hub: Hub, tmp_path: Path) -> None:
    hub.files["large.gguf"] = LARGE
    with pytest.raises(KeyboardInterrupt):
        fetch(hub, tmp_path, "large.gguf", progress=Interrupts())
    hub.files["large.gguf"] = HEAD + LARGE[len(HEAD) :][::-1]
    assert fetch(hub, tmp_path, "large.gguf").read_bytes() == hub.files["large.gguf"]


def test_a_wrong_hash_or_kind_is_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.false_hash = True
    with pytest.raises(WeightsCorrupt):
        fetch(hub, tmp_path)
    hub.false_hash = False
    hub.files["html.gguf"] = b"<html>login</html>"
    with pytest.raises(BadModelSource, match="not a GGUF file"):
        fetch(hub, tmp_path, "html.gguf")
    assert [file.name for file in (tmp_path / "hf" / "o" / "r").iterdir()] == ["chosen.json"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HubFile("o", "r", "nothing.gguf"), r"has no file nothing\.gguf"),
        (HubFile("no", "body", None), "knows no repository no/body"),
        (HubFile("no", "body", "x.gguf"), "knows no repository no/body"),
    ],
)
def test_unknown_names_are_said_to_be_so(hub: Hub, tmp_path: Path, source: HubFile, reason: str) -> None:
    with pytest.raises(BadModelSource, match=reason):
        fetch_from_hub(source, tmp_path, Silent(), endpoint=hub.endpoint)


def test_a_repository_without_models(hub: Hub, tmp_path: Path) -> None:
    del hub.files["small.gguf"]
    with pytest.raises(BadModelSource, match="no GGUF file"):
        fetch(hub, tmp_path)


def test_without_the_hub_the_message_says_which_file_to_put_where(hub: Hub, tmp_path: Path) -> None:
    hub.close()
    with pytest.raises(DownloadFailed) as failed:
        fetch(hub, tmp_path, "small.gguf")
    message = failed.value.message
    assert "cannot be reached" in message
    assert "--model FILE.gguf" in message
    assert str(tmp_path / "hf" / "o" / "r" / "small.gguf") in message


def test_the_environment_names_the_hub_and_may_forbid_it(hub: Hub, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from serve.embedded.source import parse_source\n"
        "from serve.embedded.weights import resolve_weights\n"
        "from serve.errors import ServeError\n"
        "try: print(resolve_weights(parse_source('hf:o/r'), pathlib.Path(sys.argv[1])).model_id)\n"
        "except ServeError as refused: print(refused.message)\n"
    )

    def run(folder: str, **environ: str) -> str:
        command = [sys.executable, "-c", program, str(tmp_path / folder)]
        environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, **environ}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert run("a") == "small"
    assert "HF_HUB_OFFLINE is set" in run("b", HF_HUB_OFFLINE="1")
    assert run("a", HF_HUB_OFFLINE="1") == "small"
