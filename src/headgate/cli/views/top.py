"""What `headgate top` shows: the rows of each table, and the figures that follow from two moments.

Invariants: pure but for the list of moments; that list has a bound; whatever a name or a sentence
has in it comes out printable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from headgate.cli.views.tables import LATE_MS, duration, number, share
from headgate.decide.operations.latencies import quantile_s, since
from headgate.model.api import GroupStatus, NodeStatus, TopicInfo, TopicPartition
from headgate.model.control.reports import Latencies
from headgate.model.overview_api import DoctorSentence, LaneFlow, Overview, TopicFlow

KEPT = 120
"""Looks that are remembered: at twice a second these are a minute."""
RATE_S = 4.0
LATENCY_S = 30.0
ATTENTION_MAX = 6

STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("healthy", "ready", "connected", "closed", "normal"), "green"),
    **dict.fromkeys(("lagging", "starting", "draining", "soft", "half_open", "warn"), "yellow"),
    **dict.fromkeys(("degraded",), "yellow"),
    **dict.fromkeys(("stale", "failed", "lost", "hard", "open", "bad", "unhealthy"), "red"),
    "advice": "cyan",
}
WORST_FIRST = ("failed", "stale", "lagging")

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "topics": ("topic", "state", "partitions", "events/s", "lag", "behind", "records"),
    "partitions": ("partition", "state", "events/s", "lag", "behind", "head", "ingest", "router"),
    "lanes": (
        "lane",
        "window",
        "partitions",
        "core",
        "read",
        "matched",
        "delivered",
        "waiting",
        "trouble",
    ),
    "gateways": ("gateway", "subscribers", "waiting", "sent", "held", "dead", "parked"),
    "nodes": ("node", "role", "state", "partitions", "address"),
    "groups": ("group", "topic", "targets", "consumers", "moving", "without a consumer"),
}
"""The tables, in the order in which keys choose them."""

Row = tuple[str, Sequence[Text]]
"""The row's key in its table, and its cells."""


# --- figures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """What figures need of one look; `at_s` is of any clock that only goes forward."""

    at_s: float
    sent: int
    rate: float
    waiting: int
    routing: Latencies


@dataclass(slots=True)
class Moments:
    """The last looks, oldest first."""

    kept: deque[Moment] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, overview: Overview, at_s: float) -> None:
        self.kept.append(
            Moment(
                at_s,
                sent=sum(one.sent for one in overview.gateways),
                rate=sum(one.rate for one in overview.topics),
                waiting=overview.totals.waiting,
                routing=overview.routing,
            )
        )

    def sent_per_s(self) -> float | None:
        """Over the last seconds; None while it isn't known, as after a gateway began anew."""
        before = self._before(RATE_S)
        if before is None or self.kept[-1].sent < before.sent:
            return None
        return (self.kept[-1].sent - before.sent) / (self.kept[-1].at_s - before.at_s)

    def latency_s(self, part: float) -> float | None:
        """Within which so large a part of the last half minute's records was acknowledged."""
        before = self._before(LATENCY_S)
        if before is None:
            return None
        now = self.kept[-1].routing
        recent = since(now, before.routing)
        # What falls has begun anew.
        return quantile_s(now if min(recent.counts, default=0) < 0 else recent, part)

    def _before(self, seconds: float) -> Moment | None:
        """The newest look that is so old, else the oldest that isn't the last."""
        if len(self.kept) < 2:
            return None
        now_s = self.kept[-1].at_s
        older = [one for one in self.kept if now_s - one.at_s >= seconds]
        found = older[-1] if older else self.kept[0]
        return found if found.at_s < now_s else None


def figures(overview: Overview, moments: Moments) -> Text:
    sent = moments.sent_per_s()
    half, most = moments.latency_s(0.5), moments.latency_s(0.99)
    worst = max((one.lag_ms for one in overview.topics), default=0)
    totals = overview.totals
    adds_up = totals.appended == totals.settled + totals.waiting
    parts: list[tuple[str, str]] = [
        ("in", f"{moments.kept[-1].rate:,.0f}/s"),
        ("sent", "…" if sent is None else f"{sent:,.0f}/s"),
        ("p50", _latency(half)),
        ("p99", _latency(most)),
        ("waiting", number(totals.waiting)),
        ("behind", duration(worst) if worst else "-"),
        ("subscriptions", number(overview.subscriptions)),
    ]
    text = Text()
    for name, value in parts:
        text.append(f"{name} ", style="dim").append(value, style="bold").append("   ")
    sums = (
        f"\n{number(totals.appended)} appended = {number(totals.settled)} settled + "
        f"{number(totals.waiting)} waiting: "
    )
    text.append(sums)
    return text.append(*(("adds up", "green") if adds_up else ("being counted", "yellow")))


def _latency(seconds: float | None) -> str:
    if seconds is None:
        return "…"
    return f"{seconds * 1_000:.1f} ms" if seconds < 0.01 else duration(round(seconds * 1_000))


# --- what needs attention ------------------------------------------------------------------------


def headline(overview: Overview, url: str, trouble: str) -> Text:
    """Where this is from and how it fares; `trouble` is why what is shown is old."""
    text = Text.assemble(("Headgate ", "bold"), f"{overview.version} at {url}   ")
    if overview.leader:
        text.append(f"{printable(overview.leader)} leads   ")
    text.append(overview.health, style=STYLES.get(overview.health, ""))
    if overview.learning:
        text.append("   the coordinator learns who owns what", style="yellow")
    if trouble:
        text.append(f"\nnot up to date: {printable(trouble)}", style="red")
    return text


def attention(said: Sequence[DoctorSentence], left_out: int = 0) -> Text:
    if not said:
        return Text("Nothing needs attention.", style="green")
    text = Text()
    for one in said[:ATTENTION_MAX]:
        text.append(f"{one.verdict:<7}", style=STYLES[one.verdict])
        text.append(f"{printable(one.subject)}: ", style="bold")
        text.append(f"{printable(one.what)}; {printable(one.advice)}\n")
    if more := max(0, len(said) - ATTENTION_MAX) + left_out:
        text.append(f"and {number(more)} more; `headgate doctor` lists them all", style="dim")
    text.rstrip()
    return text


def under_way(overview: Overview) -> Text:
    """What moves, and which topics are on their way to another number of partitions."""
    parts = [
        f"{one.name} goes to {one.repartition.to:,} partitions: {one.repartition.phase}"
        for one in overview.topics
        if one.repartition is not None
    ]
    if moves := len(overview.moves) + overview.left_out.get("moves", 0):
        first = overview.moves[0]
        way = f"{first.topic}:{first.partition} {first.from_id} -> {first.to_id}"
        parts.append(f"{number(moves)} moving, such as {way}")
    return Text(printable("; ".join(parts)), style="yellow")


# --- tables --------------------------------------------------------------------------------------


def rows(table: str, overview: Overview, topic: TopicInfo | None) -> list[Row]:
    """The rows of one of COLUMNS; `topic` is the one whose partitions are shown."""
    match table:
        case "topics":
            return [_topic(one) for one in overview.topics]
        case "partitions":
            return [_partition(one) for one in topic.details] if topic else []
        case "lanes":
            return [_lane(one) for one in overview.lanes]
        case "gateways":
            return list(_gateways(overview))
        case "nodes":
            return [_node(one) for one in overview.nodes]
        case _:
            return [_group(one) for one in overview.groups]


def _topic(one: TopicFlow) -> Row:
    worst = next((name for name in WORST_FIRST if one.states.get(name)), "healthy")
    state = f"{one.states[worst]} {worst}" if one.partitions > 1 and worst != "healthy" else worst
    return one.name, (
        _text(one.name),
        Text(state, style=STYLES[worst]),
        _number(one.partitions),
        _rate(one.rate),
        _number(one.lag),
        _behind(one.lag, one.lag_ms, is_known=one.lag_known),
        _number(one.totals.appended),
    )


def _partition(one: TopicPartition) -> Row:
    state = Text(one.state, style=STYLES[one.state])
    if one.reason:
        state.append(f": {printable(one.reason)}", style="")
    return str(one.partition), (
        _number(one.partition),
        state,
        _rate(one.rate),
        _number(one.lag),
        _behind(one.lag, one.lag_ms, is_known=one.lag_known),
        _number(one.head),
        _owner(one.owner),
        _owner(one.router),
    )


def _lane(one: LaneFlow) -> Row:
    waiting = sum(link.waiting for link in one.links)
    trouble = one.trouble or next((link.error for link in one.links if link.error), "")
    # Of two windows while one changes, and of two attempts.
    return f"{one.router}/{one.lane}/{one.window}/{one.attempt}", (
        _text(f"{one.router} / {one.lane}"),
        _number(one.window),
        _number(one.partitions),
        _right(share(one.cpu)),
        _number(one.read),
        _number(one.matched),
        _number(one.delivered),
        _number(waiting),
        _text(trouble, "red") if trouble else Text("-"),
    )


def _gateways(overview: Overview) -> Iterator[Row]:
    letters = {one.gateway: one for one in overview.letters if not one.group}
    for one in overview.gateways:
        kept = letters.get(one.id)
        yield (
            one.id,
            (
                _text(one.id),
                _number(one.subscribers),
                _number(one.depth),
                _number(one.sent),
                _number(one.held),
                _number(kept.dead if kept else 0, "yellow"),
                _number(kept.parked if kept else 0, "yellow"),
            ),
        )


def _node(one: NodeStatus) -> Row:
    return one.id, (
        _text(one.id),
        Text(one.role),
        Text(one.state, style=STYLES[one.state]),
        _number(one.partitions),
        _text(one.url or "-"),
    )


def _group(one: GroupStatus) -> Row:
    return f"{one.topic}/{one.group}", (
        _text(one.group),
        _text(one.topic),
        _number(one.targets),
        _number(len(one.consumers)),
        _number(one.moving, "yellow"),
        _number(one.unowned, "yellow"),
    )


# --- cells ---------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Nothing that a terminal would take for a command, or that turns the direction of a line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _right(text: str, style: str = "") -> Text:
    return Text(text, style=style, justify="right")


def _number(value: int, unless_none: str = "") -> Text:
    return _right(number(value), unless_none if value else "")


def _rate(per_s: float) -> Text:
    return _right(f"{per_s:,.1f}")


def _behind(lag: int, lag_ms: int, *, is_known: bool) -> Text:
    if not lag:
        return _right("-")
    at_least = "" if is_known else "\u2265 "
    return _right(at_least + duration(lag_ms), "red" if lag_ms > LATE_MS else "")


def _owner(name: str | None) -> Text:
    return _text(name) if name else Text("nobody", style="red")
