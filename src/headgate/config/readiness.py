"""Which settings belong to parts that aren't there yet.

Invariant: no setting does nothing in silence. A choice that only a missing part could honour is
refused (`ONLY_AVAILABLE`); a number that nothing reads yet is accepted with a warning (`NOT_YET`).
A part that arrives takes its entries out of here, in the same change.
"""

from __future__ import annotations

from collections.abc import Mapping

ONLY_AVAILABLE: Mapping[str, frozenset[str]] = {
    "routing.mode": frozenset({"direct"}),
    "routing.delivery.protocol": frozenset({"http"}),
}
"""Of the values the schema knows, those that work in this version."""

NOT_YET: frozenset[str] = frozenset(
    {
        "consumers.shard_size",
        "coordinator.adoption_timeout",
        "coordinator.consumer_imbalance",
        "reliability.circuit_breaker.threshold",
        "reliability.circuit_breaker.timeout",
        "reliability.gap_detection.enabled",
        "reliability.gap_detection.max_gap",
        "router.buffer_timeout",
        "router.flush_every",
        "routing.backpressure.hard_watermark",
        "routing.backpressure.resume_watermark",
        "routing.backpressure.soft_watermark",
        "routing.delivery.retry.max_attempts",
        "routing.dlq.enabled",
        "routing.dlq.max_age",
        "routing.max_fanout",
    }
)
"""Settings that are checked but not read by anything yet."""
