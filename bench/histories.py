"""Chat histories of every shape that compression has to live with, for its benchmark and its tests. The same seed makes
the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

SYSTEM = "You are a careful engineer. " + "Follow the rules of this repository. " * 40
_SENTENCE = (
    "the cache of one agent was evicted while another wrote an answer of seventy thousand tokens and nobody could see "
    "which context was where so we measured it again with the same prompt and found the checkpoint missing"
)
WORDS = _SENTENCE.split()


def seeded(seed: int) -> random.Random:
    return random.Random(seed)


def message(role: str, content: Any, **fields: Any) -> bytes:
    return msgspec.json.encode({"role": role, "content": content} | fields)


def call(call_id: str, name: str = "terminal", **arguments: Any) -> dict[str, Any]:
    text = msgspec.json.encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def asks(*calls: dict[str, Any], **fields: Any) -> bytes:
    return message("assistant", None, tool_calls=list(calls), **fields)


def result(call_id: str, content: Any) -> bytes:
    return message("tool", content, tool_call_id=call_id)


def prose(random_: random.Random, words: int) -> str:
    return " ".join(random_.choices(WORDS, k=words))


def log(random_: random.Random, lines: int) -> str:
    def line(number: int) -> str:
        level = "ERROR request failed: timeout" if random_.random() < 0.01 else "INFO served"
        return (
            f"2026-11-29 12:00:{number % 60:02d} worker-{random_.randrange(8)} {level} id={random_.getrandbits(48):x}"
        )

    return "\n".join(map(line, range(lines)))


def listing(random_: random.Random, items: int) -> str:
    rows = [{"id": n, "path": f"src/{random_.choice(WORDS)}/{n}.py", "size": random_.random()} for n in range(items)]
    return msgspec.json.encode(rows).decode()


def code(random_: random.Random, functions: int) -> str:
    return "\n".join(
        f"def {random_.choice(WORDS)}_{n}(value: int) -> int:\n    total = value * {n}\n"
        + f"    # {prose(random_, 8)}\n" * 6
        + "    return total\n"
        for n in range(functions)
    )


def diff(random_: random.Random, hunks: int) -> str:
    return "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n" + "\n".join(
        f"@@ -{n * 20},9 +{n * 20},9 @@\n"
        + f" {prose(random_, 8)}\n" * 4
        + f"-old_{n} = 1\n+new_{n} = 2\n"
        + f" {prose(random_, 8)}\n" * 4
        for n in range(hunks)
    )


def table(random_: random.Random, rows: int) -> str:
    body = "\n".join(f"{n},{random_.choice(WORDS)},{random_.random():.6f},{random_.choice(WORDS)}" for n in range(rows))
    return f"id,name,value,note\n{body}"


TEXTS: Sequence[Callable[[random.Random, int], str]] = (log, listing, code, diff, table)


def tool_chain(steps: int, *, size: int = 60, seed: int = 1) -> list[bytes]:
    """One task and a long chain of calls, results of every kind, each some ``size`` lines."""
    random_ = seeded(seed)
    history = [message("system", SYSTEM), message("user", "Find out why the cache is missed.")]
    for step in range(steps):
        text = TEXTS[step % len(TEXTS)](random_, size)
        history += [asks(call(f"c{step}", command=f"step {step}")), result(f"c{step}", text)]
    return history


def conversation(rounds: int, *, words: int = 60, seed: int = 2) -> list[bytes]:
    """Questions, answers, one call in each round with an id that is used again."""
    random_ = seeded(seed)
    history = [message("system", SYSTEM)]
    for number in range(rounds):
        history += [
            message("user", f"Question {number}: {prose(random_, words)}"),
            asks(call("call_0", "read_file", path=f"src/{number}.py")),
            result("call_0", code(random_, 1 + words // 20)),
            message("assistant", f"Answer {number}: {prose(random_, words)}"),
        ]
    return [*history, message("user", "And now the last one.")]


def tail_protected() -> list[bytes]:
    """All of it is in what must stay."""
    random_ = seeded(3)
    return [message("system", SYSTEM), message("user", prose(random_, 20_000)), message("user", prose(random_, 20_000))]


def giant_result() -> list[bytes]:
    """One fresh result larger than everything else."""
    random_ = seeded(4)
    head = conversation(4)[:-1]
    return [
        *head,
        message("user", "Run the tests."),
        asks(call("g", command="make test")),
        result("g", log(random_, 6000)),
    ]


def tiny_rounds(rounds: int = 2500) -> list[bytes]:
    random_ = seeded(5)
    history = [message("system", SYSTEM)]
    for number in range(rounds):
        history += [message("user", f"{number} {prose(random_, 15)}?"), message("assistant", f"{prose(random_, 25)}.")]
    return [*history, message("user", "last")]


def cjk() -> list[bytes]:
    random_ = seeded(6)
    text = "缓存在另一个代理写入长答案时被逐出没有人能看到哪个上下文在哪里所以我们再次测量"
    history = [message("system", SYSTEM), message("user", "检查缓存")]
    for step in range(40):
        lines = "\n".join("".join(random_.sample(text, 30)) for _ in range(60))
        history += [asks(call(f"c{step}", 命令=f"第{step}步")), result(f"c{step}", lines)]
    return history


def emoji() -> list[bytes]:
    random_ = seeded(7)
    signs = [
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1e9\U0001f1ea",
        "\U0001f44d\U0001f3fd",
        "e\u0301",
        "🙂",
        "क्षि",
        "ok ",
    ]
    history = [message("system", SYSTEM), message("user", "Which signs are there? 🙂")]
    for step in range(30):
        text = "".join(random_.choices(signs, k=4000))
        history += [asks(call(f"c{step}", n=step)), result(f"c{step}", text)]
    return history


def images() -> list[bytes]:
    url = "data:image/png;base64," + "iVBORw0KGgo" * 3000
    history = [message("system", SYSTEM), message("user", "Look at the charts.")]
    for number in range(40):
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": f"chart {number}"}]
        history += [message("user", parts), message("assistant", f"Chart {number} rises. " * 10)]
    return [*history, message("user", "Which was the highest?")]


def parallel_calls() -> list[bytes]:
    random_ = seeded(8)
    history = [message("system", SYSTEM), message("user", "Read all files.")]
    for step in range(20):
        ids = [f"p{step}_{n}" for n in range(6)]
        history.append(asks(*(call(each, "read_file", path=f"{each}.py") for each in ids)))
        history += [result(each, code(random_, 6)) for each in reversed(ids)]
    return history


def reasoning_heavy() -> list[bytes]:
    random_ = seeded(9)
    history = [message("system", SYSTEM), message("user", "Think.")]
    for step in range(60):
        thought = prose(random_, 900)
        history.append(asks(call(f"r{step}", n=step), reasoning_content=thought))
        history.append(result(f"r{step}", "ok"))
        if step % 10 == 9:
            history += [message("assistant", f"<think>{thought}</think>\n\nDone {step}."), message("user", "Go on.")]
    return history


SHAPES: Mapping[str, Callable[[], list[bytes]]] = {
    "tool chain": lambda: tool_chain(48),
    "conversation": lambda: conversation(150),
    "all in the protected tail": tail_protected,
    "one giant result": giant_result,
    "thousands of tiny rounds": tiny_rounds,
    "CJK": cjk,
    "emoji": emoji,
    "images": images,
    "parallel calls": parallel_calls,
    "reasoning-heavy": reasoning_heavy,
}
"""By name. All but one can be made shorter."""
