"""What ``--model`` may say, and what makes a file a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve.embedded.gguf import check_gguf, is_later_shard, model_id, shard_names
from serve.embedded.source import Bundled, HubFile, LocalFile, ModelSource, parse_source
from serve.embedded.weights import resolve_weights
from serve.errors import BadModelSource

GGUF = b"GGUF\x03\x00\x00\x00" + b"\0" * 16


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (None, Bundled()),
        ("model.gguf", LocalFile(Path("model.gguf"))),
        ("/a b/Model.Q4_K_M.gguf", LocalFile(Path("/a b/Model.Q4_K_M.gguf"))),
        ("hf:Qwen/Qwen2.5-0.5B-GGUF", HubFile("Qwen", "Qwen2.5-0.5B-GGUF", None)),
        ("hf:a/b:sub/c.gguf", HubFile("a", "b", "sub/c.gguf")),
        ("hf:a/b:", HubFile("a", "b", None)),
    ],
)
def test_forms(text: str | None, source: ModelSource) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "hf:", "hf:repo", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b..c", "hf:a b/c", "hf:/b", "hf:a/"),
        *("hf:a/b:c.safetensors", "hf:a/b:../../c.gguf", "hf:a/b:/c.gguf", "hf:a/b:c\\d.gguf"),
    ],
)
def test_what_cannot_be_understood_says_which_forms_there_are(text: str) -> None:
    with pytest.raises(BadModelSource, match="hf:OWNER/REPO"):
        parse_source(text)


def test_a_local_model_is_named_after_its_file(tmp_path: Path) -> None:
    file = tmp_path / "Qwen2.5-Coder.Q4_K_M.gguf"
    file.write_bytes(GGUF)
    weights = resolve_weights(LocalFile(file), tmp_path / "models")
    assert (weights.path, weights.model_id, weights.context_tokens) == (file, "Qwen2.5-Coder.Q4_K_M", None)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + b"\0" * 20, r"begins with b'PK\\x03\\x04'"),
        (b"GGUF", "not a GGUF file"),
        (b"GGUF\x01\x00\x00\x00", "version 1"),
        (b"GGUF\x00\x00\x00\x03", "version 50331648"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(BadModelSource, match=reason):
        check_gguf(file)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModelSource, match="There is no file"):
        check_gguf(tmp_path / "model.gguf")
    with pytest.raises(BadModelSource, match="is a folder"):
        check_gguf(tmp_path)


def test_split_models() -> None:
    assert shard_names("a/m.gguf") == ["a/m.gguf"]
    assert shard_names("m-00001-of-00003.gguf") == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert [is_later_shard(name) for name in ("m.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")] == [
        False,
        False,
        True,
    ]
    assert model_id(Path("x/m-Q4-00001-of-00003.gguf")) == "m-Q4"
