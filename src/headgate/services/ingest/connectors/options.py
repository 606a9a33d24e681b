"""How a connector's reader goes about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.decide.delivery.retrying import Backoff


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """`refresh_s` is how old a stored position may grow while other partitions, or other
    collections, have all the changes; `look_every_s` how often the origin is asked how it stands,
    and `rest_look_every_s` how often while the connector rests.
    While a snapshot is taken, the stream is waited for `snapshot_patience_s` at a time.
    A batch for one partition has at most so many events and bytes, but for a single event."""

    refresh_s: float = 5.0
    look_every_s: float = 5.0
    rest_look_every_s: float = 30.0
    events: int = 2_000
    snapshot_patience_s: float = 0.02
    bytes: int = 4 * 1024 * 1024
    document_bytes: int = 16 * 1024 * 1024
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.1, max_s=10.0))
