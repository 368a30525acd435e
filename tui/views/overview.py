"""The overview: the engine, its tiers and whose contexts are in them, the queue, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from governor.snapshot import CacheView, PredictionView, QueueView, Snapshot, TierView
from tui.cells import FREE, WIDE, Bar, Cell, Column, Part, Row, Table, Tone, external
from tui.figures import UNKNOWN, curve, duration, figure, rate, ratio, share, size
from tui.picture import Picture
from tui.rates import rates
from tui.views.log import happenings
from tui.views.parts import UNSURE, hues

_CURVE = 24
_MOST_HOLDERS = 7
_NEWS = 40
_SHARED = "shared"
_NAMES = {"L1": "L1 GPU", "L2": "L2 host", "L3": "L3 disk"}
_WITHIN = 0.95
"""Share of turns that a prediction is good from."""


def engine_lines(picture: Picture) -> tuple[Row, ...]:
    """The engine, its pace, the queue."""
    snapshot = picture.snapshot
    if snapshot is None:
        return ()
    return (_engine(picture, snapshot), _pace(picture, snapshot), _queue(snapshot))


def _engine(picture: Picture, snapshot: Snapshot) -> Row:
    engine = snapshot.engine
    tone = Tone.DIM if picture.gone else Tone.GOOD if engine.mode == "ready" else Tone.BAD
    version = "" if engine.version == "unknown" else f" {engine.version}"
    return (
        Cell("engine", Tone.STRONG),
        external(engine.mode, tone),
        external(engine.detail, Tone.WARN),
        external(", ".join(engine.models[:8]) or "no model known"),
        external(f"{engine.name}{version}", Tone.DIM),
        Cell(f"window {UNKNOWN if engine.window_tokens is None else f'{engine.window_tokens:,}'}", Tone.DIM),
        Cell(f"slots {figure(engine.slots)}", Tone.DIM),
    )


def _pace(picture: Picture, snapshot: Snapshot) -> Row:
    pace, prefill = rates(picture.samples, _CURVE), snapshot.prefill
    told = [agent for agent in snapshot.agents if agent.cached_tokens is not None]
    prompt, cached = sum(agent.prompt_tokens for agent in told), sum(agent.cached_tokens or 0 for agent in told)
    return (
        Cell("pace  ", Tone.STRONG),
        Cell(f"in {rate(pace.read)} tok/s"),
        Cell(f"out {rate(pace.written)} tok/s"),
        Cell(curve(pace.curve), Tone.GOOD),
        Cell(f"from a cache {share(cached, prompt)}"),
        Cell("" if prefill is None else f"prefills at {figure(prefill.tokens_per_s)} tok/s", Tone.DIM),
        *_log_health(snapshot),
    )


def _log_health(snapshot: Snapshot) -> Row:
    store = snapshot.store
    if store.ok:
        dropped = (Cell(f"{store.dropped:,} records dropped", Tone.BAD),) if store.dropped else ()
        return (Cell("turn log ok", Tone.DIM), *dropped)
    return (
        Cell(f"turn log cannot write, {store.pending:,} pending, {store.dropped:,} dropped", Tone.BAD),
        external(store.last_error or ""),
    )


def _queue(snapshot: Snapshot) -> Row:
    queue = snapshot.queue
    held = sum(agent.held for agent in snapshot.agents)
    return (
        Cell("queue ", Tone.STRONG),
        Cell(f"{len(queue.leases)} running", Tone.GOOD if queue.leases else Tone.DIM),
        Cell(f"{len(queue.waiting)} waiting", Tone.WARN if queue.waiting else Tone.DIM),
        *((Cell(f"{held} held", Tone.BAD),) if held else ()),
        Cell(_booked(queue), Tone.DIM),
        *_first_in_line(snapshot),
    )


def _booked(queue: QueueView) -> str:
    if queue.capacity_tokens is None:
        return f"{figure(queue.booked_tokens)} booked, capacity unknown"
    return f"{figure(queue.booked_tokens)} of {figure(queue.capacity_tokens)} booked"


def _first_in_line(snapshot: Snapshot) -> Row:
    if not snapshot.queue.waiting:
        return ()
    first = snapshot.queue.waiting[0]
    return (external(f"{first.agent} {duration(snapshot.now - first.since)}: {first.reason}", Tone.WARN),)


def tiers(picture: Picture) -> Table:
    """One row a tier, with a complaint under it. What an engine does not tell is unknown, not empty."""
    snapshot = picture.snapshot
    columns = (
        Column(title="tier"),
        Column(title="held for", grows=True, least=14, most=400),
        Column(title="held", right=True),
        Column(title="of", right=True),
        Column(title="full", right=True),
        Column(title="served", right=True),
        Column(title="written", right=True, from_width=WIDE),
        Column(title="pays", right=True),
        Column(title="states", right=True, most=16),
        Column(title="proven", most=8, from_width=WIDE),
    )
    if snapshot is None:
        return Table(title="tiers", columns=columns, empty=UNKNOWN)
    cache, tones = snapshot.cache, hues(snapshot)
    rows = list[Row]()
    for tier in cache.tiers:
        rows.append(_tier(tier, tones, _proven(cache, tier.tier)))
        if tier.complaint:
            rows.append((Cell(""), external(f"! {tier.complaint}", Tone.BAD)))
    why = cache.unknown or "the engine tells nothing of its cache"
    return Table(
        title="tiers",
        notes=_predicted(cache.predicted_lately),
        columns=columns,
        rows=tuple(rows),
        empty=external(f"unknown: {why}").text,
    )


def _tier(tier: TierView, tones: Mapping[str, Tone], proven: Cell) -> Row:
    pays = tier.served_per_written
    states = "" if tier.held_states is None and tier.state_slots is None else figure(tier.held_states)
    if tier.state_slots is not None:
        states = f"{states}/{tier.state_slots:,}"
    return (
        external(_NAMES.get(tier.tier, tier.tier), Tone.STRONG),
        _holders(tier, tones),
        Cell(figure(tier.held_tokens, at_least=tier.is_part)),
        Cell(figure(tier.capacity_tokens)),
        Cell(_full(tier)),
        Cell(figure(tier.served_tokens)),
        Cell(figure(tier.written_tokens)),
        Cell(ratio(pays), Tone.BAD if tier.complaint else Tone.GOOD if pays and pays >= 1 else Tone.PLAIN),
        Cell(states or UNKNOWN),
        proven,
    )


def _full(tier: TierView) -> str:
    full = share(tier.held_tokens, tier.capacity_tokens)
    return f"{full}+" if tier.is_part and full != UNKNOWN else full


def _holders(tier: TierView, tones: Mapping[str, Tone]) -> Cell:
    """Whose contexts are in it. What belongs to nobody's last state that is known is grey."""
    if tier.held_tokens is None:
        return Cell("unknown: the engine does not tell", Tone.DIM)
    largest = sorted(tier.holders, key=lambda holder: -holder.tokens)
    shown, rest = largest[:_MOST_HOLDERS], largest[_MOST_HOLDERS:]
    shown.sort(key=lambda holder: (holder.agent is not None, holder.agent or ""))
    parts = [
        Part(
            holder.tokens,
            Tone.PLAIN if holder.agent is None else tones.get(holder.agent, Tone.PLAIN),
            label=external(_SHARED if holder.agent is None else holder.agent).text,
        )
        for holder in shown
    ]
    others = sum(holder.tokens for holder in rest)
    nobodys = tier.held_tokens - others - sum(holder.tokens for holder in shown)
    parts += [Part(others, Tone.PLAIN, label="others"), Part(max(0, nobodys), Tone.DIM, label="old")]
    whole, room = tier.capacity_tokens or tier.held_tokens or 1, UNSURE if tier.is_part else FREE
    return Cell("", bar=Bar(tuple(part for part in parts if part.amount > 0), whole=whole, labelled=True, rest=room))


def _proven(cache: CacheView, tier: str) -> Cell:
    """By the canary."""
    if cache.canary is None:
        return Cell(UNKNOWN, Tone.DIM)
    verdict = next((each.verdict for each in cache.canary.tiers if each.tier == tier), "")
    tone = {"SERVED": Tone.GOOD, "SKIPPED": Tone.DIM, "": Tone.DIM}.get(verdict, Tone.BAD)
    return external(verdict.lower() or UNKNOWN, tone)


def _predicted(score: PredictionView) -> Row:
    """How often this picture was right before a turn, lately."""
    unknown = (Cell(f"{score.unknown} not predicted", Tone.WARN),) if score.unknown else ()
    if not score.turns:
        return unknown or (Cell("nothing predicted yet", Tone.DIM),)
    good = score.within_page >= _WITHIN * score.turns
    tier = f", tier {share(score.tier_right, score.tier_turns)}" if score.tier_turns else ""
    right = f"predicted right {share(score.within_page, score.turns)}{tier} of {score.turns} turns"
    return (Cell(right, Tone.GOOD if good else Tone.WARN), *unknown)


def news(picture: Picture) -> Table:
    """What is wrong now, then what has happened."""
    log = happenings(picture, most=_NEWS)
    alerts = () if picture.snapshot is None else picture.snapshot.alerts
    rows = tuple((Cell(""), Cell("now", Tone.BAD), Cell("alert", Tone.BAD), external(alert)) for alert in alerts[:8])
    more = len(alerts) - len(rows)
    if more:
        rows += ((Cell(""), Cell(""), Cell("alert", Tone.BAD), Cell(f"and {more} more")),)
    count = (Cell(f"{len(alerts)} alert{'' if len(alerts) == 1 else 's'}", Tone.BAD),) if alerts else ()
    return msgspec.structs.replace(log, title="latest", notes=count, rows=rows + log.rows)


def tier_sizes(picture: Picture) -> Table:
    """The tiers in bytes, and what writing costs: for the engine's screen."""
    tiers_told = () if picture.snapshot is None else picture.snapshot.cache.tiers
    rows = tuple(
        (
            external(_NAMES.get(tier.tier, tier.tier), Tone.STRONG),
            Cell(size(tier.held_bytes, at_least=tier.is_part)),
            Cell(size(tier.written_bytes)),
            Cell(size(tier.served_bytes)),
            Cell(ratio(tier.write_amplification)),
            Cell(figure(tier.written_states)),
            external(tier.complaint or "", Tone.BAD),
        )
        for tier in tiers_told
    )
    return Table(
        title="tiers in bytes",
        columns=(
            Column(title="tier"),
            Column(title="held", right=True),
            Column(title="written", right=True),
            Column(title="served", right=True),
            Column(title="per computed", right=True),
            Column(title="states written", right=True),
            Column(title="complaint", grows=True),
        ),
        rows=rows,
        empty="unknown",
    )
