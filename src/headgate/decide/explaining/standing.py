"""Where one subscriber is, of one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.model.evidence import Stand


class Seen(Protocol):
    """What it takes to tell; decide.feed.feed.Feed is one."""

    @property
    def held(self) -> bool: ...

    def sent(self) -> dict[int, int]: ...

    def has_reached(self, partition: int, seq: int) -> bool: ...

    def behind(self) -> list[int]: ...


def stand_of(feed: Seen, partition: int, seq: int) -> Stand:
    """Whether the subscriber wants the record isn't looked at here."""
    sent: Mapping[int, int] = feed.sent()
    if seq <= sent.get(partition, 0):
        return "passed"
    if feed.has_reached(partition, seq):
        return "waiting"
    if feed.held:
        return "held"
    if partition not in sent:
        return "unknown"
    return "behind" if partition in feed.behind() else "expected"
