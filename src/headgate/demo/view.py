"""A moment of the demo as values: what the screen, and the plain lines, show.

`Gauges` turns totals into rates; it is asked at every refresh and keeps a few seconds of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.demo.figures import Meter
from headgate.demo.scoreboard import Scoreboard
from headgate.demo.watches import Watch
from headgate.model.api import Status, TopicPartition, WindowStatus


@dataclass(frozen=True, slots=True)
class PartitionView:
    partition: int
    per_s: float
    lag: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class GatewayView:
    name: str
    per_s: float
    subscribers: int
    depth: int


@dataclass(frozen=True, slots=True)
class SubscriberView:
    name: str
    where: str | None
    matched: int
    delivered: int
    per_s: float


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One consumer of a group, with the targets it owns."""

    name: str
    targets: tuple[int, ...]
    received: int
    per_s: float
    left: bool


@dataclass(frozen=True, slots=True)
class RoleView:
    """`pid` None: it is being started again."""

    name: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class View:
    address: str
    phase: str
    elapsed_s: float
    total_s: float | None
    produced: int
    produced_per_s: float
    delivered: int
    delivered_per_s: float
    missing: int
    lag: int
    lag_ms: int
    p50_ms: float
    p99_ms: float
    windows: int
    window: int
    partitions: tuple[PartitionView, ...] = ()
    gateways: tuple[GatewayView, ...] = ()
    subscribers: tuple[SubscriberView, ...] = ()
    consumers: tuple[ConsumerView, ...] = ()
    roles: tuple[RoleView, ...] = ()
    """As the supervisor that started them sees them: a status has none of a role that is away."""
    trouble: str = ""
    waiting: str = ""
    """What is waited for at the end, and why it may take a while."""
    origin: str = ""
    """The database that everything comes through; empty where it is produced."""
    skipped: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    targets: int = 0
    """Of the consumers' group, once that is known."""


class WindowCount:
    """Counts window changes from what the routers report, restarts of a router included."""

    def __init__(self) -> None:
        self.changes = 0
        self._last: dict[str, int] = {}

    def see(self, windows: list[WindowStatus]) -> None:
        for seen in windows:
            last = self._last.get(seen.router, seen.window)
            # A router that was started again counts from 1 again.
            self.changes += seen.window - last if seen.window >= last else 1
            self._last[seen.router] = seen.window


class Gauges:
    def __init__(self, watches: tuple[Watch, ...]) -> None:
        self._watches = watches
        self._meters: dict[str, Meter] = {}

    def _rate(self, name: str, total: int, now_s: float, span_s: float = 5.0) -> float:
        meter = self._meters.setdefault(name, Meter(span_s))
        return meter.sample(total, at_s=now_s)

    def view(
        self,
        board: Scoreboard,
        by_partition: list[int],
        status: Status | None,
        *,
        address: str,
        phase: str,
        now_s: float,
        elapsed_s: float,
        total_s: float | None,
        windows: int,
        trouble: str,
        waiting: str = "",
        consumers: tuple[ConsumerView, ...] = (),
        origin: str = "",
    ) -> View:
        """`by_partition` are the events acknowledged so far, per partition of the topic."""
        details = status.topics[0].details if status is not None and status.topics else []
        by_number = {detail.partition: detail for detail in details}
        recent = board.recent_latency.at(now_s)
        window = status.windows[0] if status is not None and status.windows else None
        return View(
            address=address,
            phase=phase,
            elapsed_s=elapsed_s,
            total_s=total_s,
            produced=board.produced,
            produced_per_s=self._rate("produced", board.produced, now_s),
            delivered=board.delivered,
            delivered_per_s=self._rate("delivered", board.delivered, now_s),
            missing=board.missing,
            lag=sum(detail.lag for detail in details),
            lag_ms=max((detail.lag_ms for detail in details), default=0),
            p50_ms=recent.percentile_ms(50),
            p99_ms=recent.percentile_ms(99),
            windows=windows,
            window=window.window if window else 0,
            partitions=tuple(
                self._partition(number, count, by_number.get(number), now_s)
                for number, count in enumerate(by_partition)
            ),
            gateways=self._gateways(status, now_s),
            subscribers=self._subscribers(board, now_s),
            consumers=consumers,
            trouble=trouble,
            waiting=waiting,
            origin=origin,
            skipped=board.skipped,
            duplicates=board.duplicates,
            out_of_order=board.out_of_order,
            targets=next((one.targets for one in status.groups), 0) if status is not None else 0,
        )

    def _partition(
        self, number: int, count: int, detail: TopicPartition | None, now_s: float
    ) -> PartitionView:
        rate = self._rate(f"partition {number}", count, now_s)
        return PartitionView(
            number, rate, detail.lag if detail else 0, detail.lag_ms if detail else 0
        )

    def _gateways(self, status: Status | None, now_s: float) -> tuple[GatewayView, ...]:
        if status is None:
            return ()
        return tuple(
            GatewayView(
                gateway.id,
                # Gateways report every few seconds, so a shorter span would jump.
                self._rate(f"gateway {gateway.id}", gateway.sent, now_s, span_s=15.0),
                gateway.subscribers,
                gateway.depth,
            )
            for gateway in status.gateways
        )

    def _subscribers(self, board: Scoreboard, now_s: float) -> tuple[SubscriberView, ...]:
        return tuple(
            SubscriberView(
                watch.name,
                watch.where,
                score.matched,
                score.delivered,
                self._rate(f"subscriber {watch.name}", score.delivered, now_s),
            )
            for watch, score in zip(self._watches, board.watches, strict=True)
        )
