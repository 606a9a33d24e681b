"""Who of a gateway's subscribers is furthest behind, for people who look.

Invariant: what it costs is bounded by how many there are, and nobody is waited for or changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from headgate.model.api import SLOWEST_MAX
from headgate.model.subscription import SlowSubscriber
from headgate.services.gateway.subscriptions.live import LiveSubscription


def slowest_of(subscribers: Iterable[LiveSubscription]) -> tuple[SlowSubscriber, ...]:
    """The subscriptions for which something waits, or the log is read; the slowest first."""
    behind = [
        SlowSubscriber(one.id, one.topic, one.waiting, one.catching_up is not None)
        for one in subscribers
        if one.waiting or one.catching_up is not None
    ]
    return tuple(nlargest(SLOWEST_MAX, behind, key=_slowness))


def _slowness(one: SlowSubscriber) -> tuple[bool, int]:
    """One that reads the log has fallen behind further than a queue is long."""
    return one.catching_up, one.waiting
