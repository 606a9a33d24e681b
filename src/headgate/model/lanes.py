"""The plan of a window, what each of its lanes is given, and what it returns when its window ends.

They cross process borders (driver, Spark task, tally rows), so they are plain values.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.topology import Owner

Mode = Literal["direct", "consistent_hash", "broadcast"]
"""How a match finds its gateways; see decide.delivery.routing."""


class LogStore(msgspec.Struct, frozen=True):
    """Where the log is: in the data folder (`embedded`) or in the database at `dsn`."""

    backend: str = "embedded"
    dsn: str = ""


class CheckpointPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the positions are: in the data folder (`embedded`), in `etcd` or in `mongo`."""

    backend: str = "embedded"
    etcd_endpoints: str = ""
    etcd_prefix: str = ""
    etcd_user: str = ""
    etcd_password: str = ""
    mongo_url: str = ""
    mongo_database: str = ""


class TransportPlace(msgspec.Struct, frozen=True, kw_only=True):
    """How a lane reaches gateways, over any transport: the pass to show them, the token (of NATS,
    and of gateways that ask for no pass), the file of the certificate that vouches for them, and
    the servers of NATS."""

    shown: str = ""
    token: str = ""
    authority: str = ""
    nats: str = ""


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the config that lanes act on, in seconds and counts."""

    log_level: str = "info"
    log: LogStore = LogStore()
    checkpoints: CheckpointPlace = CheckpointPlace()
    transport: TransportPlace = TransportPlace()
    coordinator_pass: str = ""
    """What lanes show to the coordinator."""
    mode: Mode = "direct"
    max_fanout: int = 3
    window_s: float = 120.0
    read_limit: int = 500
    batch_max_size: int = 100
    batch_max_bytes: int = 8 * 1024 * 1024
    batch_max_wait_s: float = 0.050
    batch_flush_interval_s: float = 0.010
    queue_size: int = 10_000
    queue_bytes: int = 64 * 1024 * 1024
    soft_watermark: int = 70
    hard_watermark: int = 90
    resume_watermark: int = 60
    soft_delete: str = ""
    delivery_timeout_s: float = 5.0
    retry_max_attempts: int = 3
    retry_initial_s: float = 0.1
    retry_max_s: float = 5.0
    retry_multiplier: float = 2.0
    breaker_threshold: int = 5
    breaker_timeout_s: float = 30.0
    buffer_timeout_s: float = 60.0
    redrive_every_s: float = 10.0
    dlq_enabled: bool = True
    gap_enabled: bool = True
    gap_max_s: float = 300.0
    checkpoint_interval_s: float = 5.0
    checkpoint_event_count: int = 1_000
    flush_timeout_s: float = 10.0
    checkpoint_timeout_s: float = 5.0
    report_interval_s: float = 0.5
    evidence_size: int = 20_000
    evidence_age_s: float = 600.0


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of one window: the partitions it follows, and under which fence."""

    router_id: str
    incarnation: str
    lane: int
    window: int
    attempt: int
    assignment: int
    owns: tuple[Owner, ...]
    coordinator: str
    data: str
    settings: LaneSettings


class LaneTally(msgspec.Struct, frozen=True, kw_only=True):
    """Why the lane's window ended and what it did in it; `fenced`: a newer lane took over."""

    lane: int
    window: int
    pid: int
    reason: str
    fenced: bool
    read: int
    matched: int
    delivered: int
    started_s: float
    ended_s: float


class WindowPlan(msgspec.Struct, frozen=True):
    """One window. Without lanes it only keeps workers warm, `warm` of them."""

    window: int
    lanes: tuple[LaneSpec, ...] = ()
    warm: int = 0
