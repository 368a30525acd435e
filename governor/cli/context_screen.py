"""A context page as lines for a terminal of any size, with and without colour. Pure.

Each kind has a letter, so that the bar can be read without colours. Text of clients never becomes markup: lines are
built of styled pieces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from governor.cli.console import shown
from governor.context import (
    COMPRESSED,
    NOT_CACHED,
    ContextKind,
    ContextPage,
    ContextReport,
    Growth,
    KindShare,
    LargeItem,
    TurnGrowth,
)

_LOOKS = {
    ContextKind.SYSTEM: ("S", "blue"),
    ContextKind.SKILLS: ("K", "cyan"),
    ContextKind.TOOLS: ("T", "magenta"),
    ContextKind.USER: ("U", "green"),
    ContextKind.ASSISTANT: ("A", "white"),
    ContextKind.REASONING: ("R", "yellow"),
    ContextKind.CALLS: ("C", "bright_blue"),
    ContextKind.RESULTS: ("O", "red"),
    ContextKind.IMAGES: ("I", "bright_magenta"),
    ContextKind.CARRIERS: ("X", "bright_black"),
    ContextKind.SUMMARIES: ("M", "bright_yellow"),
    ContextKind.GOVERNOR: ("G", "bright_green"),
    ContextKind.FRAME: ("F", "bright_black"),
}
_NARROWEST = 40
_CALM, _TIGHT = 0.7, 0.9
"""Shares of the window up to which it is green, and yellow."""
_LABEL = 11
_LEAST_ITEMS, _LEAST_TURNS = 3, 4
_MOST_ITEMS, _MOST_TURNS = 12, 12
_MOST_CAUSES = 4
_WORDS = {
    NOT_CACHED: "no longer cached (evicted, or never stored)",
    COMPRESSED: "compressed by the governor",
    "compacted": "compacted by the client",
    "volatile": "volatile bytes in the system prompt",
    "system_changed": "another system prompt",
    "tools_changed": "other tools",
    "tool_order": "the same tools in another order",
    "model_changed": "another model",
    "reasoning_dropped": "reasoning dropped by the client",
    "tool_name_dropped": "names dropped from tool results",
    "arguments_reserialised": "arguments of calls written anew",
    "reformatted": "the same meaning in other bytes",
    "carrier_moved": "the client's carrier moved",
    "edited": "edited by the client",
    "unknown": "cause unknown",
}


class Blocks:
    """The characters of a bar and a curve."""

    def __init__(self, *, unicode: bool) -> None:
        self.levels = "▁▂▃▄▅▆▇█" if unicode else "_.-=+*%#"
        self.full, self.free, self.mark = ("█", "░", "│") if unicode else ("#", ".", "|")
        self.between = " · " if unicode else ", "


def screen(page: ContextPage, *, width: int, height: int | None, top: int | None, unicode: bool = True) -> list[Text]:
    """All lines. ``height`` ``None``: no screen to fit on. ``top``: so many of the largest messages, whatever fits."""
    width = max(width, _NARROWEST)
    blocks = Blocks(unicode=unicode)
    head = list(_head(page, width, blocks))
    growth = page.growth
    losses = [] if growth is None else list(_losses(growth, width))
    items = page.report.largest if page.report is not None else ()
    spare = None if height is None else height - len(head) - len(losses) - 5
    shown_items = _fitting(len(items), spare, _LEAST_ITEMS, _MOST_ITEMS) if top is None else min(top, len(items))
    lines = [*head]
    if shown_items:
        lines += [_title("largest messages"), *(_item(item, width) for item in items[:shown_items])]
    if page.report is not None:
        lines += list(_compression(page.report, width, blocks))
    if growth is None:
        return [*lines, _title("growth"), Text("  the turn log cannot be read now")]
    left = None if height is None else height - len(lines) - len(losses) - 3
    shown_turns = _fitting(len(growth.turns), left, 0 if page.report is not None else _LEAST_TURNS, _MOST_TURNS)
    return [*lines, *_growth(growth, width, blocks, shown_turns), *losses]


def _fitting(count: int, spare: int | None, least: int, most: int) -> int:
    return min(count, most if spare is None else max(least, min(most, spare)))


def _head(page: ContextPage, width: int, blocks: Blocks) -> Iterator[Text]:
    report = page.report
    session = f"  session {page.session}" if page.session else ""
    others = sum(1 for note in page.sessions if note.session != page.session)
    more = f", and {others} more" if others else ""
    yield _cut(Text.assemble((page.agent, "bold"), f"{session}{more}"), width)
    if report is None:
        yield from _folded(f"What the prompt is made of is not known: {page.why_no_report}.".split(), " ", width)
        last = None if page.growth is None else _last(page.growth)
        if page.growth is not None and last is not None and last.prompt_tokens is not None:
            yield from _window(last.prompt_tokens, page.growth.window_tokens, None, width, blocks)
        return
    yield _cut(Text(_figures(report)), width)
    yield from _window(report.tokens, report.window_tokens, _trigger(report), width, blocks)
    if report.engine_tokens is not None:
        saved = report.client_tokens - report.engine_tokens
        words = f"{report.engine_tokens:,} tokens in place of the client's {report.client_tokens:,} ({-saved:+,})"
        yield _cut(Text(f"{'engine sees'.ljust(_LABEL)} {words}", "bold"), width)
    yield _stacked(report.kinds, width)
    yield from (_kind(share, report, width, blocks) for share in report.kinds)


def _figures(report: ContextReport) -> str:
    about = "" if report.margin == 0 else "~"
    if report.margin == 0:
        how = "reported" if report.source == "reported" else "counted"
    else:
        how = f"estimate: {report.tokens - report.margin_below:,} to {report.tokens + report.margin:,}"
    parts = "" if report.exact_parts or report.margin else "; parts are estimates"
    counts = f"{report.messages:,} messages, {report.tool_schemas:,} tools"
    return f"{about}{report.tokens:,} tokens ({how}), {counts}{parts}"


def _trigger(report: ContextReport) -> int | None:
    """Where compression begins, if the policy wants any."""
    return None if report.mode == "off" else report.trigger_tokens


def _window(tokens: int, window: int | None, trigger: int | None, width: int, blocks: Blocks) -> Iterator[Text]:
    if not window:
        yield _cut(Text(f"{'window'.ljust(_LABEL)}not known: no turn has told it, and the engine does not"), width)
        return
    share = tokens / window
    after = f" {share:.0%} of {window:,}"
    cells = max(10, width - _LABEL - len(after))
    used = min(cells, max(1, round(cells * share)))
    gauge = list(blocks.full * used + blocks.free * (cells - used))
    if trigger is not None and trigger <= window:
        gauge[min(cells - 1, cells * trigger // window)] = blocks.mark
    colour = "green" if share < _CALM else "yellow" if share < _TIGHT else "red"
    yield _cut(Text.assemble("window".ljust(_LABEL), ("".join(gauge), colour), after), width)


def _stacked(kinds: Sequence[KindShare], width: int) -> Text:
    """All kinds side by side, each at least a cell wide."""
    cells = [max(1, round(width * share.tokens / max(1, sum(each.tokens for each in kinds)))) for share in kinds]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    if cells:
        cells[cells.index(max(cells))] += width - sum(cells)
    line = Text()
    for share, count in zip(kinds, cells, strict=True):
        letter, colour = _LOOKS[share.kind]
        line.append(letter * count, f"black on {colour}")
    return line


def _kind(share: KindShare, report: ContextReport, width: int, blocks: Blocks) -> Text:
    letter, colour = _LOOKS[share.kind]
    line = Text.assemble((letter, f"black on {colour}"), f" {share.kind.value:<9}")
    line.append(f"{share.tokens:>9,} {share.tokens / max(1, report.tokens):>5.0%}")
    line.append(f" {share.items:>5,} ", "dim")
    room = width - line.cell_len - 1
    names = [f"{piece.name} {piece.tokens:,}" for piece in share.pieces]
    fits = [
        name for name, end in zip(names, accumulate(cell_len(name) + 3 for name in names), strict=True) if end <= room
    ]
    left = len(names) - len(fits) + share.more_pieces
    if names and not fits:
        fits, left = [set_cell_size(names[0], max(0, room - 6)).rstrip()], left - 1
    text = blocks.between.join(fits)
    if left:
        more = f"{blocks.between}+{left}"
        while fits and cell_len(text) + len(more) > room and len(fits) > 1:
            fits.pop()
            left += 1
            text, more = blocks.between.join(fits), f"{blocks.between}+{left}"
        text += more
    return _cut(line.append(f" {text}"), width)


def _item(item: LargeItem, width: int) -> Text:
    what = f"{item.role or '-'} {item.tool}".rstrip() if item.tool else f"{item.role or '-'} {item.kind.value}"
    line = Text(f"  #{item.index:<5}{set_cell_size(what, 20)} {item.tokens:>8,} ")
    line.append(f"{item.hold:<8} ", "dim" if item.hold == "free" else "yellow")
    return _cut(line.append(item.begins), width)


def _compression(report: ContextReport, width: int, blocks: Blocks) -> Iterator[Text]:
    held = report.held
    names = ("fixed", "verbatim", "open", "policy", "recent", "free")
    figures = [f"{name} {getattr(held, name):,}" for name in names if getattr(held, name)]
    yield from _folded_after("held", figures, blocks.between, width)
    label = "would free"
    if report.stages is None:
        why = "not known: the window is not" if report.window_tokens is None else "not a chat completion"
        yield from _folded_after(label, [why], "", width)
        return
    gains = [f"{gain.stage} {gain.freed_tokens:,}" for gain in report.stages if gain.freed_tokens]
    freed = sum(gain.freed_tokens for gain in report.stages)
    what = [f"{gain}{'' if gain != gains[-1] else f', leaves {report.tokens - freed:,}'}" for gain in gains]
    trigger = "" if report.trigger_tokens is None or report.mode == "off" else f" from {report.trigger_tokens:,}"
    yield from _folded_after(
        label, [*(what or ["nothing, by no stage"]), f"compression {report.mode}{trigger}"], blocks.between, width
    )


def _growth(growth: Growth, width: int, blocks: Blocks, turns: int) -> Iterator[Text]:
    last = _last(growth)
    if last is None:
        yield Text.assemble(("growth".ljust(_LABEL), "bold"), "no turn of this session has ended yet")
        return
    mean = growth.mean_growth_tokens
    pace = "" if mean is None else f"+{mean:,} a turn, "
    words = f"  {pace}last {_prompt(last)}, {shown(last.cached_tokens)} cached"
    curve = _curve(growth.turns, max(8, width - _LABEL - len(words)), blocks)
    yield _cut(Text.assemble(("growth".ljust(_LABEL), "bold"), (curve, "cyan"), words), width)
    if turns:
        yield Text("  time       prompt    growth    cached  messages  prefix", "dim")
        yield from (_turn(turn, width) for turn in growth.turns[-turns:])


def _last(growth: Growth) -> TurnGrowth | None:
    """The newest turn of a known size."""
    return next((turn for turn in reversed(growth.turns) if turn.prompt_tokens is not None), None)


def _turn(turn: TurnGrowth, width: int) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(turn.at)) if turn.at is not None else "-"
    growth = "-" if turn.growth_tokens is None else f"{turn.growth_tokens:+,}"
    figures = f"  {at:<8} {_prompt(turn):>8} {growth:>9} {shown(turn.cached_tokens):>9} {shown(turn.messages):>9}"
    line = Text(f"{figures}  ")
    broke = turn.broke
    if broke is None:
        return line.append("kept", "green") if turn.growth_tokens is not None else line.append("-")
    lost = "" if broke.lost_tokens is None else f"{broke.lost_tokens:,} lost: "
    place = "" if broke.cause in (NOT_CACHED, COMPRESSED) else f", {broke.place}"
    colour = "yellow" if not broke.lost_tokens or broke.cause == COMPRESSED else "red"
    return _cut(line.append(f"{lost}{_words(broke.cause)}{place}", colour), width)


def _losses(growth: Growth, width: int) -> Iterator[Text]:
    """What was prefilled again, by cause."""
    label = "lost prefix"
    if not growth.turns:
        return
    if not growth.causes:
        yield _cut(Text.assemble((label.ljust(_LABEL), "bold"), f" none in {len(growth.turns)} turns"), width)
        return
    for total in growth.causes[:_MOST_CAUSES]:
        tokens = f"{total.lost_tokens:>9,} tokens" if total.unknown < total.count else "        ? tokens"
        place = f" ({total.last_place})" if total.last_place else ""
        line = Text.assemble((label.ljust(_LABEL), "bold"), f"{tokens}, {total.count}x ")
        yield _cut(line.append(f"{_words(total.cause)}{place}"), width)
        label = ""
    if len(growth.causes) > _MOST_CAUSES:
        yield Text(f"{''.ljust(_LABEL)} and {len(growth.causes) - _MOST_CAUSES} more causes")


def _words(cause: str) -> str:
    return _WORDS.get(cause, cause.replace("_", " "))


def _prompt(turn: TurnGrowth) -> str:
    return f"{'~' if turn.estimated else ''}{shown(turn.prompt_tokens)}"


def _curve(turns: Sequence[TurnGrowth], room: int, blocks: Blocks) -> str:
    """Prompt sizes of the last turns, from zero to the largest."""
    sizes = [turn.prompt_tokens for turn in turns][-room:]
    largest = max((size for size in sizes if size is not None), default=0) or 1
    levels = blocks.levels
    return "".join(" " if size is None else levels[min(7, size * 8 // (largest + 1))] for size in sizes)


def _title(text: str) -> Text:
    return Text(text, "bold")


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _folded(words: Sequence[str], between: str, width: int) -> Iterator[Text]:
    """Broken between words."""
    line = ""
    for word in words:
        longer = f"{line}{between}{word}" if line else word
        if line and cell_len(longer) > width:
            yield _cut(Text(line), width)
            longer = word
        line = longer
    yield _cut(Text(line), width)


def _folded_after(label: str, words: Sequence[str], between: str, width: int) -> Iterator[Text]:
    for number, line in enumerate(_folded(words, between, width - _LABEL)):
        yield Text.assemble((label.ljust(_LABEL) if number == 0 else " " * _LABEL, "bold"), line)
