"""What nodes tell the coordinator of how they fare, again and again: each counts instead of the
one before."""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.connector import ConnectorReport
from headgate.model.control.message import Message
from headgate.model.event import PartitionRef
from headgate.model.position import Tally
from headgate.model.subscription import SlowSubscriber
from headgate.model.topology import Owner

PartitionState = Literal["flowing", "stale", "failed"]
"""`stale`: records are lost, and not everybody has been told. `failed`: nothing more is read."""
PressureLevel = Literal["normal", "soft", "hard"]
BreakerState = Literal["closed", "open", "half_open"]


class PartitionReport(msgspec.Struct, frozen=True, array_like=True):
    ref: PartitionRef
    head: int
    settled: int
    oldest_unsettled_ms: int
    """Time of the oldest unsettled record, 0 when there is none."""
    tally: Tally = Tally()
    state: PartitionState = "flowing"
    reason: str = ""
    """Why it isn't flowing, in a sentence."""
    parked: bool = False
    """Whether something of it is parked for some gateway, as far as is known."""


LATENCY_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds of the buckets that latencies are counted in, everywhere."""


class Latencies(msgspec.Struct, frozen=True):
    """How many latencies fell into each bucket of `LATENCY_BUCKETS_S`, those above all of them
    last, and their sum. Without counts there were none."""

    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


class GatewayLink(msgspec.Struct, frozen=True):
    """One lane's way to one gateway; the counts are totals since the lane started."""

    gateway_id: str
    waiting: int = 0
    pressure: PressureLevel = "normal"
    breaker: BreakerState = "closed"
    sent: int = 0
    """Batches that were answered."""
    acknowledged: int = 0
    retries: int = 0
    failures: int = 0
    parked: int = 0
    redriven: int = 0
    dead: int = 0
    released: int = 0
    error: str = ""
    """What went wrong the last time, while it still matters."""
    soft: int = 0
    """Times the pressure rose to soft."""
    hard: int = 0
    """Times it rose to hard."""
    round_trips: Latencies = Latencies()
    """Of batches that were answered."""


class LaneReport(Message, frozen=True, kw_only=True):
    """Totals since the lane started; the coordinator takes differences. `cpu_s` is what its process
    has used. `letters` says what is wrong with the store of parked and dead letters, if anything
    is: then nothing more is read; `checkpoints` says it of the store of positions. `routing` is the
    time from a record to its acknowledgement by a gateway, `saving` that of saving a position.
    `unclaimed` are those whose positions it should have claimed and can't, for a while now: it
    doesn't read them."""

    partitions: tuple[PartitionReport, ...]
    read: int
    matched: int
    delivered: int
    filter_errors: int
    cpu_s: float = 0.0
    links: tuple[GatewayLink, ...] = ()
    letters: str = ""
    checkpoints: str = ""
    checkpoints_saved: int = 0
    checkpoint_errors: int = 0
    gaps: int = 0
    routing: Latencies = Latencies()
    saving: Latencies = Latencies()
    unclaimed: tuple[Owner, ...] = ()


class IngestReport(Message, frozen=True):
    """`earliest` is the first seq of which the log still has something, of topics with former
    versions."""

    heads: tuple[tuple[PartitionRef, int], ...]
    earliest: tuple[tuple[PartitionRef, int], ...] = ()


class ConnectorReports(Message, frozen=True):
    """How the connectors fare that an ingest node reads, each under the epoch it has it under."""

    reports: tuple[ConnectorReport, ...]


class GatewayReport(Message, frozen=True):
    """Also renews every subscription of the gateway that has a time-to-live. `held` subscribers get
    nothing at the moment: the coordinator had forgotten them, and not every lane knows them yet.
    `slowest` names a few of those who don't keep up, the slowest first."""

    subscribers: int
    depth: int
    sent: int
    held: int = 0
    slowest: tuple[SlowSubscriber, ...] = ()


class RouterReport(Message, frozen=True):
    """`window` is the last one planned; `change_ms` is how long the last change took: from the
    tallies of one window to the lanes of the next."""

    state: str
    window: int
    change_ms: float
