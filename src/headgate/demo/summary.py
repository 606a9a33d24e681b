"""What a run of the demo came to, for people and for programs.

Invariant: what is missing is expected minus delivered, counted here and not by Headgate. It is
`lost` where Headgate had nothing more to do, else `on_their_way` when the wait for it ended
(draining.py). `ok` is false when anything is missing, out of order or came to a subscriber that
hadn't asked for it.
"""

from __future__ import annotations

import msgspec

from headgate.demo.scoreboard import Scoreboard
from headgate.demo.view import ConsumerView
from headgate.demo.watches import Watch

LATENCY_NOTE = (
    "latency: from the producer's acknowledgement, when the record is on disk, to its subscriber's "
    "program, all on this machine; what is there before its acknowledgement counts as 0 "
    "(docs/benchmarks/latency.md)"
)
_MONGODB_LATENCY_NOTE = (
    "latency: from MongoDB's acknowledgement, when a majority of its members has the write, to its "
    "subscriber's program; what is there before its acknowledgement counts as 0 "
    "(docs/benchmarks/connector.md)"
)
_POSTGRESQL_LATENCY_NOTE = (
    "latency: from PostgreSQL's acknowledgement of the commits of one round trip, one for each "
    "report, to its subscriber's program; what is there before its acknowledgement counts as 0"
)
LATENCY_NOTES = {
    "": LATENCY_NOTE,
    "MongoDB": _MONGODB_LATENCY_NOTE,
    "PostgreSQL": _POSTGRESQL_LATENCY_NOTE,
}
"""By the database that reports are written to."""


class SubscriberSummary(msgspec.Struct, frozen=True):
    name: str
    where: str | None
    matched: int
    delivered: int


class ConsumerSummary(msgspec.Struct, frozen=True):
    """A consumer of a group; `targets` are those it owned at the end, none if it had `left`."""

    name: str
    targets: tuple[int, ...]
    received: int
    left: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Latency is from the acknowledged report to the event at its subscriber; `sent_p50_ms` and
    `sent_p99_ms` are from before it was sent."""

    produced: int
    matched: int
    delivered: int
    lost: int
    duplicates: int
    out_of_order: int
    unexpected: int
    not_acknowledged: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    windows: int
    longest_gap_ms: float
    seconds: float
    seed: int
    subscribers: tuple[SubscriberSummary, ...]
    consumers: tuple[ConsumerSummary, ...] = ()
    on_their_way: int = 0
    sent_p50_ms: float = 0.0
    sent_p99_ms: float = 0.0

    @property
    def ok(self) -> bool:
        wrong = self.lost or self.on_their_way or self.out_of_order or self.unexpected
        return not wrong and self.produced > 0

    def line(self) -> str:
        """One line; what should not have happened is named only when it did."""
        parts = [
            f"produced {self.produced}",
            f"matched {self.matched}",
            f"delivered {self.delivered}",
            f"lost {self.lost}",
            f"duplicates {self.duplicates}",
            f"latency from acknowledged to received p50 {format_ms(self.p50_ms)}",
            f"p99 {format_ms(self.p99_ms)}",
            f"windows changed {self.windows}",
            f"longest gap {format_ms(self.longest_gap_ms)}",
        ]
        for count, what in (
            (self.on_their_way, "not delivered yet"),
            (self.out_of_order, "out of order"),
            (self.unexpected, "unexpected"),
            (self.not_acknowledged, "not acknowledged"),
        ):
            if count:
                parts.append(f"{what} {count}")
        return ", ".join(parts)


def format_ms(duration_ms: float) -> str:
    """Three digits are enough to compare, and no more than was measured; seconds where there are
    any."""
    if duration_ms < 1:
        return "< 1 ms"
    if duration_ms >= 1_000:
        return f"{duration_ms / 1_000:.1f} s"
    digits = 0 if duration_ms >= 100 else 1
    return f"{duration_ms:.{digits}f} ms"


def summarize(
    board: Scoreboard,
    watches: tuple[Watch, ...],
    *,
    windows: int,
    seconds: float,
    seed: int,
    consumers: tuple[ConsumerView, ...] = (),
    is_lost: bool = True,
) -> Summary:
    """`is_lost`: what is missing won't come any more."""
    return Summary(
        produced=board.produced,
        matched=board.matched,
        delivered=board.delivered,
        lost=board.missing if is_lost else 0,
        duplicates=board.duplicates,
        out_of_order=board.out_of_order,
        unexpected=board.unexpected,
        not_acknowledged=board.refused,
        p50_ms=round(board.latency.percentile_ms(50), 2),
        p99_ms=round(board.latency.percentile_ms(99), 2),
        max_ms=round(board.latency.max_ms, 2),
        windows=windows,
        longest_gap_ms=round(board.longest_gap_ms, 2),
        seconds=round(seconds, 2),
        seed=seed,
        subscribers=tuple(
            SubscriberSummary(watch.name, watch.where, score.matched, score.delivered)
            for watch, score in zip(watches, board.watches, strict=True)
        ),
        consumers=tuple(
            ConsumerSummary(one.name, one.targets, one.received, one.left) for one in consumers
        ),
        on_their_way=0 if is_lost else board.missing,
        sent_p50_ms=round(board.latency_since_sent.percentile_ms(50), 2),
        sent_p99_ms=round(board.latency_since_sent.percentile_ms(99), 2),
    )
