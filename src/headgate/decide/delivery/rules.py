"""The rules by which a lane delivers to its gateways, and what becomes of a delivery by them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.decide.delivery.batching import BatchLimits
from headgate.decide.delivery.pressure import Watermarks
from headgate.decide.delivery.retrying import Backoff
from headgate.model.delivery import Delivery, Verdict

LOOK_AGAIN_S = 1.0
"""Pause after letters couldn't be read, or were not to be sent yet."""
LEFT = "the subscribers it was to come to again have left; retry it for those who are there now"


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """`redrive_every_s` is the pause before parked letters are tried again after a failure."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int = 3
    buffer_timeout_s: float = 60.0
    redrive_every_s: float = 10.0
    watermarks: Watermarks = field(default_factory=Watermarks)
    breaker_threshold: int = 5
    breaker_timeout_s: float = 30.0
    keeps_dead: bool = True
    """Whether there are dead letters. If not, nothing is shed, and what is refused for good halts
    its partition."""

    @property
    def look_again_s(self) -> float:
        return min(LOOK_AGAIN_S, self.redrive_every_s)

    def is_left(self, delivery: Delivery, verdict: Verdict) -> bool:
        """Whether it came again for subscribers that have left since: one that comes back reads on
        from a position, which doesn't bring it, so it becomes a dead letter."""
        is_for_somebody = delivery.redelivery and bool(delivery.subscriptions)
        return verdict == "no_subscriber" and is_for_somebody and self.keeps_dead
