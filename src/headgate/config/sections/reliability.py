"""How positions, repeats, gaps and failures are dealt with."""

from __future__ import annotations

from typing import Literal

from headgate.config.sections.section import Section
from headgate.config.units import seconds
from headgate.config.value_types import Count, Duration


class CheckpointSettings(Section):
    backend: Literal["embedded", "etcd", "mongo"] = "embedded"
    """Where positions are kept: in a file of the data folder, in etcd or in MongoDB."""
    interval: Duration = seconds("5s")
    """Longest time between two saves of a partition's position."""
    event_count: Count = 1_000
    """Most settled events between two saves."""


class DedupSettings(Section):
    enabled: bool = True
    """Drop repeats at the gateway."""
    cache_size: Count = 10_000
    """Events remembered per gateway."""
    ttl: Duration = seconds("3m")
    """How long an event is remembered."""


class GapDetectionSettings(Section):
    enabled: bool = True
    """Tell subscribers of records that can't be read any more; false only counts and logs them."""
    max_gap: Duration = seconds("5m")
    """Time that lost records may span; more makes the partition stale until subscribers know."""


class CircuitBreakerSettings(Section):
    threshold: Count = 5
    """Failures in a row after which a gateway is left alone."""
    timeout: Duration = seconds("30s")
    """How long it is left alone before one probe."""


class ShutdownSettings(Section):
    flush_timeout: Duration = seconds("10s")
    """Longest wait for what is in flight when a node stops."""
    checkpoint_timeout: Duration = seconds("5s")
    """Longest wait for the final checkpoint."""


class ReliabilitySettings(Section):
    checkpoint: CheckpointSettings = CheckpointSettings()
    dedup: DedupSettings = DedupSettings()
    gap_detection: GapDetectionSettings = GapDetectionSettings()
    circuit_breaker: CircuitBreakerSettings = CircuitBreakerSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
