"""A context page as lines for a terminal of any size, with and without colour. Pure.

Each kind has a letter, so that the bar can be read without colours. Text of clients never becomes markup: lines are
built of styled pieces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from governor.cli.console import shown
from governor.context import (
    COMPRESSED,
    PLACELESS,
    ContextKind,
    ContextPage,
    ContextReport,
    Growth,
    KindShare,
    LargeItem,
    TurnGrowth,
    words_of,
)

LOOKS = {
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
"""Letter and colour of each kind."""
_FULL, _FREE, _MARK, _BETWEEN, _LEVELS = "█", "░", "│", " · ", "▁▂▃▄▅▆▇█"
_NARROWEST = 40
_CALM, _TIGHT = 0.7, 0.9
"""Shares of the window up to which it is green, and yellow."""
_LABEL = 11
_LEAST_ITEMS, _LEAST_TURNS = 3, 4
_MOST_ITEMS, _MOST_TURNS = 12, 12
_MOST_CAUSES = 4
_DEAR_TOKENS = 1000
"""A loss from here on is red."""
_TITLES = 2
"""Lines of the curve and of a title."""


def screen(page: ContextPage, *, width: int, height: int | None, top: int | None) -> list[Text]:
    """All lines. ``height`` ``None``: no screen to fit on. ``top``: so many of the largest messages, whatever fits."""
    width = max(width, _NARROWEST)
    report, growth = page.report, page.growth
    head = list(_head(page, width))
    below = [] if report is None else list(_compression(report, width))
    losses = [] if growth is None else list(_losses(growth, width))
    items = () if report is None else report.largest
    taken = len(head) + len(below) + len(losses) + _TITLES
    fitting = _fitting(len(items), height, taken, _LEAST_ITEMS, _MOST_ITEMS) if top is None else top
    if items:
        head += [_title("largest messages"), *(_item(item, width) for item in items[:fitting])]
    if growth is None:
        return [*head, *below, _titled("growth", "the turn log cannot be read now", width)]
    taken = len(head) + len(below) + len(losses) + _TITLES
    turns = _fitting(len(growth.turns), height, taken, 0 if report is not None else _LEAST_TURNS, _MOST_TURNS)
    return [*head, *below, *_growth(growth, width, turns), *losses]


def _fitting(count: int, height: int | None, taken: int, least: int, most: int) -> int:
    """So many of ``count`` lines as are left on the screen."""
    return min(count, most if height is None else max(least, min(most, height - taken)))


def _head(page: ContextPage, width: int) -> Iterator[Text]:
    report = page.report
    session = f"  session {page.session}" if page.session else ""
    others = sum(1 for note in page.sessions if note.session != page.session)
    more = f", and {others} more" if others else ""
    yield _cut(Text.assemble((page.agent, "bold"), f"{session}{more}"), width)
    if report is None:
        yield from _folded(f"What the prompt is made of is not known: {page.why_no_report}.".split(), " ", width)
        last = None if page.growth is None else _last(page.growth)
        if page.growth is not None and last is not None and last.prompt_tokens is not None:
            yield from _window(last.prompt_tokens, page.growth.window_tokens, None, width)
        return
    yield _cut(Text(_figures(report)), width)
    yield from _window(report.tokens, report.window_tokens, _trigger(report), width)
    if report.engine_tokens is not None:
        saved = report.client_tokens - report.engine_tokens
        words = f" {report.engine_tokens:,} tokens in place of the client's {report.client_tokens:,} ({-saved:+,})"
        yield _titled("engine sees", words, width)
    yield _stacked(report.kinds, width)
    yield from (_kind(share, report, width) for share in report.kinds)


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


def _window(tokens: int, window: int | None, trigger: int | None, width: int) -> Iterator[Text]:
    if not window:
        yield _titled("window", "not known: no turn has told it, and the engine does not", width)
        return
    share = tokens / window
    after = f" {share:.0%} of {window:,}"
    cells = max(10, width - _LABEL - len(after))
    used = min(cells, max(1, round(cells * share)))
    gauge = list(_FULL * used + _FREE * (cells - used))
    if trigger is not None and trigger <= window:
        gauge[min(cells - 1, cells * trigger // window)] = _MARK
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
        letter, colour = LOOKS[share.kind]
        line.append(letter * count, f"black on {colour}")
    return line


def _kind(share: KindShare, report: ContextReport, width: int) -> Text:
    letter, colour = LOOKS[share.kind]
    line = Text.assemble((letter, f"black on {colour}"), f" {share.kind.value:<9}")
    line.append(f"{share.tokens:>9,} {share.tokens / max(1, report.tokens):>5.0%}")
    line.append(f" {share.items:>5,} ", "dim")
    room = width - line.cell_len - 1
    return _cut(line.append(f" {_pieces(share, room)}"), width)


def _pieces(share: KindShare, room: int) -> str:
    """The largest pieces, as many as there is room for, and how many there are besides."""
    names = [f"{piece.name} {piece.tokens:,}" for piece in share.pieces]
    for count in range(len(names), 0, -1):
        left = len(names) - count + share.more_pieces
        text = _BETWEEN.join([*names[:count], *([f"+{left}"] if left else [])])
        if cell_len(text) <= room or count == 1:
            return text
    return ""


def _item(item: LargeItem, width: int) -> Text:
    role, part = item.role or "-", item.tool or item.kind.value
    what = role if role == part else f"{role} {part}"
    line = Text(f"  #{item.index:<5}{set_cell_size(what, 20)} {item.tokens:>8,} ")
    line.append(f"{item.hold:<8} ", "dim" if item.hold == "free" else "yellow")
    return _cut(line.append(item.begins), width)


def _compression(report: ContextReport, width: int) -> Iterator[Text]:
    held = report.held
    names = ("fixed", "verbatim", "open", "policy", "recent", "free")
    figures = [f"{name} {getattr(held, name):,}" for name in names if getattr(held, name)]
    yield from _folded_after("held", figures, _BETWEEN, width)
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
        label, [*(what or ["nothing, by no stage"]), f"compression {report.mode}{trigger}"], _BETWEEN, width
    )


def _growth(growth: Growth, width: int, turns: int) -> Iterator[Text]:
    last = _last(growth)
    if last is None:
        yield _titled("growth", "no turn of this session has ended yet", width)
        return
    mean = growth.mean_growth_tokens
    pace = "" if mean is None else f"+{mean:,} a turn, "
    words = f"  {pace}last {_prompt(last)}, {shown(last.cached_tokens)} cached"
    curve = _curve(growth.turns, max(8, width - _LABEL - len(words)))
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
    price = "" if broke.lost_s is None else f", {broke.lost_s:.1f} s"
    lost = "" if broke.lost_tokens is None else f"{broke.lost_tokens:,} lost{price}: "
    place = "" if broke.cause in PLACELESS else f", {broke.place}"
    dear = broke.lost_tokens is not None and broke.lost_tokens >= _DEAR_TOKENS and broke.cause != COMPRESSED
    colour = "red" if dear else "yellow"
    return _cut(line.append(f"{lost}{words_of(broke.cause)}{place}", colour), width)


def _losses(growth: Growth, width: int) -> Iterator[Text]:
    """What was prefilled again, by cause."""
    label = "lost"
    if not growth.turns:
        return
    if not growth.causes:
        yield _titled(label, f"none in {len(growth.turns)} turns", width)
        return
    for total in growth.causes[:_MOST_CAUSES]:
        tokens = f"{total.lost_tokens:,} tokens" if total.unknown < total.count else "? tokens"
        place = ": ".join(filter(None, (total.last_place, total.last_detail)))
        where = f" ({place})" if place else ""
        price = "" if total.lost_s is None else f", {total.lost_s:.1f} s"
        yield _titled(label, f"{tokens}{price}, {total.count}x {words_of(total.cause)}{where}", width)
        label = ""
    if len(growth.causes) > _MOST_CAUSES:
        yield _titled("", f"and {len(growth.causes) - _MOST_CAUSES} more causes", width)


def _prompt(turn: TurnGrowth) -> str:
    return f"{'~' if turn.estimated else ''}{shown(turn.prompt_tokens)}"


def _curve(turns: Sequence[TurnGrowth], room: int) -> str:
    """Prompt sizes of the last turns, from zero to the largest."""
    sizes = [turn.prompt_tokens for turn in turns][-room:]
    largest = max((size for size in sizes if size is not None), default=0) or 1
    return "".join(" " if size is None else _LEVELS[min(7, size * 8 // (largest + 1))] for size in sizes)


def _title(text: str) -> Text:
    return Text(text, "bold")


def _titled(label: str, text: str, width: int) -> Text:
    return _cut(Text.assemble((label.ljust(_LABEL), "bold"), text), width)


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
