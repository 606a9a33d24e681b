"""How status and topics look in a terminal. Only shapes what it's given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.model.api import (
    GatewayStatus,
    LaneStatus,
    NodeStatus,
    Status,
    TopicInfo,
    TopicPartition,
    WindowStatus,
)

LATE_MS = 30_000
"""Lag in time from which a partition is shown in red: the threshold of the health states."""

_STATE_STYLES = {"ready": "green", "starting": "yellow", "lost": "red"}


def _counted(number: int) -> str:
    """A generation or revision as people can compare it: the coordinator's start, and its count."""
    return f"{number >> 32}.{number & 0xFFFF_FFFF}"


def status_view(status: Status) -> RenderableType:
    """Everything that /v1/status says, one table per kind, empty ones left out."""
    summary = Text(
        f"Headgate {status.version}   generation {_counted(status.generation)}   "
        f"revision {_counted(status.revision)}   subscriptions {status.subscriptions}"
    )
    sections: list[RenderableType] = [summary]
    if status.ws_url:
        sections.append(Text(f"WebSocket {status.ws_url}"))
    for title, table in _sections(status):
        sections += [Text(), Text(title, style="bold"), table]
    return Group(*sections)


def _sections(status: Status) -> Iterator[tuple[str, Table]]:
    if status.nodes:
        yield "Nodes", nodes_table(status.nodes)
    if status.topics:
        yield "Topics", partitions_table(status.topics)
    if status.windows:
        yield "Windows", windows_table(status.windows)
    if status.lanes:
        yield "Lanes", lanes_table(status.lanes)
    if status.gateways:
        yield "Gateways", gateways_table(status.gateways)


def topics_table(topics: Sequence[TopicInfo]) -> Table:
    rows = [
        (
            topic.name,
            str(topic.partitions),
            topic.placement,
            str(topic.version),
            _number(sum(one.head for one in topic.details)),
            _number(sum(one.lag for one in topic.details)),
        )
        for topic in topics
    ]
    return _table(("topic", "partitions>", "placement", "version>", "records>", "lag>"), rows)


def partitions_table(topics: Sequence[TopicInfo]) -> Table:
    columns = ("topic", "partition>", "head>", "settled>", "lag>", "behind>", "owner", "router")
    rows = [
        (
            topic.name,
            str(one.partition),
            _number(one.head),
            _number(one.settled),
            _number(one.lag),
            _behind(one),
            one.owner or "-",
            one.router or "-",
            str(one.epoch),
        )
        for topic in topics
        for one in topic.details
    ]
    return _table((*columns, "epoch>"), rows)


def nodes_table(nodes: Sequence[NodeStatus]) -> Table:
    rows = [
        (
            node.role,
            node.id,
            Text(node.state, style=_STATE_STYLES[node.state]),
            str(node.pid or "-"),
            node.url or "-",
            _duration(node.last_seen_ms_ago),
        )
        for node in nodes
    ]
    return _table(("role", "id", "state", "pid>", "address", "seen ago>"), rows)


def windows_table(windows: Sequence[WindowStatus]) -> Table:
    rows = [(w.router, w.state, str(w.window), f"{w.change_ms:.0f} ms") for w in windows]
    return _table(("router", "state", "window>", "gap before it>"), rows)


def lanes_table(lanes: Sequence[LaneStatus]) -> Table:
    columns = ("router", "lane>", "window>", "attempt>", "pid>", "partitions", "read>", "matched>")
    rows = [
        (
            lane.router,
            str(lane.lane),
            str(lane.window),
            str(lane.attempt),
            str(lane.pid),
            " ".join(lane.partitions),
            _number(lane.read),
            _number(lane.matched),
            _number(lane.delivered),
            _number(lane.filter_errors),
            _counted(lane.revision),
        )
        for lane in lanes
    ]
    return _table((*columns, "delivered>", "filter errors>", "revision>"), rows)


def gateways_table(gateways: Sequence[GatewayStatus]) -> Table:
    rows = [(g.id, str(g.subscribers), _number(g.depth), _number(g.sent)) for g in gateways]
    return _table(("gateway", "subscribers>", "waiting>", "sent>"), rows)


def _table(columns: Iterable[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table without lines; a column whose name ends with > is aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right = column.endswith(">")
        table.add_column(column.removesuffix(">"), justify="right" if right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _behind(one: TopicPartition) -> Text:
    style = "red" if one.lag_ms >= LATE_MS else ""
    return Text(_duration(one.lag_ms) if one.lag else "-", style=style)


def _number(value: int) -> str:
    return f"{value:,}"


def _duration(ms: int) -> str:
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
