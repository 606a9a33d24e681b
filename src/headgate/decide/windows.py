"""Which partitions each lane of a window follows."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.model.topology import Owner


def plan_lanes(sources: Sequence[Owner], slots: int) -> list[tuple[Owner, ...]]:
    """Spread `sources` over min(partitions, slots) lanes, as evenly as numbers allow.

    Deterministic: the same sources and slots make the same lanes, so a partition tends to stay
    with the same worker from window to window.
    """
    ordered = sorted(sources, key=lambda owner: owner.ref)
    count = min(len(ordered), max(slots, 1))
    return [tuple(ordered[lane::count]) for lane in range(count)]
