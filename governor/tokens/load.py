"""Makes the counter of a model from the files it is served from. The only I/O of this package is reading them.

A model file that is damaged, unknown or strange must never stop the governor: whatever cannot be rebuilt exactly leads
to an estimate, and to one line that says why.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from governor.tokens.bpe import BpeTokenizer, UnsupportedTokenizer, from_gguf, from_tokenizer_json
from governor.tokens.counter import Counter, EstimateCounter, ImageCost, TokenizerCounter
from governor.tokens.framing import Framing
from governor.tokens.gguf import GgufError, Value, read_metadata
from governor.tokens.template import LLAMA_CPP, SGLANG, ChatTemplate, RenderRules, TemplateFailed

_LARGEST_FILE = 256 * 1024 * 1024


class LoadedCounter(msgspec.Struct, frozen=True, kw_only=True):
    """A counter and how it came about."""

    counter: Counter
    exact: bool
    """True where counts come from the model's own tokenizer and template."""
    reason: str
    """One line for a person."""


def load_gguf(path: Path, *, image: ImageCost | None = None) -> LoadedCounter:
    """Counter of a GGUF file as llama.cpp serves it. Reads the file; takes up to a few seconds for large vocabularies.

    Raises nothing that the file can cause.
    """
    try:
        metadata = read_metadata(path, lambda key: key.startswith("tokenizer."))
        tokenizer = from_gguf(metadata)
        tokens = metadata.get("tokenizer.ggml.tokens")
        template = ChatTemplate(
            _text(metadata.get("tokenizer.chat_template"), "no chat template"),
            bos=_token(metadata, tokens, "bos"),
            eos=_token(metadata, tokens, "eos"),
            rules=LLAMA_CPP,
        )
    except (GgufError, UnsupportedTokenizer, TemplateFailed, OSError) as error:
        return _estimate(f"{path.name}: {error}", image)
    return _exact(tokenizer, template, image)


def load_folder(path: Path, *, rules: RenderRules = SGLANG, image: ImageCost | None = None) -> LoadedCounter:
    """Counter of a Hugging Face model folder: ``tokenizer.json`` with ``tokenizer_config.json`` or
    ``chat_template.jinja``. Raises nothing that the files can cause."""
    try:
        tokenizer = from_tokenizer_json(_read(path / "tokenizer.json"))
        settings = path / "tokenizer_config.json"
        config = msgspec.json.decode(_read(settings), type=_Config) if settings.exists() else _Config()
        template_file = path / "chat_template.jinja"
        source = _read(template_file).decode() if template_file.exists() else config.template()
        template = ChatTemplate(
            _text(source, "no chat template"),
            bos=_content(config.bos_token),
            eos=_content(config.eos_token),
            rules=rules,
        )
    except (UnsupportedTokenizer, TemplateFailed, OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        return _estimate(f"{path.name}: {error}", image)
    return _exact(tokenizer, template, image)


class _Config(msgspec.Struct):
    chat_template: str | list[dict[str, str]] | None = None
    bos_token: str | dict[str, object] | None = None
    eos_token: str | dict[str, object] | None = None

    def template(self) -> str | None:
        if isinstance(self.chat_template, list):
            return next((each.get("template") for each in self.chat_template if each.get("name") == "default"), None)
        return self.chat_template


def _exact(tokenizer: BpeTokenizer, template: ChatTemplate, image: ImageCost | None) -> LoadedCounter:
    framing = Framing(template, tokenizer)
    counter = TokenizerCounter(framing, estimate=EstimateCounter(image=image), proven=tokenizer.proven, image=image)
    how = "message by message" if framing.additive else "by whole prompts, since its template is not additive"
    return LoadedCounter(counter=counter, exact=True, reason=f"the model's own tokenizer, {how}")


def _estimate(reason: str, image: ImageCost | None) -> LoadedCounter:
    return LoadedCounter(counter=EstimateCounter(image=image), exact=False, reason=f"estimated: {reason}")


def _read(path: Path) -> bytes:
    if path.stat().st_size > _LARGEST_FILE:
        raise UnsupportedTokenizer(f"{path.name} is too large")
    return path.read_bytes()


def _text(value: Value | None, missing: str) -> str:
    if not isinstance(value, str) or not value:
        raise TemplateFailed(missing)
    return value


def _content(token: str | dict[str, object] | None) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _token(metadata: dict[str, Value], tokens: Value | None, name: str) -> str:
    at = metadata.get(f"tokenizer.ggml.{name}_token_id")
    text = tokens[at] if isinstance(tokens, list) and isinstance(at, int) and 0 <= at < len(tokens) else ""
    return text if isinstance(text, str) else ""
