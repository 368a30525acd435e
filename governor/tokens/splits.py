"""How byte-level BPE tokenizers cut text into words before merging: one regular expression a family.

The names are those of ``tokenizer.ggml.pre`` in GGUF files; what they stand for follows the table of llama.cpp
(``src/llama-vocab.cpp``, b11549). Where that table applies several expressions one after the other, they are folded
into one here, so that a class matched by an earlier expression ends a run of a later one.
Expressions are in the dialect of Rust's fancy-regex, which tiktoken uses. Each covers every input: tiktoken drops
what its expression does not match.
"""

from __future__ import annotations


class UnsupportedSplit(Exception):
    """A pre-tokenizer that is not rebuilt here."""


_CONTRACTION = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{L}--[a-z]]", r"[\p{L}--[A-Z]]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_WORDS = rf"{_BEFORE_WORD}\p{{L}}+"
_CASED_WORDS = f"{_BEFORE_WORD}{_UPPER}*{_LOWER}+(?:CONTRACTION)?|{_BEFORE_WORD}{_UPPER}+{_LOWER}*(?:CONTRACTION)?"
_CJK = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's own expression."""

DIGITS_GPT2 = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""Single digits first, then GPT-2 on what lies between them (SmolLM, StarCoder, Command-R)."""

LLAMA3 = rf"(?:{_CONTRACTION})|{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN2 = rf"(?:{_CONTRACTION})|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN35 = (
    rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
GPT4O = _CASED_WORDS.replace("CONTRACTION", _CONTRACTION) + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
TEKKEN = _CASED_WORDS.replace("(?:CONTRACTION)?", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
DEEPSEEK3 = (
    rf"\p{{N}}{{1,3}}|[{_CJK}]+"
    r"|[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    rf"|[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK}]?[[\p{{L}}\p{{M}}]--[{_CJK}]]+"
    rf"| ?[[\p{{P}}\p{{S}}]--[{_CJK}]]+[\r\n]*"
    rf"|\s*[\r\n]+|\s+(?![^\s\p{{N}}{_CJK}])|\s+|[\s\S]"
)
"""Numbers, then Chinese and Japanese runs, then the rest (DeepSeek-V3 and its kin)."""

_FAMILIES: dict[str, tuple[str, ...]] = {
    GPT2: (
        "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "a.x-4.0", "mellum",
        "modern-bert", "gigachat",
    ),
    DIGITS_GPT2: ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    LLAMA3: (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe",
        "glm4", "chatglm-bpe",
    ),
    QWEN2: ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan"),
    QWEN35: ("qwen35",),
    GPT4O: ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
    TEKKEN: ("tekken",),
    DEEPSEEK3: ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
}  # fmt: skip
_BY_NAME = {name: expression for expression, names in _FAMILIES.items() for name in names}
_WHOLE_WORDS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)
_STARTS_WITH_BOS = _WHOLE_WORDS


def split_for(name: str) -> str | None:
    """The expression for a ``tokenizer.ggml.pre`` name, or ``None`` if it is not known to be exact."""
    return _BY_NAME.get(name)


def takes_whole_words(name: str) -> bool:
    """True where a word found in the vocabulary is one token even if no merge leads to it (``ignore_merges``)."""
    return name in _WHOLE_WORDS


def starts_with_bos(name: str) -> bool:
    """True where llama.cpp puts the BOS token first unless the file says otherwise."""
    return name in _STARTS_WITH_BOS


def split_of_pre_tokenizer(pre_tokenizer: dict[str, object] | None) -> str:
    """The one expression that cuts as this ``pre_tokenizer`` of a ``tokenizer.json`` does.

    Raises :class:`UnsupportedSplit` when it has parts other than those below.
    """
    steps = _steps(pre_tokenizer)
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise UnsupportedSplit("pre-tokenizer does not end in a plain ByteLevel step")
    uses_gpt2 = steps[-1].get("use_regex", True) is True
    cuts = [_cut_of(step) for step in steps[:-1]]
    match cuts, uses_gpt2:
        case [], True:
            return GPT2
        case ["digits"], True:
            return DIGITS_GPT2
        case [single], False if single != "digits":
            return f"{single}|[\\s\\S]"
        case [numbers, cjk, _], False if numbers == r"\p{N}{1,3}" and cjk == f"[{_CJK}]+":
            return DEEPSEEK3
        case _:
            raise UnsupportedSplit(f"pre-tokenizer of {len(steps)} steps")


def _steps(pre_tokenizer: dict[str, object] | None) -> list[dict[str, object]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") != "Sequence":
        return [pre_tokenizer]
    inner = pre_tokenizer.get("pretokenizers")
    return [step for step in inner if isinstance(step, dict)] if isinstance(inner, list) else []


def _cut_of(step: dict[str, object]) -> str:
    if step.get("type") == "Digits" and step.get("individual_digits") is True:
        return "digits"
    pattern = step.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    isolates = step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
    if isolates and isinstance(expression, str):
        return expression
    raise UnsupportedSplit(f"pre-tokenizer step {step.get('type')!r}")
