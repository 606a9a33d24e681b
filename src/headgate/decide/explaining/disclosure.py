"""What of an explanation somebody may see: the one place that every answer goes through.

Invariant: what isn't shown leaves no trace in the answer but in numbers that anybody may know: no
name, no filter, no reason, and no sentence that is different because of it.
"""

from __future__ import annotations

from typing import Protocol

from headgate.model.event import Record
from headgate.model.subscription import Subscription


class Sight(Protocol):
    """What whoever asks may see."""

    def topic(self, name: str) -> bool:
        """Whether they may know of this topic at all."""

    def record(self, record: Record) -> bool:
        """Whether they may see this record, and what became of it; if not, it isn't there."""

    def subscription(self, subscription: Subscription) -> bool:
        """Whether they may see that it exists, with its filter and how it fares."""

    @property
    def system(self) -> bool:
        """Whether they may see how nodes fare: owners, lanes, gateways, letters."""


class Everything:
    """Nobody has said who they are, and nobody is asked to."""

    system = True

    def topic(self, name: str) -> bool:
        del name
        return True

    def record(self, record: Record) -> bool:
        del record
        return True

    def subscription(self, subscription: Subscription) -> bool:
        del subscription
        return True
