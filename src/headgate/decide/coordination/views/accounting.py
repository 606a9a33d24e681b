"""What became of every record, and how each partition fares.

Invariant: of all records, appended = settled + waiting. What was settled is accounted for by what
settled it; only an operator's reset (records settled again) and positions from before there were
tallies (records nobody counted) stand between the two, and both are shown.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.model import api
from headgate.model.control.reports import PartitionReport
from headgate.model.position import Position, Tally

LATE_MS = 30_000
"""A partition whose oldest unsettled record is older than this is lagging."""


def newest(report: PartitionReport | None, stored: Position) -> tuple[int, Tally]:
    """How far a partition is settled and what became of its records: from the lane's report or from
    the store, whichever is further."""
    if report is not None and report.settled >= stored.settled:
        return report.settled, report.tally
    return stored.settled, stored.tally


def partition_state(
    partition: api.TopicPartition, report: PartitionReport | None, *, unclaimed: str = ""
) -> tuple[api.PartitionHealth, str]:
    """The state of a partition, and why if it isn't healthy, in a sentence. `unclaimed`: why its
    position can't be claimed, if it can't."""
    if unclaimed:
        return "failed", f"its position can't be claimed, and it stands still: {unclaimed}"
    if report is not None and report.state != "flowing":
        return report.state, report.reason
    if partition.owner is None:
        return "failed", "no ingest node takes records for it; start one"
    if partition.lag_ms <= LATE_MS:
        return "healthy", ""
    if partition.router is None:
        return "failed", "no router reads it; start one"
    if report is None:
        return "lagging", "no lane reads it; see the router's log"
    return "lagging", f"its oldest record waits for more than {LATE_MS // 1_000} s"


def totals(partitions: Iterable[api.TopicPartition]) -> api.Totals:
    return sum_of(
        api.Totals(
            appended=one.head,
            settled=one.settled,
            waiting=one.lag,
            repeated=max(0, one.tally.total - one.settled),
            uncounted=max(0, one.settled - one.tally.total),
            **msgspec.structs.asdict(one.tally),
        )
        for one in partitions
    )


def sum_of(many: Iterable[api.Totals]) -> api.Totals:
    """The totals of several partitions or topics as one."""
    rows = map(msgspec.structs.astuple, many)
    return api.Totals(*map(sum, zip(*rows, strict=True)))
