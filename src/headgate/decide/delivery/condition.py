"""How a gateway fares, as far as one lane's deliveries to it show.

Every batch that is sent to it, live or from letters, tells something of its condition, and waits
for it. Time is an argument.
"""

from __future__ import annotations

from headgate.decide.delivery.breaker import NEVER, Breaker
from headgate.decide.delivery.pressure import Pressure
from headgate.decide.delivery.rules import DeliveryRules


class Condition:
    """`attempts` is how often what is sent next has failed already, `retry_at_s` when it may be
    tried again, `error` what went wrong last."""

    __slots__ = ("attempts", "breaker", "error", "hurries", "pressure", "retry_at_s")

    def __init__(self, rules: DeliveryRules) -> None:
        self.breaker = Breaker(rules.breaker_threshold, rules.breaker_timeout_s)
        self.pressure = Pressure(rules.watermarks)
        self.attempts = 0
        self.retry_at_s = -NEVER
        self.error = ""
        self.hurries = False
        """Is nothing to wait for long, because the lane remembers all that comes behind it?"""

    @property
    def struggles(self) -> bool:
        """Is something wrong with the gateway right now?"""
        return self.attempts > 0 or self.breaker.state != "closed"

    def well(self, fill: float) -> None:
        """It has answered, and said how full it is."""
        self.breaker.succeeded()
        self.pressure.filled(fill)
        self.error = ""

    def begins_anew(self) -> None:
        """What was tried so often is out of the way."""
        self.attempts = 0
        self.retry_at_s = -NEVER

    def renewed(self) -> None:
        """The gateway has another address: whatever was wrong doesn't count."""
        self.breaker.renewed()
        self.pressure.filled(0.0)
        self.error = ""
        self.begins_anew()
