"""What `headgate status` shows: a summary, then one table per kind, empty ones left out.

Invariant: it fits a screen whatever the size of the cluster. What there are many of is added up or
cut with a word about it, unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.views.connector import connectors_table, trouble
from headgate.cli.views.groups import groups_table
from headgate.cli.views.letters import gateway_letters_table
from headgate.cli.views.repartition import under_way_sentence
from headgate.cli.views.tables import (
    LATE_MS,
    Grid,
    counted,
    duration,
    named,
    number,
    partitions_table,
    plural,
    share,
    topics_table,
)
from headgate.model.api import (
    FilterStatus,
    GatewayStatus,
    LaneStatus,
    MoveStatus,
    NodeStatus,
    Status,
    TopicInfo,
    TopicPartition,
    Totals,
    WindowStatus,
)
from headgate.model.control.reports import GatewayLink

ROWS_MAX = 32
"""Most partitions, moves or lanes that are shown unasked."""
TROUBLED_MAX = 10
"""Most of those in trouble, where there are too many partitions to show all."""
WHERE_CHARS = 60
"""Of a filter that are shown; --json has all of it."""
LEARNING = (
    "the coordinator has lost its state and learns who owns what; nothing moves until every node "
    "has reported"
)
OWNING_ROLES = ("ingest", "router")
TOTALS = ("appended", "waiting", "settled")
OUTCOMES = (
    "acknowledged",
    "unmatched",
    "parked",
    "dead",
    "released",
    "skipped",
)
RARE_OUTCOMES = ("repeated", "uncounted")
"""Shown where there are any: they explain why the others don't add up."""

Row = TypeVar("Row")

_LEVEL_STYLES = {"soft": "yellow", "hard": "red", "half_open": "yellow", "open": "red"}
_STATE_STYLES = {"ready": "green", "starting": "yellow", "draining": "yellow", "lost": "red"}


def status_view(status: Status, *, url: str = "", everything: bool = False) -> RenderableType:
    """Everything that /v1/status says; with `everything` also every single partition. `url` is the
    address that was asked."""
    parts: list[RenderableType] = list(_summary(status, url))
    for title, section in _sections(status, everything=everything):
        parts += [Text(), Text(title, style="bold"), section]
    return Group(*parts)


def _summary(status: Status, url: str) -> Iterator[Text]:
    where = f" at {url}" if url else ""
    leader = f"   leader {status.leader}" if status.leader else ""
    yield Text(f"Headgate {status.version}{where}{leader}")
    facts = [
        f"generation {counted(status.generation)}",
        f"revision {counted(status.revision)}",
        f"subscriptions {status.subscriptions:,}",
        f"clients {status.clients:,}",
    ]
    yield Text("   ".join(facts))
    if status.ws_url:
        yield Text(f"WebSocket {status.ws_url}")
    if status.learning:
        yield Text(LEARNING, style="yellow")
    for line in _repartitions(status):
        yield Text(line, style="yellow")
    for gateway in status.gateways:
        if gateway.held:
            yield Text(_held(gateway), style="yellow")
    for line in _trouble(status):
        yield Text(line, style="red")


def _repartitions(status: Status) -> Iterator[str]:
    """A line for each topic that is being repartitioned, up to a bound."""
    lines = [line for topic in status.topics if (line := under_way_sentence(topic))]
    yield from lines[:TROUBLED_MAX]
    if len(lines) > TROUBLED_MAX:
        yield f"and {len(lines) - TROUBLED_MAX:,} more; `headgate topic list` has them all"


def _held(gateway: GatewayStatus) -> str:
    who = plural(gateway.held, "subscriber")
    return f"{gateway.id} holds {who} back until every lane knows them again; nothing is lost"


def _trouble(status: Status) -> Iterator[str]:
    """A line for each partition, store, gateway and connector that keeps records from going where
    they should, up to a bound: `headgate doctor` says what to do."""
    lines = [
        f"{topic.name}:{one.partition} is {one.state}: {one.reason}"
        for topic in status.topics
        for one in topic.details
        if one.state != "healthy"
    ]
    lines += sorted(
        {f"letters can't be kept: {lane.letters}" for lane in status.lanes if lane.letters}
    )
    lines += [line for one in status.connectors if (line := trouble(one))]
    yield from lines[:TROUBLED_MAX]
    if len(lines) > TROUBLED_MAX:
        yield f"and {len(lines) - TROUBLED_MAX:,} more; `headgate doctor` sums them up"


def _sections(status: Status, *, everything: bool) -> Iterator[tuple[str, RenderableType]]:
    if status.totals.appended:
        yield "Records", totals_table(status.totals, TOTALS)
        rare = [name for name in RARE_OUTCOMES if getattr(status.totals, name)]
        yield "Settled records", totals_table(status.totals, (*OUTCOMES, *rare))
    if status.nodes:
        yield "Nodes", nodes_table(status.nodes)
    if status.topics:
        yield "Topics", topics_table(status.topics)
        yield from _partitions(status, everything=everything)
    if status.moves:
        yield f"Moves ({len(status.moves):,})", _cut(moves_table, status.moves, everything)
    if status.windows:
        yield "Windows", windows_table(status.windows)
    if status.lanes:
        yield "Lanes", _cut(lanes_table, status.lanes, everything)
    if status.gateways:
        yield "Gateways", gateways_table(status.gateways)
    if status.filters:
        yield "Costliest filters, for one document", filters_table(status.filters)
    if status.connectors:
        yield "Connectors", _cut(connectors_table, status.connectors, everything)
    if status.groups:
        yield "Consumer groups", _cut(groups_table, status.groups, everything)
    if held := [(lane, link) for lane in status.lanes for link in lane.links if _is_held(link)]:
        yield "Gateways that don't take everything", _cut(links_table, held, everything)
    if status.letters:
        yield "Letters", _cut(gateway_letters_table, status.letters, everything)
    elif status.letters_error:
        yield "Letters", Text(f"not counted: {status.letters_error}", style="red")


def _partitions(status: Status, *, everything: bool) -> Iterator[tuple[str, RenderableType]]:
    """All partitions where they are asked for, those with records where they are few, else those
    that an operator should look at."""
    found = [(topic, one) for topic in status.topics for one in topic.details]
    if not found:
        return
    if everything:
        yield "Partitions", partitions_table(found)
        return
    if len(found) <= ROWS_MAX:
        yield "Partitions", _few(found)
        return
    troubled = [(topic, one) for topic, one in found if _is_troubled(one)]
    all_shown = Text(f"{len(found):,} partitions; --partitions shows all of them", style="dim")
    if not troubled:
        yield "Partitions", all_shown
        return
    title = f"Partitions without an owner or late ({len(troubled):,})"
    yield title, Group(partitions_table(troubled[:TROUBLED_MAX]), all_shown)


def _few(found: Sequence[tuple[TopicInfo, TopicPartition]]) -> RenderableType:
    shown = [(topic, one) for topic, one in found if one.head or _is_troubled(one)]
    if len(shown) == len(found):
        return partitions_table(shown)
    empty = plural(len(found) - len(shown), "partition")
    more = Text(f"{empty} without records; --partitions shows all of them", style="dim")
    return Group(partitions_table(shown), more) if shown else more


def _is_troubled(one: TopicPartition) -> bool:
    late = one.lag_ms > LATE_MS or (one.lag > 0 and not one.lag_known)
    return one.owner is None or one.router is None or late or one.state != "healthy"


def _is_held(link: GatewayLink) -> bool:
    return link.breaker != "closed" or link.pressure != "normal" or bool(link.error)


def _cut(
    table: Callable[[Sequence[Row]], Grid], rows: Sequence[Row], everything: bool
) -> RenderableType:
    if everything or len(rows) <= ROWS_MAX:
        return table(rows)
    more = Text(f"and {len(rows) - ROWS_MAX:,} more; --partitions shows all of them", style="dim")
    return Group(table(rows[:ROWS_MAX]), more)


def totals_table(totals: Totals, names: Sequence[str]) -> Grid:
    row = tuple(number(getattr(totals, name)) for name in names)
    return Grid([f"{name}>" for name in names], [row])


def nodes_table(nodes: Sequence[NodeStatus]) -> Grid:
    rows = [
        (
            node.role,
            node.id,
            Text(node.state, style=_STATE_STYLES[node.state]),
            number(node.partitions) if node.role in OWNING_ROLES else "-",
            str(node.pid or "-"),
            duration(node.last_seen_ms_ago),
            node.url or "-",
        )
        for node in nodes
    ]
    return Grid(("role", "id", "state", "partitions>", "?pid>", "?seen ago>", "?address"), rows)


def moves_table(moves: Sequence[MoveStatus]) -> Grid:
    rows = [
        (
            f"{move.topic}:{move.partition}",
            f"{move.from_id} -> {move.to_id}",
            move.phase,
            duration(move.age_ms),
        )
        for move in moves
    ]
    return Grid(("partition", "from -> to", "phase", "for>"), rows)


def windows_table(windows: Sequence[WindowStatus]) -> Grid:
    rows = [(w.router, w.state, str(w.window), duration(round(w.change_ms))) for w in windows]
    return Grid(("router", "state", "window>", "change took>"), rows)


def lanes_table(lanes: Sequence[LaneStatus]) -> Grid:
    columns = ("router", "lane>", "partitions", "cpu>", "?read>", "?matched>", "?delivered>")
    details = ("?filter errors>", "?window>", "?attempt>", "?pid>", "?revision>")
    rows = [
        (
            lane.router,
            str(lane.lane),
            named(_ref(text) for text in lane.partitions),
            share(lane.cpu),
            number(lane.read),
            number(lane.matched),
            number(lane.delivered),
            number(lane.filter_errors),
            str(lane.window),
            str(lane.attempt),
            str(lane.pid),
            counted(lane.revision),
        )
        for lane in lanes
    ]
    return Grid((*columns, *details), rows)


def links_table(links: Sequence[tuple[LaneStatus, GatewayLink]]) -> Grid:
    rows = [
        (
            link.gateway_id,
            f"{lane.router} {lane.lane}",
            number(link.waiting),
            Text(link.pressure, style=_LEVEL_STYLES.get(link.pressure, "")),
            Text(link.breaker.replace("_", " "), style=_LEVEL_STYLES.get(link.breaker, "")),
            link.error or "-",
        )
        for lane, link in links
    ]
    return Grid(("gateway", "router, lane", "waiting>", "pressure", "breaker", "last error"), rows)


def _ref(text: str) -> tuple[str, int]:
    topic, _, partition = text.rpartition(":")
    return topic, int(partition)


def gateways_table(gateways: Sequence[GatewayStatus]) -> Grid:
    rows = [
        (g.id, str(g.subscribers), number(g.depth), number(g.sent), duration_us(g.filter_cost_us))
        for g in gateways
    ]
    return Grid(("gateway", "subscribers>", "waiting>", "sent>", "?filters at worst>"), rows)


def filters_table(filters: Sequence[FilterStatus]) -> Grid:
    rows = [
        (
            duration_us(one.cost_us),
            number(one.subscriptions),
            duration_us(one.together_us),
            one.topic,
            ", ".join(one.gateways),
            ", ".join(one.tenants) or "-",
            one.where if len(one.where) <= WHERE_CHARS else f"{one.where[:WHERE_CHARS]}…",
        )
        for one in filters
    ]
    columns = ("at worst>", "subscriptions>", "together>", "topic", "?gateways", "?tenants")
    return Grid((*columns, "filter"), rows)


def duration_us(microseconds: int) -> str:
    return f"{microseconds / 1_000:,.1f} ms" if microseconds else "-"
