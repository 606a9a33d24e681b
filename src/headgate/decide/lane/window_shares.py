"""Which partitions each lane of a window follows, and when its tallies are overdue.

Invariant: while a router is cut off from the coordinator nothing is overdue. Its lanes may be cut
off too, and then keep their window open on purpose: they deliver, and their successors could not
learn the subscriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.model.topology import Owner


def plan_lanes(sources: Sequence[Owner], slots: int) -> list[tuple[Owner, ...]]:
    """Spread `sources` over min(partitions, slots) lanes, as evenly as numbers allow.

    Deterministic: the same sources and slots make the same lanes, so a partition tends to stay
    with the same worker from window to window.
    """
    ordered = sorted(sources, key=lambda owner: owner.ref)
    count = min(len(ordered), max(slots, 1))
    return [tuple(ordered[lane::count]) for lane in range(count)]


@dataclass(frozen=True, slots=True)
class Patience:
    """`start_s` is how long the lanes of a window may take to start, in a cold JVM on a busy
    machine; `tallies_s` how long its tallies may take once it was told to end."""

    start_s: float = 60.0
    tallies_s: float = 10.0


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window on its way: when it was planned, for how long, and when the coordinator said that it
    ends (None: it has not)."""

    planned_s: float
    length_s: float
    told_s: float | None = None


def overdue_s(window: OpenWindow, *, connected_s: float | None, patience: Patience) -> float | None:
    """When a window has been open for too long: a lane is frozen, or waits for a slot that it
    doesn't get. None: never, as things are.

    `connected_s` is since when the router has its stream to the coordinator (None: it has none).
    Lanes that were cut off hand over when they are back too, which is given as long as a start. An
    end that was told before the stream broke may not have reached them, and is told again.
    """
    if connected_s is None:
        return None
    by_time_s = max(window.planned_s + window.length_s, connected_s) + patience.start_s
    if window.told_s is None or window.told_s < connected_s:
        return by_time_s
    return min(by_time_s, window.told_s + patience.tallies_s)
